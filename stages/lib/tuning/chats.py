"""The conversations of a source that stages.list lists: data to fine-tune on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib.chat import messages
from stages.lib.chat.messages import Message
from stages.lib.sources import examples
from stages.lib.sources.entries import split_of
from stages.lib.sources.examples import ExampleSource
from stages.lib.sources.kinds.registry import CHAT_KINDS, kind_of
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
    """Read the conversations of a source; arguments and errors as of `prompt_completion.read`."""
    return examples.read(path, CHAT_KINDS, "conversations", records)


def records(recipe: SourceRecipe, names: Sequence[str]) -> Iterator[Conversation]:
    """Yield a Conversation for each record of the files `names`; errors as of `prompt_completion.records`."""
    for identifier, key, found, tools in kind_of(recipe).conversations(recipe, names):
        yield Conversation(identifier, found, split_of(key, recipe.validation), tools=tools)
