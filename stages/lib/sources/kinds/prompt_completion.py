"""The kind `prompt_completion`: JSON lines with a prompt and a completion, to fine-tune on."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stages.lib.errors import UserError
from stages.lib.sources import compressed
from stages.lib.sources.kinds.kind import JSON_LINES_ENDINGS, SourceKind

if TYPE_CHECKING:
    from stages.lib.sources.source import SourceRecipe


class PromptCompletion(SourceKind):
    """A pair is a line that holds a JSON object."""

    name = "prompt_completion"
    fields = ("prompt_field", "completion_field", "split_field")
    endings = JSON_LINES_ENDINGS
    has_json_lines = True
    is_prompt_completion = True

    def pairs(self, recipe: SourceRecipe, names: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
        """Yield (id, split key, prompt, completion) of each line that is not blank."""
        return (pair for name in names for pair in _pairs_of_file(recipe, name))


def _pairs_of_file(recipe: SourceRecipe, name: str) -> Iterator[tuple[str, str, str, str]]:
    import orjson

    with compressed.open_binary(name) as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if not text.strip():
                continue
            where = f"{name}, line {number}"
            try:
                entry = orjson.loads(text)
            except orjson.JSONDecodeError as error:  # a lone surrogate and invalid UTF-8 as well
                raise UserError(f"{where} must be a JSON object: {error}") from None
            prompt = _text(entry, recipe.prompt_field, where)
            completion = _text(entry, recipe.completion_field, where)
            key = prompt if recipe.split_field is None else _key(entry, recipe.split_field, where)
            yield f"{name}:{number}", key, prompt, completion


def _text(entry: Any, field: str, where: str) -> str:
    if not isinstance(entry, dict):
        raise UserError(f"{where} must be a JSON object with the field {field}, got {entry!r:.60}")
    if field not in entry:
        known = ", ".join(map(str, entry)) or "none"
        raise UserError(f"{where} must have the field {field}, got {known:.100}")
    text = entry[field]
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{where} must have text in the field {field}, got {text!r:.60}")
    return text


def _key(entry: dict[str, Any], field: str, where: str) -> str:
    value = entry.get(field)
    if not isinstance(value, (str, int)):  # null as well: it would put all these records into one split
        raise UserError(f"{where} must have text or a whole number in the field {field}, got {value!r:.60}")
    return str(value)
