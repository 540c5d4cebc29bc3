"""The kind `jsonl`, and the records of JSON lines files."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stages.lib.errors import UserError
from stages.lib.sources import reading
from stages.lib.sources.kinds.kind import DOCUMENT_FIELDS, JSON_LINES_ENDINGS, SourceKind
from stages.lib.sources.spans import Span

if TYPE_CHECKING:
    from stages.lib.sources.kinds.kind import SourceFields


MAX_BLANK = 1_000_000
"""Blank lines in a row: a compressed file of megabytes can hold so many that reading them takes days."""

BLANK = ""  # in place of a record: a blank line does not count as one


def records(span: Span) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Yield (id, mapping) of each line that is not blank; a malformed line is its reason, a str.

    Raises UserError if more than MAX_BLANK lines in a row are blank.
    """
    blank = 0
    with reading.open_binary(span.name) as file:
        for number, (position, entry) in enumerate(reading.lines_of(file, span, _parsed), 1):
            if entry == BLANK:
                blank += 1
                if blank > MAX_BLANK:
                    raise UserError(f"{span.name} must have at most {MAX_BLANK:,} blank lines in a row, found more")
            else:
                blank = 0
                identifier = f"{span.name}:{number}" if span.end is None else f"{span.name}@{position}"
                yield identifier, reading.TOO_LONG if entry is None else entry


def parse(line: bytes) -> Any:
    """Return the JSON value of a line, which may hold NaN and Infinity, as in the lines that Python and pandas write.

    Raises ValueError for what is not JSON, invalid UTF-8 or a lone surrogate.
    """
    import orjson

    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if b"NaN" not in line and b"Infinity" not in line:
            raise
        try:
            value = json.loads(line.decode())
            json.dumps(value, ensure_ascii=False).encode()  # fails for a lone surrogate
        except (ValueError, RecursionError):
            raise error from None
        return value


def _parsed(position: int, line: bytes) -> dict[str, Any] | str:
    """Return a line as a mapping; the reason if it is malformed; or BLANK."""
    if line.isspace():
        return BLANK
    try:
        entry = parse(line.removeprefix(codecs.BOM_UTF8) if position == 0 else line)
    except ValueError:
        return "not JSON"
    return entry if isinstance(entry, dict) else {}


class Jsonl(SourceKind):
    """A document is a line that holds a JSON object."""

    name = "jsonl"
    fields = ("text_field", "id_field", "split_field", *DOCUMENT_FIELDS)
    endings = JSON_LINES_ENDINGS
    is_readable = True
    has_json_lines = True

    def can_be_cut(self, name: str) -> bool:
        """Return True if a file is not compressed."""
        return not reading.is_compressed(name)

    def cut_positions(self, name: str, size: int) -> list[int] | None:
        """Return None, any byte, if the file is not compressed."""
        return None if self.can_be_cut(name) else [0]

    def extent(self, span: Span) -> tuple[int, int | None]:
        """Return the bytes of the lines that begin in a span."""
        return (0, None) if span.end is None else reading.extent(span)

    def records(self, recipe: SourceFields, span: Span) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield (id, mapping) of each line that is not blank."""
        return records(span)
