"""The kind `text`: plain text files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stages.lib.sources import reading
from stages.lib.sources.entries import Document, Malformed
from stages.lib.sources.kinds.kind import SourceKind, document_of_text
from stages.lib.sources.spans import WHOLE_BYTES, Span

if TYPE_CHECKING:
    from stages.lib.sources.kinds.kind import SourceFields

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
