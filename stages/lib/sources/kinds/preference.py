"""The kind `preference`: records with a prompt, a chosen and a rejected completion, for preference tuning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stages.lib.chat import messages as chat_messages
from stages.lib.chat.messages import TOOLS, Message
from stages.lib.errors import UserError
from stages.lib.sources.entries import field_of
from stages.lib.sources.kinds import example_files
from stages.lib.sources.kinds.example_files import ExampleKind, Record
from stages.lib.sources.kinds.kind import PreferenceRecord, Text

if TYPE_CHECKING:
    from stages.lib.sources.source_fields import SourceFields


class Preference(ExampleKind):
    """A preference is a line that holds a JSON object, or a row of a parquet file.

    Prompt, chosen and rejected completion are texts; then the first two are prompt-completion data, too. Or both
    completions are lists of messages, after the prompt if that is such a list, and the messages with which both begin
    are the prompt.
    """

    name = "preference"
    fields = ("prompt_field", "chosen_field", "rejected_field", "split_field", "filters")
    is_prompt_completion = True
    is_preference = True

    def preferences(self, recipe: SourceFields, names: Sequence[str]) -> Iterator[PreferenceRecord]:
        """Yield (id, split key, prompt, chosen, rejected, tools) of each record."""
        fields = _fields(recipe)
        for identifier, where, entry in _records(recipe, names):
            read = _messages if isinstance(field_of(entry, recipe.chosen_field, None), list) else _texts
            prompt, chosen, rejected = read(entry, fields, where)
            tools = chat_messages.checked_tools(entry.get(TOOLS), f"{where}: {TOOLS}") if read is _messages else None
            yield identifier, _split_key(recipe, entry, prompt, where), prompt, chosen, rejected, tools

    def pairs(self, recipe: SourceFields, names: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
        """Yield (id, split key, prompt, chosen) of each record, which must have texts."""
        fields = _fields(recipe)
        for identifier, where, entry in _records(recipe, names):
            prompt, chosen, _ = _texts(entry, fields, where)
            yield identifier, _split_key(recipe, entry, prompt, where), prompt, chosen


def _records(recipe: SourceFields, names: Sequence[str]) -> Iterator[Record]:
    prompt, *others = _fields(recipe)
    return example_files.records(names, (*others, recipe.split_field), optional=(prompt, TOOLS))


def _split_key(recipe: SourceFields, entry: dict[str, Any], prompt: Text, where: str) -> str:
    if recipe.split_field is not None:
        return example_files.split_key(entry, recipe.split_field, where)
    return prompt if isinstance(prompt, str) else chat_messages.key_of(prompt)


def _texts(entry: dict[str, Any], fields: Sequence[str], where: str) -> tuple[str, str, str]:
    prompt, chosen, rejected = (example_files.text_of(entry, field, where) for field in fields)
    return prompt, chosen, rejected


def _fields(recipe: SourceFields) -> tuple[str, str, str]:
    return recipe.prompt_field, recipe.chosen_field, recipe.rejected_field


def _messages(
    entry: dict[str, Any], fields: Sequence[str], where: str
) -> tuple[list[Message], list[Message], list[Message]]:
    """Return the messages of the prompt, and those of both completions after it.

    Raises UserError unless both end with a turn of the assistant.
    """
    prompt_field, *others = fields
    given = field_of(entry, prompt_field, None)
    before = given if isinstance(given, list) else []
    both = []
    for field in others:
        value = example_files.value_of(entry, field, where)
        turns = [*before, *value] if isinstance(value, list) else value
        both.append(chat_messages.checked(turns, f"{where}: {field}"))
        if both[-1][-1]["role"] != chat_messages.ASSISTANT:
            raise UserError(f"{where}: {field} must end with a turn of the assistant, got {both[-1][-1]['role']}")
    shortest = min(map(len, both)) - 1
    first = next((number for number in range(shortest) if both[0][number] != both[1][number]), shortest)
    return both[0][:first], both[0][first:], both[1][first:]
