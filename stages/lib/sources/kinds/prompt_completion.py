"""The kind `prompt_completion`: records with a prompt and a completion, to fine-tune on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stages.lib.sources.kinds import example_files
from stages.lib.sources.kinds.example_files import ExampleKind

if TYPE_CHECKING:
    from stages.lib.sources.source_fields import SourceFields


class PromptCompletion(ExampleKind):
    """A pair is a line that holds a JSON object, or a row of a parquet file."""

    name = "prompt_completion"
    fields = ("prompt_field", "completion_field", "split_field", "filters")
    is_prompt_completion = True

    def pairs(self, recipe: SourceFields, names: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
        """Yield (id, split key, prompt, completion) of each record."""
        fields = (recipe.prompt_field, recipe.completion_field, recipe.split_field)
        for identifier, where, entry in example_files.records(names, fields):
            prompt = example_files.text_of(entry, recipe.prompt_field, where)
            completion = example_files.text_of(entry, recipe.completion_field, where)
            own = recipe.split_field
            key = prompt if own is None else example_files.split_key(entry, own, where)
            yield identifier, key, prompt, completion
