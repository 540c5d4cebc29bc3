"""The examples of a source that stages.list lists, on which a model is fine-tuned, all of them in memory.

They are documents, pairs of a prompt and its completion, conversations, or preferences.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from stages.lib.chat import messages
from stages.lib.chat.messages import Message
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.sources import documents, filters, source, spans, storage
from stages.lib.sources.documents import FilterCounts
from stages.lib.sources.entries import TRAIN, VALIDATION, Document, split_of
from stages.lib.sources.kinds import registry
from stages.lib.sources.kinds.kind import Text
from stages.lib.sources.kinds.registry import kind_of
from stages.lib.sources.source import SourceRecipe

FILTERED_AT_ONCE = 1000  # examples


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


@dataclass(frozen=True)
class Conversation:
    """The messages of a conversation. `id`: unique in the source. `split`: train or validation.

    `first`: the message from which on the assistant's turns are targets. `tools`: that it may call.
    """

    id: str
    messages: list[Message]
    split: str
    first: int = 0
    tools: list[dict[str, Any]] | None = None

    @property
    def text(self) -> str:
        """The text that filters measure."""
        return messages.text_of(self.messages)


@dataclass(frozen=True)
class Preference:
    """Two examples with the same prompt, of which the first is preferred. `id`: unique in the source.

    Both are pairs, or both are conversations.
    """

    id: str
    chosen: Pair | Conversation
    rejected: Pair | Conversation
    split: str

    @property
    def text(self) -> str:
        """The text that filters measure: that of the example which the source has for other training."""
        return self.chosen.text


AnyExample = TypeVar("AnyExample", bound=Document | Pair | Conversation | Preference)
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


PairSource = ExampleSource[Pair]


def read_pairs(path: Path | str) -> PairSource:
    """Read the pairs of a source. `path`: the manifest of stages.list.

    Raises UserError if the source holds others, a file is not as it was listed, or a record is malformed.
    """
    return read(path, registry.PROMPT_COMPLETION_KINDS, "pairs", pairs)


def pairs(recipe: SourceRecipe, names: Sequence[str]) -> Iterator[Pair]:
    """Yield a Pair for each record of the files `names`, all files of the source.

    Raises UserError naming file and line of a malformed record: a model must not be trained on half of the data.
    """
    for identifier, key, prompt, completion in kind_of(recipe).pairs(recipe, names):
        yield Pair(identifier, prompt, completion, split_of(key, recipe.validation), key)


def read_chats(path: Path | str) -> ExampleSource[Conversation]:
    """Read the conversations of a source; arguments and errors as of `read_pairs`."""
    return read(path, registry.CHAT_KINDS, "conversations", chats)


def chats(recipe: SourceRecipe, names: Sequence[str]) -> Iterator[Conversation]:
    """Yield a Conversation for each record of the files `names`; errors as of `pairs`."""
    for identifier, key, found, tools in kind_of(recipe).conversations(recipe, names):
        yield Conversation(identifier, found, split_of(key, recipe.validation), tools=tools)


def read_preferences(path: Path | str) -> ExampleSource[Preference]:
    """Read the preferences of a source; arguments and errors as of `read_pairs`."""
    return read(path, registry.PREFERENCE_KINDS, "preferences", _preferences)


def _preferences(recipe: SourceRecipe, names: Sequence[str]) -> Iterator[Preference]:
    for identifier, key, prompt, *answers, tools in kind_of(recipe).preferences(recipe, names):
        split = split_of(key, recipe.validation)
        chosen, rejected = (_example(identifier, prompt, answer, split, tools) for answer in answers)
        yield Preference(identifier, chosen, rejected, split)


def _example(identifier: str, prompt: Text, answer: Text, split: str, tools: Any) -> Pair | Conversation:
    if isinstance(prompt, str):
        assert isinstance(answer, str)
        return Pair(identifier, prompt, answer, split)
    return Conversation(identifier, [*prompt, *answer], split, first=len(prompt), tools=tools)


def read_texts(path: Path | str) -> ExampleSource[Document]:
    """Read the documents of a source; arguments as of `read_pairs`.

    Raises UserError if its documents are token ids, more records are malformed than `max_malformed` allows, or a file
    is not as it was listed.
    """
    _, name, _ = source.read_list(path)
    return read(path, registry.DOCUMENT_KINDS, "documents", functools.partial(_texts, name))


def _texts(name: str, recipe: SourceRecipe, names: Sequence[str]) -> Iterator[Document]:
    """Yield the documents of the files `names` that are neither malformed nor filtered."""
    if recipe.token_ids_field is not None:
        raise UserError(f"sources.{name}.token_ids_field must be left out to fine-tune on it: only text is read")
    counts = FilterCounts(name, recipe.max_malformed)
    for entry in documents.read(recipe, spans.whole(names), names):
        if (kept := counts.keep(entry)) is not None:
            yield kept
    counts.check()
    counts.check_rest()
