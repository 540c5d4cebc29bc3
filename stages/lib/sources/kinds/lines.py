"""The kinds `jsonl` and `text`, whose files are cut at line ends, and the records of JSON lines files."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stages.lib.errors import UserError
from stages.lib.sources import reading
from stages.lib.sources.entries import Document, Malformed
from stages.lib.sources.kinds.kind import DOCUMENT_FIELDS, JSON_LINES_ENDINGS, SourceKind, document_of_text
from stages.lib.sources.spans import WHOLE_BYTES, Span

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


SEGMENT_BYTES = WHOLE_BYTES
"""A text of more bytes is cut into documents: each begins with the first line after a multiple of it."""


class Text(SourceKind):
    """A document is a file, or a segment of a large file."""

    name = "text"
    is_readable = True

    def can_be_cut(self, name: str) -> bool:
        """Return True if a file is not compressed."""
        return not reading.is_compressed(name)

    def cut_positions(self, name: str, size: int) -> list[int]:
        """Return the positions of the segments."""
        return list(range(0, size, SEGMENT_BYTES)) if self.can_be_cut(name) else [0]

    def extent(self, span: Span) -> tuple[int, int | None]:
        """Return the bytes of the segments that begin in a span."""
        return (0, None) if span.end is None else reading.extent(_of_segments(span))

    def records(self, recipe: SourceFields, span: Span) -> Iterator[tuple[str, bytes | str]]:
        """Yield (id, text as bytes): one record, or one for each segment of a large file."""
        if span.end is None:
            with reading.open_binary(span.name) as file:
                text = file.read(SEGMENT_BYTES + 1)
            if len(text) <= SEGMENT_BYTES:
                yield span.name, text
                return
        yield from _segments(span)

    def document(self, recipe: SourceFields, identifier: str, record: bytes) -> Document | Malformed:
        """Return the document of a text as bytes."""
        return document_of_text(recipe, identifier, record)


def _segments(span: Span) -> Iterator[tuple[str, bytes | str]]:
    """Yield (id, bytes) of the segments that begin in a span; of a line that is too long, (id, reason).

    A segment is read in one piece: the cost is per byte, also where every line is empty.
    """
    whole = _of_segments(span)
    with reading.open_binary(span.name) as file:
        position = reading.first_line(file, whole.first)
        while position in whole:
            number = position // SEGMENT_BYTES
            data = file.read((number + 1) * SEGMENT_BYTES - position)
            if not data:
                return
            last_line = data.rfind(b"\n") + 1
            rest, skipped = b"", 0
            if last_line < len(data):
                rest, skipped = reading.rest_of_line(file, len(data) - last_line)
            begin, position = position, position + len(data) + len(rest) + skipped
            if skipped:
                yield f"{span.name}@{begin + last_line}", reading.TOO_LONG
                data, rest = data[:last_line], b""
            if data:
                yield f"{span.name}#{number}", data + rest


def _of_segments(span: Span) -> Span:
    """Return the span of the segments that begin in a span."""
    first = -(-span.first // SEGMENT_BYTES) * SEGMENT_BYTES
    end = span.end and -(-span.end // SEGMENT_BYTES) * SEGMENT_BYTES
    return Span(span.name, first, end)
