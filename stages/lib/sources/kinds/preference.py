"""The kind `preference`: JSON lines with a prompt, a chosen and a rejected completion, for preference tuning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stages.lib.errors import UserError
from stages.lib.sources.kinds import json_lines
from stages.lib.sources.kinds.kind import JSON_LINES_ENDINGS, SourceKind
from stages.lib.sources.spans import Span

if TYPE_CHECKING:
    from stages.lib.sources.source import SourceRecipe


class Preference(SourceKind):
    """A preference is a line that holds a JSON object. Prompt and chosen completion are prompt-completion data, too."""

    name = "preference"
    fields = ("prompt_field", "chosen_field", "rejected_field", "split_field")
    endings = JSON_LINES_ENDINGS
    has_json_lines = True
    is_prompt_completion = True
    is_preference = True

    def preferences(self, recipe: SourceRecipe, names: Sequence[str]) -> Iterator[tuple[str, str, str, str, str]]:
        """Yield (id, split key, prompt, chosen, rejected) of each line that is not blank."""
        return (found for name in names for found in _of_file(recipe, name))

    def pairs(self, recipe: SourceRecipe, names: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
        """Yield (id, split key, prompt, chosen) of each line that is not blank."""
        return (found[:4] for found in self.preferences(recipe, names))


def _of_file(recipe: SourceRecipe, name: str) -> Iterator[tuple[str, str, str, str, str]]:
    for identifier, record in json_lines.records(Span(name)):
        where = f"{name}, line {identifier.rpartition(':')[2]}"
        if isinstance(record, str):
            raise UserError(f"{where} must be a JSON object: {record}")
        fields = (recipe.prompt_field, recipe.chosen_field, recipe.rejected_field)
        prompt, chosen, rejected = (_text(record, field, where) for field in fields)
        key = prompt if recipe.split_field is None else _key(record, recipe.split_field, where)
        yield identifier, key, prompt, chosen, rejected


def _text(record: dict[str, Any], field: str, where: str) -> str:
    if field not in record:
        known = ", ".join(record) or "none"
        raise UserError(f"{where} must have the field {field}, got {known:.100}")
    text = record[field]
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{where} must have text in the field {field}, got {text!r:.60}")
    return text


def _key(record: dict[str, Any], field: str, where: str) -> str:
    value = record.get(field)
    if not isinstance(value, (str, int)):  # null as well: it would put all these records into one split
        raise UserError(f"{where} must have text or a whole number in the field {field}, got {value!r:.60}")
    return str(value)
