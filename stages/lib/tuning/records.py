"""The conversations and the preferences of a source that stages.list lists: data to fine-tune on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib.chat import messages
from stages.lib.chat.messages import Message
from stages.lib.sources import examples
from stages.lib.sources.entries import split_of
from stages.lib.sources.examples import ExampleSource, Pair
from stages.lib.sources.kinds.kind import Text
from stages.lib.sources.kinds.registry import CHAT_KINDS, PREFERENCE_KINDS, kind_of
from stages.lib.sources.source import SourceRecipe


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


def read_chats(path: Path | str) -> ExampleSource[Conversation]:
    """Read the conversations of a source; arguments and errors as of `examples.read_pairs`."""
    return examples.read(path, CHAT_KINDS, "conversations", chat_records)


def chat_records(recipe: SourceRecipe, names: Sequence[str]) -> Iterator[Conversation]:
    """Yield a Conversation for each record of the files `names`; errors as of `examples.pairs`."""
    for identifier, key, found, tools in kind_of(recipe).conversations(recipe, names):
        yield Conversation(identifier, found, split_of(key, recipe.validation), tools=tools)


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


def read_preferences(path: Path | str) -> ExampleSource[Preference]:
    """Read the preferences of a source; arguments and errors as of `examples.read_pairs`."""
    return examples.read(path, PREFERENCE_KINDS, "preferences", preference_records)


def has_conversations(source: ExampleSource[Preference]) -> bool:
    """Return True if a preference of the source has messages, which a chat template renders."""
    return any(isinstance(one.chosen, Conversation) for one in (*source.train, *source.validation))


def preference_records(recipe: SourceRecipe, names: Sequence[str]) -> Iterator[Preference]:
    """Yield a Preference for each record of the files `names`; errors as of `examples.pairs`."""
    for identifier, key, prompt, *answers, tools in kind_of(recipe).preferences(recipe, names):
        split = split_of(key, recipe.validation)
        chosen, rejected = (_example(identifier, prompt, answer, split, tools) for answer in answers)
        yield Preference(identifier, chosen, rejected, split)


def _example(identifier: str, prompt: Text, answer: Text, split: str, tools: Any) -> Pair | Conversation:
    if isinstance(prompt, str):
        assert isinstance(answer, str)
        return Pair(identifier, prompt, answer, split)
    return Conversation(identifier, [*prompt, *answer], split, first=len(prompt), tools=tools)
