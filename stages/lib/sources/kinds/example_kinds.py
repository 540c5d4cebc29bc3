"""The kinds prompt_completion, chat and preference: examples to fine-tune on.

A file has lines of JSON, or is a parquet file with rows.

A malformed record is a UserError that names file and line: a model must not be trained on half of the data.
"""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stages.lib.chat import messages as chat_messages
from stages.lib.chat.messages import NOT_READ, TOOLS, Message
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.sources import reading
from stages.lib.sources.entries import field_of
from stages.lib.sources.kinds import lines, tables
from stages.lib.sources.kinds.kind import ConversationRecord, PreferenceRecord, SourceFields, Text
from stages.lib.sources.kinds.tables import PARQUET, LinesOrRows
from stages.lib.sources.spans import Span

MAX_DEPTH = 200  # Python can neither print nor compare nor render what has about a thousand

Record = tuple[str, str, dict[str, Any]]
"""(id, place for messages, fields)"""


def records(names: Sequence[str], fields: Sequence[str | None], optional: Sequence[str] = ()) -> Iterator[Record]:
    """Yield the records of files. `fields`: those that are read, None for one that is not set.

    `optional`: further ones, which a file of columns need not have.
    """
    for name in names:
        yield from _rows(name, fields, optional) if LinesOrRows.is_table(name) else _lines(name, fields)


def chat_records(names: Sequence[str], fields: Sequence[str | None], optional: Sequence[str] = ()) -> Iterator[Record]:
    """Yield the records of files with TOOLS; arguments as of `records`. Log how many have one of NOT_READ."""
    unread = [name for name in NOT_READ if name not in (*fields, *optional)]
    counts: Counter[str] = Counter()
    for record in records(names, fields, (*optional, TOOLS, *unread)):
        counts.update(name for name in unread if record[2].get(name))
        yield record
    if counts:
        said = ", ".join(f"{name} ({count:,})" for name, count in sorted(counts.items()))
        logger.warning("fields of records that do not reach the model: %s", said)


def _rows(name: str, fields: Sequence[str | None], optional: Sequence[str]) -> Iterator[Record]:
    if optional:
        schema = PARQUET.schema(name)[0]
        fields = [*fields, *(field for field in optional if tables.has_column(schema, field))]
    for identifier, row in PARQUET.rows(fields, Span(name)):
        where = f"{name}, row {int(identifier.rpartition(':')[2]) + 1}"
        if isinstance(row, str):
            raise UserError(f"{where} cannot be read: it is {row}")
        yield identifier, where, row


def _lines(name: str, fields: Sequence[str | None]) -> Iterator[Record]:
    first = next(field for field in fields if field is not None)
    with reading.open_binary(name) as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if not text.strip():
                continue
            where = f"{name}, line {number}"
            try:
                entry = lines.parse(text)
            except ValueError as error:
                raise UserError(f"{where} must be a JSON object: {error}") from None
            if _is_deep(entry):
                raise UserError(f"{where} must have at most {MAX_DEPTH} levels of lists and mappings, got more")
            if not isinstance(entry, dict):
                raise UserError(f"{where} must be a JSON object with the field {first}, got {entry!r:.60}")
            yield f"{name}:{number}", where, entry


def _is_deep(entry: Any) -> bool:
    level = [entry] if isinstance(entry, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for values in inner for value in values if isinstance(value, (dict, list))]
        if not level:
            return False
    return True


def value_of(entry: dict[str, Any], field: str, where: str) -> Any:
    """Return a field of a record. Raises UserError if it is missing."""
    try:
        return field_of(entry, field)
    except KeyError:
        known = ", ".join(map(str, entry)) or "none"
        raise UserError(f"{where} must have the field {field}, got {known:.100}") from None


def text_of(entry: dict[str, Any], field: str, where: str) -> str:
    """Return the text of a field. Raises UserError if it is missing, blank or no text."""
    text = value_of(entry, field, where)
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{where} must have text in the field {field}, got {text!r:.60}")
    return text


def split_key(entry: dict[str, Any], field: str, where: str) -> str:
    """Return the split key of a record. Raises UserError unless it is text or a whole number."""
    value = field_of(entry, field, None)
    if not isinstance(value, (str, int)):  # null as well: it would put all these records into one split
        raise UserError(f"{where} must have text or a whole number in the field {field}, got {value!r:.60}")
    return str(value)


class PromptCompletion(LinesOrRows):
    """A pair is a line that holds a JSON object, or a row of a parquet file."""

    name = "prompt_completion"
    fields = ("prompt_field", "completion_field", "split_field", "filters")
    yields = ("pairs",)

    def pairs(self, recipe: SourceFields, names: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
        """Yield (id, split key, prompt, completion) of each record."""
        fields = (recipe.prompt_field, recipe.completion_field, recipe.split_field)
        for identifier, where, entry in records(names, fields):
            prompt = text_of(entry, recipe.prompt_field, where)
            completion = text_of(entry, recipe.completion_field, where)
            own = recipe.split_field
            key = prompt if own is None else split_key(entry, own, where)
            yield identifier, key, prompt, completion


SHAREGPT = "conversations"
"""The field of the turns in ShareGPT's files."""


class Chat(LinesOrRows):
    """A conversation is a line that holds a JSON object, or a row of a parquet file."""

    name = "chat"
    fields = ("messages_field", "split_field", "filters")
    yields = ("conversations",)

    def conversations(self, recipe: SourceFields, names: Sequence[str]) -> Iterator[ConversationRecord]:
        """Yield (id, split key, messages, tools) of each record."""
        field, own = recipe.messages_field, recipe.split_field
        for identifier, where, entry in chat_records(names, (field, own)):
            value = field_of(entry, field, None)
            given = entry.get(SHAREGPT) if value is None else value
            if isinstance(given, (list, tuple)) and given and isinstance(given[0], Mapping) and "from" in given[0]:
                raise UserError(
                    f"{where} has turns in ShareGPT's form, with from and value: rewrite each as role (human is user, "
                    f"gpt is assistant) and content, in {field}, or in another field that messages_field names"
                )
            found = chat_messages.checked(value_of(entry, field, where), f"{where}: {field}")
            key = chat_messages.prompt_of(found) if own is None else split_key(entry, own, where)
            yield identifier, key, found, chat_messages.checked_tools(entry.get(TOOLS), f"{where}: {TOOLS}")


class Preference(LinesOrRows):
    """A preference is a line that holds a JSON object, or a row of a parquet file.

    Prompt, chosen and rejected completion are texts; then the first two are prompt-completion data, too. Or both
    completions are lists of messages, after the prompt if that is such a list, and the messages with which both begin
    are the prompt.
    """

    name = "preference"
    fields = ("prompt_field", "chosen_field", "rejected_field", "split_field", "filters")
    yields = ("preferences", "pairs")

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
    return chat_records(names, (*others, recipe.split_field), optional=(prompt,))


def _split_key(recipe: SourceFields, entry: dict[str, Any], prompt: Text, where: str) -> str:
    if recipe.split_field is not None:
        return split_key(entry, recipe.split_field, where)
    return prompt if isinstance(prompt, str) else chat_messages.key_of(prompt)


def _texts(entry: dict[str, Any], fields: Sequence[str], where: str) -> tuple[str, str, str]:
    prompt, chosen, rejected = (text_of(entry, field, where) for field in fields)
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
        value = value_of(entry, field, where)
        turns = [*before, *value] if isinstance(value, list) else value
        both.append(chat_messages.checked(turns, f"{where}: {field}"))
        if both[-1][-1]["role"] != chat_messages.ASSISTANT:
            raise UserError(f"{where}: {field} must end with a turn of the assistant, got {both[-1][-1]['role']}")
    shortest = min(map(len, both)) - 1
    first = next((number for number in range(shortest) if both[0][number] != both[1][number]), shortest)
    return both[0][:first], both[0][first:], both[1][first:]
