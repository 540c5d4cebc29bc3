"""The preferences of a source that stages.list lists: data for preference tuning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib.sources import examples
from stages.lib.sources.entries import split_of
from stages.lib.sources.examples import ExampleSource, Pair
from stages.lib.sources.kinds.kind import Text
from stages.lib.sources.kinds.registry import PREFERENCE_KINDS, kind_of
from stages.lib.sources.source import SourceRecipe
from stages.lib.tuning.chats import Conversation


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
    """Read the preferences of a source; arguments and errors as of `prompt_completion.read`."""
    return examples.read(path, PREFERENCE_KINDS, "preferences", records)


def has_conversations(source: ExampleSource[Preference]) -> bool:
    """Return True if a preference of the source has messages, which a chat template renders."""
    return any(isinstance(one.chosen, Conversation) for one in (*source.train, *source.validation))


def records(recipe: SourceRecipe, names: Sequence[str]) -> Iterator[Preference]:
    """Yield a Preference for each record of the files `names`; errors as of `prompt_completion.records`."""
    for identifier, key, prompt, *answers, tools in kind_of(recipe).preferences(recipe, names):
        split = split_of(key, recipe.validation)
        chosen, rejected = (_example(identifier, prompt, answer, split, tools) for answer in answers)
        yield Preference(identifier, chosen, rejected, split)


def _example(identifier: str, prompt: Text, answer: Text, split: str, tools: Any) -> Pair | Conversation:
    if isinstance(prompt, str):
        assert isinstance(answer, str)
        return Pair(identifier, prompt, answer, split)
    return Conversation(identifier, [*prompt, *answer], split, first=len(prompt), tools=tools)
