"""The examples of a source that stages.list lists: what a model is fine-tuned on, all of it in memory."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.sources import documents, filters, source, spans, storage
from stages.lib.sources.entries import TRAIN, VALIDATION, split_of
from stages.lib.sources.kinds.registry import PROMPT_COMPLETION_KINDS, kind_of
from stages.lib.sources.source import SourceRecipe

FILTERED_AT_ONCE = 1000  # examples


class Example(Protocol):
    """One unit of fine-tuning data. `id`: its place in the source. `split`: train or validation."""

    @property
    def id(self) -> str: ...  # noqa: D102

    @property
    def split(self) -> str: ...  # noqa: D102

    @property
    def text(self) -> str | None: ...  # noqa: D102


AnyExample = TypeVar("AnyExample", bound=Example)
Records = Callable[[SourceRecipe, Sequence[str]], Iterator[AnyExample]]
"""Function of (recipe, names of all files) that yields the examples."""


@dataclass(frozen=True)
class ExampleSource(Generic[AnyExample]):
    """The examples of a source, by split, in the order of the files.

    `digest`: of the source's recipe, and the names and contents of its files.
    """

    name: str
    digest: str
    train: list[AnyExample]
    validation: list[AnyExample]


def read(path: Path | str, kinds: Sequence[str], what: str, records: Records[AnyExample]) -> ExampleSource[AnyExample]:
    """Read the examples of a source. `path`: the manifest of stages.list. `kinds`, `what`: kinds of sources that have
    them, and their name for messages.

    Raises UserError if the source is of another kind, or a file is not as it was listed.
    """
    listed, name, recipe = source.read_list(path)
    if recipe.kind not in kinds:
        raise UserError(f"sources.{name}.kind must be {' or '.join(kinds)} to read {what}, got {recipe.kind}")
    every = spans.whole(file["name"] for file in listed.identity["files"])
    before = source.states_of(recipe, listed, every)
    described = source.described_inputs(recipe, listed, every)
    splits: dict[str, list[AnyExample]] = {TRAIN: [], VALIDATION: []}
    found = records(recipe, [file["name"] for file in described])
    for example in _filtered(recipe, name, found):
        splits[example.split].append(example)
    storage.check_unchanged(before)
    train, validation = splits[TRAIN], splits[VALIDATION]
    logger.info("source %s: %s training %s, %s validation %s", name, len(train), what, len(validation), what)
    digest = source.digest_of_examples(listed, recipe, described)
    return ExampleSource(name, digest, train, validation)


def _filtered(recipe: SourceRecipe, name: str, found: Iterator[AnyExample]) -> Iterator[AnyExample]:
    """Yield the examples that meet the filters of the recipe, and log how many do not, by filter.

    Documents come here filtered.
    """
    if not recipe.filters.some or kind_of(recipe).has_documents:
        yield from found
        return
    counts: Counter[str] = Counter()
    num_left = 0
    while batch := list(itertools.islice(found, FILTERED_AT_ONCE)):
        texts = [example.text or "" for example in batch]
        results = filters.judged(recipe.filters, texts, [example.id for example in batch])
        for example, result in zip(batch, results, strict=True):
            if result.reason is None:
                num_left += 1
                yield example
            else:
                counts[result.reason] += 1
    if counts and num_left == 0:
        raise documents.nothing_left(name, counts)
    for reason, count in counts.most_common():
        logger.warning("source %s: %s examples are filtered: %s", name, count, reason)


@dataclass(frozen=True)
class Pair:
    """A prompt and its completion. `id`: unique in the source. `split`: train or validation.

    `document`: the key by which it is split, by default its id; pairs with the same are not independent.
    """

    id: str
    prompt: str
    completion: str
    split: str
    document: str = ""

    @property
    def text(self) -> str:
        """The text that filters measure."""
        return self.prompt + self.completion


PairSource = ExampleSource[Pair]


def read_pairs(path: Path | str) -> PairSource:
    """Read the pairs of a source. `path`: the manifest of stages.list.

    Raises UserError if the source holds others, a file is not as it was listed, or a record is malformed.
    """
    return read(path, PROMPT_COMPLETION_KINDS, "pairs", pairs)


def pairs(recipe: SourceRecipe, names: Sequence[str]) -> Iterator[Pair]:
    """Yield a Pair for each record of the files `names`, all files of the source.

    Raises UserError naming file and line of a malformed record: a model must not be trained on half of the data.
    """
    for identifier, key, prompt, completion in kind_of(recipe).pairs(recipe, names):
        yield Pair(identifier, prompt, completion, split_of(key, recipe.validation), key)
