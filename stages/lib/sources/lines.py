"""The lines of a file that begin in a span of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from stages.lib.sources import compressed
from stages.lib.sources.spans import Span

T = TypeVar("T")

LINE_BYTES = 128 << 20
"""The longest line that is read: a longer one is skipped and takes no memory."""

TOO_LONG = f"a line longer than {LINE_BYTES >> 20} MiB"


def lines_of(file: BinaryIO, span: Span, parse: Callable[[int, bytes], T]) -> Iterator[tuple[int, T | None]]:
    """Yield (position of its first byte, parse(position, line)) of each line of an open file that begins in a span.

    Line ends are kept. A line of more than LINE_BYTES is None. No line is held after `parse`: it may have 100 MB.
    """
    position = first_line(file, span.first)
    while position in span:
        line, skipped = rest_of_line(file, 0)
        if not line and not skipped:
            return
        begin, position = position, position + len(line) + skipped
        parsed = None if skipped else parse(begin, line)
        del line
        yield begin, parsed
        del parsed  # before the next line is parsed


def first_line(file: BinaryIO, first: int) -> int:
    """Move an open file to the first line that begins at `first` or after it; return its position."""
    if not first:
        return 0
    position = file.seek(first - 1)  # the byte before `first` tells if a line begins there
    return position + _skip_line(file)


def rest_of_line(file: BinaryIO, read: int) -> tuple[bytes, int]:
    """Return (rest, 0) of a line of which `read` bytes are read; (b"", number of bytes) if it is too long."""
    rest = file.readline(max(LINE_BYTES + 1 - read, 1))
    if read + len(rest) <= LINE_BYTES or rest.endswith(b"\n"):
        return rest, 0
    return b"", len(rest) + _skip_line(file)


def _skip_line(file: BinaryIO) -> int:
    """Read up to the end of a line; return the number of bytes."""
    skipped = 0
    while segment := file.readline(compressed.BUFFER_BYTES):
        skipped += len(segment)
        if segment.endswith(b"\n"):
            break
    return skipped


def extent(span: Span) -> tuple[int, int | None]:
    """Return the bytes [first, end) of the lines that begin in a span; `end` is None for the file's end."""
    with compressed.open_binary(span.name) as file:
        bounds = [
            None if bound is None else next(lines_of(file, Span(span.name, bound), _length), (None,))[0]
            for bound in (span.first, span.end)
        ]
    return bounds[0] or 0, bounds[1]


def _length(_: int, line: bytes) -> int:
    return len(line)
