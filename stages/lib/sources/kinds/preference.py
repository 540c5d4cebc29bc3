"""The kind `preference`: records with a prompt, a chosen and a rejected completion, for preference tuning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stages.lib.sources.kinds import example_files
from stages.lib.sources.kinds.example_files import ExampleKind

if TYPE_CHECKING:
    from stages.lib.sources.source import SourceRecipe


class Preference(ExampleKind):
    """A preference is a line that holds a JSON object, or a row of a parquet file.

    Prompt and chosen completion are prompt-completion data, too.
    """

    name = "preference"
    fields = ("prompt_field", "chosen_field", "rejected_field", "split_field", "filters")
    is_prompt_completion = True
    is_preference = True

    def preferences(self, recipe: SourceRecipe, names: Sequence[str]) -> Iterator[tuple[str, str, str, str, str]]:
        """Yield (id, split key, prompt, chosen, rejected) of each record."""
        fields, own = (recipe.prompt_field, recipe.chosen_field, recipe.rejected_field), recipe.split_field
        for identifier, where, entry in example_files.records(names, (*fields, own)):
            prompt, chosen, rejected = (example_files.text_of(entry, field, where) for field in fields)
            key = prompt if own is None else example_files.split_key(entry, own, where)
            yield identifier, key, prompt, chosen, rejected

    def pairs(self, recipe: SourceRecipe, names: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
        """Yield (id, split key, prompt, chosen) of each record."""
        return (found[:4] for found in self.preferences(recipe, names))
