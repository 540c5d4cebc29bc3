"""The prompt-completion pairs of a source that stages.list lists: data to fine-tune on and to score with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.lib.sources import examples
from stages.lib.sources.examples import ExampleSource
from stages.lib.sources.kinds.registry import PROMPT_COMPLETION_KINDS, kind_of
from stages.lib.sources.source import SourceRecipe
from stages.lib.sources.split import split_of


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


def read(path: Path | str) -> PairSource:
    """Read the pairs of a source. `path`: the manifest of stages.list.

    Raises UserError if the source holds others, a file is not as it was listed, or a record is malformed.
    """
    return examples.read(path, PROMPT_COMPLETION_KINDS, "pairs", records)


def records(recipe: SourceRecipe, names: Sequence[str]) -> Iterator[Pair]:
    """Yield a Pair for each record of the files `names`, all files of the source.

    Raises UserError naming file and line of a malformed record: a model must not be trained on half of the data.
    """
    for identifier, key, prompt, completion in kind_of(recipe).pairs(recipe, names):
        yield Pair(identifier, prompt, completion, split_of(key, recipe.validation), key)
