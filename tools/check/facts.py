"""Facts about the runs and sources of a checked config, as text for a person, and a sample of each source."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stages.lib.errors import UserError
from stages.lib.manifest import TRAINING
from stages.lib.render.numbers import several
from stages.lib.sources import documents, source, storage
from stages.lib.sources.documents import check_share
from stages.lib.sources.entries import VALIDATION, Filtered, Malformed, split_of
from stages.lib.sources.kinds.registry import kind_of
from stages.lib.sources.source import SourceRecipe
from stages.lib.space import amount
from tools.inspect import sampling
from tools.plan import subject

SECONDS = 1.2
"""CPU time of all sources together: `tools.check` may take five seconds."""

RECORDS = 500  # of a place
BYTES = 3 << 20  # of a source


def check_sample(recipes: Mapping[str, SourceRecipe], with_validation: Iterable[str]) -> list[str]:
    """Return remarks on sources by a sample of their local files. `recipes`: {key of the source: its recipe}.

    `with_validation`: keys of those that need a validation split. Raises UserError for a source of which no record
    could be read, or all were read and too many are malformed or none is validation text.
    """
    local = {where: recipe for where, recipe in recipes.items() if kind_of(recipe).needs_paths}
    local = {where: recipe for where, recipe in local.items() if not any(map(_is_remote, recipe.paths))}
    notes = []
    for where, recipe in local.items():
        seconds = max(0.05, SECONDS / len(local))
        try:
            notes += _check(where, recipe, seconds, where in set(with_validation))
        except UserError as error:
            at_source = str(error).startswith(("sources.", where))
            raise UserError(str(error) if at_source else f"{where}: {error}") from None
    return notes


def _is_remote(path: str) -> bool:
    return storage.is_remote(path.removeprefix("file://"))


def _check(where: str, recipe: SourceRecipe, seconds: float, with_validation: bool) -> list[str]:
    name = where.removeprefix("sources.")
    found = source.list_files(name, recipe)
    places = sampling.places(recipe, [{"name": file, "bytes": status.bytes} for file, status in found.items()], BYTES)
    until, is_whole = time.process_time() + seconds, places[0].where == "all"
    num_records, malformed, filtered, splits = 0, Counter[str](), Counter[str](), Counter[str]()
    for place in places:
        for at, entry in enumerate(_records(recipe, place, list(found))):
            num_records += 1
            if isinstance(entry, Malformed):
                malformed[entry.reason] += 1
            elif isinstance(entry, Filtered):
                filtered[entry.reason] += 1
            else:
                splits[entry if isinstance(entry, str) else entry.split] += 1
            if time.process_time() > until or at >= RECORDS:
                is_whole = False
                break
    num_malformed = malformed.total()
    if num_malformed and (is_whole or num_malformed == num_records):
        check_share(name, recipe.max_malformed, num_malformed, num_records, malformed)
    notes = []
    if num_malformed > recipe.max_malformed * num_records:
        reasons = ", ".join(f"{count} {reason}" for reason, count in malformed.most_common())
        notes.append(
            f"{where}: {num_malformed} of {num_records} sampled records are malformed ({reasons}), and "
            f"max_malformed is {recipe.max_malformed:g}"
        )
    why = ", ".join(f"{count:,} {reason}" for reason, count in filtered.most_common())
    if is_whole and filtered and not splits:
        raise UserError(f"{where}.filters leave none of {num_records:,} records ({why}); relax these filters")
    if is_whole and with_validation and recipe.validation and num_records and not splits[VALIDATION]:
        raise UserError(
            f"{where} must have validation text, and none of its {splits.total():,} documents is in the validation "
            f"split{f' (filtered: {why})' if why else ''}; raise {where}.validation"
        )
    return notes


def _records(recipe: SourceRecipe, place: sampling.Place, every_name: list[str]) -> Iterator[Any]:
    """Yield a Document, Malformed or Filtered for each record of a place, or the split of an example."""
    kind = kind_of(recipe)
    if kind.has_documents:
        # its classifier may not be trained yet
        recipe = dataclasses.replace(recipe, filters=dataclasses.replace(recipe.filters, quality=None))
        yield from documents.read(recipe, place.spans, every_name)
        return
    read = getattr(kind, kind.yields[0])
    for span in place.spans:  # of a large file, only its beginning: examples are read whole
        for _, key, *_ in itertools.islice(read(recipe, [span.name]), RECORDS):
            yield split_of(str(key), recipe.validation)


def facts_of(parts: Mapping[str, Mapping[str, Any]], recipes: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return {"runs": lines, "sources": lines}. `parts`, `recipes`: parts of the plan, and their recipes, by key."""
    runs = [_run(where, parts[where], recipe) for where, recipe in recipes.items() if parts[where]["stage"] in TRAINING]
    for where, part in parts.items():
        if "averaged" in part and where in recipes:
            name, initial = where.removeprefix("runs.").rpartition(".")[0], part["averaged"]
            runs.append(
                f"run {name}: the mean of the weights of the last {recipes[where].num_milestones} milestones of run "
                f"{initial['run']} up to {initial['step']}"
            )
    sources = [_source(where, recipe) for where, recipe in recipes.items() if parts[where]["stage"] == "list"]
    return {"runs": runs, "sources": sources}


def _run(where: str, part: Mapping[str, Any], recipe: Any) -> str:
    name, stage = where.removeprefix("runs.").rpartition(".")[::2]
    milestones = [Path(path).stem.lstrip("0") for path in part["milestones"]]
    how = stage if part.get("origin", name) == name else f"{stage}, the model of run {part['origin']}"
    if recipe.steps is None:
        length = f"{recipe.epochs} epochs"
    else:
        tokens = recipe.steps * recipe.global_batch_size * recipe.seq_len
        length = f"{recipe.steps:,} steps, {'' if stage == 'pretrain' else 'up to '}{tokens:,} tokens"
        evaluations = subject.validation(recipe, dataclasses.asdict(recipe), [*map(int, milestones)])
        length += f", validation at most {evaluations['validation_share']:.0%} more"
    return f"run {name}: {how}, {length}; milestones {', '.join(milestones)}"


def _source(where: str, recipe: SourceRecipe) -> str:
    name = where.removeprefix("sources.")
    remote = list(filter(_is_remote, recipe.paths))
    if remote:
        paths = "1 remote path, which is" if len(remote) == 1 else f"{len(remote)} remote paths, which are"
        return f"source {name}: {recipe.kind}, {paths} not opened"
    try:
        left_out: Counter[str] = Counter()
        found = source.list_files(name, recipe, left_out)
    except UserError as error:
        return f"source {name}: {error}"
    size = amount(sum(file.bytes for file in found.values()))
    beside = f"; left out: {source.counted(left_out)}" if +left_out else ""
    return f"source {name}: {recipe.kind}, {several(len(found), 'file')}, {size}{beside}"
