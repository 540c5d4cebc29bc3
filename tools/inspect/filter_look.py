"""A preview of filters: the documents of a source that each rule would remove, with examples."""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.recipe import load_texts
from stages.lib.render.numbers import several
from stages.lib.render.table import Table
from stages.lib.sources import documents, filters
from stages.lib.sources.documents import Entry, FilterCounts
from stages.lib.sources.entries import Document
from stages.lib.sources.filters import FilterRecipe
from stages.lib.sources.source import SourceRecipe
from stages.lib.space import amount
from stages.registry import STAGES
from tools.inspect import sampling, source_look, terminal
from tools.inspect.source_look import Files, Reading
from tools.inspect.terminal import share


@dataclass
class Removed:
    """The documents that a rule removes: their number, their bytes, and outcomes of some of them by their id."""

    number: int = 0
    bytes: int = 0
    examples: list[tuple[str, filters.Judged]] = field(default_factory=list)

    def add(self, size: int) -> None:
        """Count a document of some bytes."""
        self.number, self.bytes = self.number + 1, self.bytes + size


def recipe_with(recipe: SourceRecipe, name: str, text: str) -> SourceRecipe:
    """Return the recipe of a source with the filters of the option --filters, or with its own if the text is empty.

    Raises UserError if there are none, or they do not fit the source.
    """
    if text:
        recipe = dataclasses.replace(recipe, filters=load_texts(FilterRecipe, [text], "--filters"))
        recipe.check(name)
    if not recipe.filters.some:
        raise UserError(f"--filters must be followed by filters as JSON to try, since {name} has none of its own")
    return recipe


def with_classifier(recipe: SourceRecipe, path: Path | None, listed: Path | None) -> SourceRecipe:
    """Return the recipe of a source whose filters know where their classifier is. `path`: the option --classifier;
    without it, the classifier of a list, or the one of that name beside the list of a source.

    Raises UserError if it is not made yet, or the option has no use.
    """
    quality = recipe.filters.quality
    if quality is None:
        if path is not None:
            raise UserError("--classifier must be left out: the filters have no quality")
        return recipe
    if path is None:
        if isinstance(quality, filters.PlacedQuality):
            return recipe
        if listed is None:
            raise UserError(
                f"--classifier is missing: it must be the manifest of {quality.classifier}, which filters.quality needs"
            )
        root = Path(os.path.abspath(listed)).parents[2]
        path = root / STAGES["train_classifier"].output.format(classifier=quality.classifier)
    if not path.exists():
        raise UserError(f"the classifier {quality.classifier} is not trained yet: {path} does not exist")
    digest = manifest.read(path, "train_classifier").digest
    return dataclasses.replace(recipe, filters=filters.placed(recipe.filters, path, digest))


def show(name: str, recipe: SourceRecipe, files: Files, count: int, at_most: int) -> None:
    """Print what each filter of the recipe removes from a sample. `count`: examples per rule; `at_most`: bytes to read.

    Raises UserError if a file cannot be read, or a filter fails.
    """
    source_look.print_files(name, recipe, files)
    places = sampling.places(recipe, files, at_most)
    raw = dataclasses.replace(recipe, filters=FilterRecipe(), mask=[])
    counts = FilterCounts(name, 1, log=False)
    removed: defaultdict[str, Removed] = defaultdict(Removed)
    total, cut, readings = Removed(), Removed(), []
    for place in places:
        readings.append(Reading(raw, place, files, at_most // len(places)))
        for batch in documents.batched(readings[-1], documents.FILTERED_AT_ONCE):
            for document, outcome in _judged(recipe.filters, batch, counts):
                size = source_look.num_bytes(document)
                total.add(size)
                kept = dataclasses.replace(document, text=outcome.text, language=outcome.language)
                if outcome.reason is None and counts.keep(kept) is None:
                    removed["empty"].add(size)
                elif outcome.reason is not None:
                    of_rule = removed[outcome.reason]
                    of_rule.add(size)
                    if len(of_rule.examples) < count:
                        of_rule.examples.append((document.id, outcome._replace(text=document.text or "")))
                elif outcome.text != document.text:
                    cut.add(size - len(outcome.text.encode()))
    source_look.print_sample(readings, total.number + counts.num_malformed)
    for what, counter in (("malformed", counts.malformed), ("languages", counts.languages)):
        if counter:
            print(f"{what}: {', '.join(f'{number:,} {name}' for name, number in counter.most_common())}")
    print()
    print(*_table(recipe.filters, removed, cut, total).text(indent=""), sep="\n")
    silent = len(set(_thresholds(recipe.filters)) - set(removed))
    if silent:
        print(f"{several(silent, 'other rule')} would filter no document of the sample")
    removed.pop("empty", None)
    for reason, of_rule in sorted(removed.items(), key=lambda item: -item[1].number):
        print(f"\n{reason}: {_thresholds(recipe.filters)[reason]}")
        for identifier, outcome in of_rule.examples:
            value = "" if outcome.value is None else f" {_shown(outcome.value)}"
            print(f"  {terminal.visible(identifier)}:{value} | {terminal.shortened(outcome.text.strip())}")


def _judged(
    recipe: FilterRecipe, batch: Sequence[Entry], counts: FilterCounts
) -> Iterator[tuple[Document, filters.Judged]]:
    """Yield the documents of a batch with their outcomes; count the malformed records, and languages of the others."""
    found = [entry for entry in batch if isinstance(entry, Document)]
    for entry in batch:
        if not isinstance(entry, Document):
            counts.keep(entry)
    results = filters.judged(recipe, [document.text or "" for document in found], [document.id for document in found])
    for document, outcome in zip(found, results, strict=True):
        if outcome.reason is not None and outcome.language is not None:
            counts.languages[outcome.language] += 1
        yield document, outcome


def _table(recipe: FilterRecipe, removed: dict[str, Removed], cut: Removed, total: Removed) -> Table:
    """Return the table of rules, in the order in which they are applied: each document counts for the first."""
    thresholds = _thresholds(recipe)
    order = [*thresholds, "empty"]
    lines = [(reason, thresholds.get(reason, ""), removed[reason]) for reason in order if reason in removed]
    going = Removed(sum(one.number for _, _, one in lines), sum(one.bytes for _, _, one in lines))
    lines += [("lines of other documents", "", cut)] if cut.number else []
    lines += [("kept", "", Removed(total.number - going.number, total.bytes - going.bytes - cut.bytes))]
    rows = [
        [
            *(reason, threshold, f"{one.number:,}", share(one.number, total.number)),
            *(amount(one.bytes), share(one.bytes, total.bytes)),
        ]
        for reason, threshold, one in lines
    ]
    titles = ["rule", "threshold", "documents", "share", "text", "share"]
    return Table(titles=titles, rows=rows, numeric=range(1, 6))


def _thresholds(recipe: Any, prefix: str = "filters") -> dict[str, str]:
    """Return {reason: threshold} of the rules that are switched on, in the order in which they are applied."""
    found: dict[str, str] = {}
    for one in dataclasses.fields(recipe):
        value, key = getattr(recipe, one.name), f"{prefix}.{one.name}"
        if isinstance(value, filters.CustomFilter):
            found[key] = value.function
        elif isinstance(value, filters.QualityFilter):
            found[key] = value.shown
        elif dataclasses.is_dataclass(value):
            found |= _thresholds(value, key)
        elif value is not None and value is not False:
            found[key] = _shown(value)
    return found


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if value is True else str(value)
