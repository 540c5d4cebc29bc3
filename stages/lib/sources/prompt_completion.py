"""The prompt-completion pairs of a source that stages.list lists: data to fine-tune on and to score with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.sources import inputs, source, spans, storage
from stages.lib.sources.kinds.registry import PROMPT_COMPLETION_KINDS, kind_of
from stages.lib.sources.source import SourceRecipe
from stages.lib.sources.split import TRAIN, VALIDATION, split_of


@dataclass(frozen=True)
class Pair:
    """A prompt and its completion. `id`: unique in the source. `split`: train or validation."""

    id: str
    prompt: str
    completion: str
    split: str


@dataclass(frozen=True)
class PairSource:
    """The pairs of a source, by split, in the order of the files.

    `digest`: of the source's recipe, and the names and contents of its files.
    """

    name: str
    digest: str
    train: list[Pair]
    validation: list[Pair]


def read(path: Path | str) -> PairSource:
    """Read the pairs of a source. `path`: the manifest of stages.list.

    Raises UserError if the source holds documents, a file is not as it was listed, or a record is malformed.
    """
    listed, name, recipe = source.read_list(path)
    if not kind_of(recipe).is_prompt_completion:
        expected = " or ".join(PROMPT_COMPLETION_KINDS)
        raise UserError(f"sources.{name}.kind must be {expected} to read pairs, got {recipe.kind}")
    chosen = spans.whole(file["name"] for file in listed.identity["files"])
    before = inputs.states(recipe, listed, chosen)
    described = inputs.described(recipe, listed, chosen)
    splits: dict[str, list[Pair]] = {TRAIN: [], VALIDATION: []}
    for pair in records(recipe, [file["name"] for file in described]):
        splits[pair.split].append(pair)
    storage.check_unchanged(before)
    train, validation = splits[TRAIN], splits[VALIDATION]
    logger.info("source %s: %s training pairs, %s validation pairs", name, len(train), len(validation))
    digest = manifest.digest_of({"source": name, "recipe": listed.identity["recipe"], "inputs": described})
    return PairSource(name, digest, train, validation)


def records(recipe: SourceRecipe, names: Sequence[str]) -> Iterator[Pair]:
    """Yield a Pair for each record of the files `names`, all files of the source.

    Raises UserError naming file and line of a malformed record: a model must not be trained on half of the data.
    """
    for identifier, key, prompt, completion in kind_of(recipe).pairs(recipe, names):
        yield Pair(identifier, prompt, completion, split_of(key, recipe.validation))
