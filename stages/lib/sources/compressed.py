"""Files read as the bytes that are compressed in them: by gzip, zstd, bzip2, lz4, or not at all.

The name's ending tells the codec. Files are read as streams: memory does not grow with their size.
"""

from __future__ import annotations

import bz2
import contextlib
import io
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from stages.lib.errors import UserError
from stages.lib.sources import storage

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

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
