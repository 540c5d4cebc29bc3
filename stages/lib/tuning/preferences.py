"""The preferences of a source that stages.list lists: data for preference tuning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.lib.sources import examples
from stages.lib.sources.examples import ExampleSource
from stages.lib.sources.kinds.registry import PREFERENCE_KINDS, kind_of
from stages.lib.sources.source import SourceRecipe
from stages.lib.sources.split import split_of


@dataclass(frozen=True)
class Preference:
    """A prompt and two completions, the first of them preferred. `id`: unique in the source."""

    id: str
    prompt: str
    chosen: str
    rejected: str
    split: str

    @property
    def text(self) -> str:
        """The text that filters measure: that of the pair which the source has for other training."""
        return self.prompt + self.chosen


def read(path: Path | str) -> ExampleSource[Preference]:
    """Read the preferences of a source; arguments and errors as of `prompt_completion.read`."""
    return examples.read(path, PREFERENCE_KINDS, "preferences", records)


def records(recipe: SourceRecipe, names: Sequence[str]) -> Iterator[Preference]:
    """Yield a Preference for each record of the files `names`; errors as of `prompt_completion.records`."""
    for identifier, key, prompt, chosen, rejected in kind_of(recipe).preferences(recipe, names):
        yield Preference(identifier, prompt, chosen, rejected, split_of(key, recipe.validation))
