"""Files as they lie in their store, read as the bytes that are packed in them: by gzip, zstd, bzip2, lz4, or nothing.

The name's ending says by what. Files are read as streams: memory does not grow with their size.
"""

import bz2
import contextlib
import io
import os

from stages.lib.errors import UserError
from stages.lib.sources import storage

ENDINGS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
BUFFER_BYTES = 1 << 20
LINE_BYTES = 128 << 20
"""The longest line that is read: a longer one is passed by without a place in memory."""


def is_packed(name):
    """Whether a file must be unpacked, so that it can be read from its beginning alone."""
    return os.path.splitext(name)[1] in ENDINGS


@contextlib.contextmanager
def opened(name):
    """A binary file of what a file holds. Raises UserError naming it where it is cut, damaged or cannot be read."""
    try:
        with storage.opened(name) as raw:
            if not is_packed(name):
                yield raw
                return
            with _said_as_os_errors(), _unpacked(name, raw) as unpacked:
                yield io.BufferedReader(unpacked, BUFFER_BYTES)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{name} cannot be read to its end: {reason}") from None


@contextlib.contextmanager
def _said_as_os_errors():
    """Inside, what Arrow raises of damage is an OSError, as most of it is."""
    import pyarrow

    try:
        yield
    except pyarrow.ArrowException as error:
        raise OSError(str(error).partition("\n")[0]) from None


def _unpacked(name, raw):
    import pyarrow

    if not raw.read(1):
        raise OSError("it is empty, and even nothing is some bytes when packed")
    raw.seek(0)
    codec = ENDINGS[os.path.splitext(name)[1]]
    if codec == "bz2":
        return _Bzip2(raw)
    return pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, mode="r"), codec)


class _Bzip2(io.RawIOBase):
    """What is packed by bzip2, in one stream or many. Arrow refuses an empty one among them, and bz2.BZ2File passes by
    all that follows a damaged beginning of one.
    """

    def __init__(self, raw):
        self._raw, self._stream = raw, bz2.BZ2Decompressor()

    def readable(self):
        return True

    def readinto(self, buffer):
        data = b""
        while not data:
            packed = b""
            if self._stream.eof:
                packed = self._stream.unused_data or self._raw.read(io.DEFAULT_BUFFER_SIZE)
                if not packed:
                    return 0
                self._stream = bz2.BZ2Decompressor()
            elif self._stream.needs_input:
                packed = self._raw.read(io.DEFAULT_BUFFER_SIZE)
                if not packed:
                    raise OSError("it ends within what is packed")
            data = self._stream.decompress(packed, len(buffer))
        buffer[: len(data)] = data
        return len(data)


def lines(file, span, parse=lambda _, line: line):
    """Yield (position of its first byte, what `parse` makes of position and line) of each line of a file that begins in
    a span; line ends are kept.

    A line of more than LINE_BYTES is None. One that was parsed takes no memory any more: it may have a hundred MB.
    """
    position = 0
    if span.first:
        # whether a line begins at `first` is told by the byte before
        position = file.seek(span.first - 1)
        position += _pass_by(file)
    while position in span and (line := file.readline(LINE_BYTES + 1)):
        begin, position = position, position + len(line)
        if len(line) > LINE_BYTES and not line.endswith(b"\n"):
            position += _pass_by(file)
            line = None
        else:
            line = parse(begin, line)
        yield begin, line


def _pass_by(file):
    """Read up to the end of a line; returns how many bytes that were."""
    passed = 0
    while piece := file.readline(BUFFER_BYTES):
        passed += len(piece)
        if piece.endswith(b"\n"):
            break
    return passed
