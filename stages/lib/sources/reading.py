"""Files read as streams of decompressed bytes (gzip, zstd, bzip2, lz4, or not compressed), and of lines.

The name's ending tells the codec. Memory does not grow with the size of a file.
"""

from __future__ import annotations

import bz2
import contextlib
import io
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from stages.lib.errors import UserError
from stages.lib.sources import storage
from stages.lib.sources.spans import Span

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


T = TypeVar("T")

LINE_BYTES = 128 << 20
"""The longest line that is read: a longer one is skipped and takes no memory."""

TOO_LONG = f"a line longer than {LINE_BYTES >> 20} MiB"

ENDINGS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
BUFFER_BYTES = 1 << 20


def is_compressed(name: str) -> bool:
    """Return True if a file is compressed, so that it can be read from its beginning only."""
    return _ending(name) in ENDINGS


def _ending(name: str) -> str:
    return os.path.splitext(storage.without_query(name))[1]


@contextlib.contextmanager
def open_binary(name: str) -> Iterator[BinaryIO]:
    """Open a file as its decompressed bytes. Raises UserError naming it if it is cut, damaged or cannot be read."""
    try:
        with storage.open_binary(name) as raw:
            if not is_compressed(name):
                yield raw
                return
            with _arrow_errors_as_os_errors(), _decompressed(name, raw) as decompressed:
                yield io.BufferedReader(decompressed, BUFFER_BYTES)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{name} cannot be read to its end: {reason}") from None


@contextlib.contextmanager
def _arrow_errors_as_os_errors() -> Iterator[None]:
    """Raise Arrow's errors on damaged data as OSError, which most of them are."""
    import pyarrow

    try:
        yield
    except pyarrow.ArrowException as error:
        raise OSError(str(error).partition("\n")[0]) from None


def _decompressed(name: str, raw: BinaryIO) -> io.RawIOBase:
    import pyarrow

    if not raw.read(1):
        raise OSError("the file is empty, and a compressed file has at least a header")
    raw.seek(0)
    codec = ENDINGS[_ending(name)]
    if codec == "bz2":
        return _Bzip2(raw)
    return pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, mode="r"), codec)


class _Bzip2(io.RawIOBase):
    """The bytes compressed by bzip2, in one stream or many.

    Arrow refuses an empty stream among them, and bz2.BZ2File skips everything after a damaged header of one.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self._stream = raw, bz2.BZ2Decompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view, data = memoryview(buffer), b""
        while not data:
            compressed = b""
            if self._stream.eof:
                compressed = self._stream.unused_data or self._raw.read(io.DEFAULT_BUFFER_SIZE)
                if not compressed:
                    return 0
                self._stream = bz2.BZ2Decompressor()
            elif self._stream.needs_input:
                compressed = self._raw.read(io.DEFAULT_BUFFER_SIZE)
                if not compressed:
                    raise OSError("the file ends within the compressed data")
            data = self._stream.decompress(compressed, len(view))
        view[: len(data)] = data
        return len(data)


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
    while segment := file.readline(BUFFER_BYTES):
        skipped += len(segment)
        if segment.endswith(b"\n"):
            break
    return skipped


def extent(span: Span) -> tuple[int, int | None]:
    """Return the bytes [first, end) of the lines that begin in a span; `end` is None for the file's end."""
    with open_binary(span.name) as file:
        bounds = [
            None
            if bound is None
            else next(lines_of(file, Span(span.name, bound), lambda _, line: len(line)), (None,))[0]
            for bound in (span.first, span.end)
        ]
    return bounds[0] or 0, bounds[1]
