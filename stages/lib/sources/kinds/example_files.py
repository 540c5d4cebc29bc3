"""Files of examples to fine-tune on: lines of JSON, or rows of parquet files.

A malformed record is a UserError that names file and line: a model must not be trained on half of the data.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stages.lib.errors import UserError
from stages.lib.sources import compressed, storage
from stages.lib.sources.entries import field_of
from stages.lib.sources.kinds import json_lines, tables
from stages.lib.sources.kinds.kind import JSON_LINES_ENDINGS, SourceKind
from stages.lib.sources.kinds.parquet import Parquet
from stages.lib.sources.spans import Span

if TYPE_CHECKING:
    import pyarrow

PARQUET = Parquet()
ENDINGS = JSON_LINES_ENDINGS + PARQUET.endings

MAX_DEPTH = 200  # Python can neither print nor compare nor render what has about a thousand

Record = tuple[str, str, dict[str, Any]]
"""(id, place for messages, fields)"""


class ExampleKind(SourceKind):
    """A kind whose files are JSON lines or parquet, by their endings."""

    endings = ENDINGS
    has_json_lines = True

    def schema(self, name: str) -> tuple[pyarrow.Schema, list[Any] | None]:
        """Return (Arrow schema, values of the first row or None without one) of a parquet file."""
        return PARQUET.schema(name)


def records(names: Sequence[str], fields: Sequence[str | None], optional: Sequence[str] = ()) -> Iterator[Record]:
    """Yield the records of files. `fields`: those that are read, None for one that is not set.

    `optional`: further ones, which a file of columns need not have.
    """
    for name in names:
        is_table = storage.without_query(name).endswith(PARQUET.endings)
        yield from _rows(name, fields, optional) if is_table else _lines(name, fields)


def _rows(name: str, fields: Sequence[str | None], optional: Sequence[str]) -> Iterator[Record]:
    if optional:
        schema = PARQUET.schema(name)[0]
        fields = [*fields, *(field for field in optional if tables.has_column(schema, field))]
    for identifier, row in PARQUET.rows(fields, Span(name)):
        where = f"{name}, row {int(identifier.rpartition(':')[2]) + 1}"
        if isinstance(row, str):
            raise UserError(f"{where} must be readable, and is {row}")
        yield identifier, where, row


def _lines(name: str, fields: Sequence[str | None]) -> Iterator[Record]:
    first = next(field for field in fields if field is not None)
    with compressed.open_binary(name) as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if not text.strip():
                continue
            where = f"{name}, line {number}"
            try:
                entry = json_lines.parse(text)
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
