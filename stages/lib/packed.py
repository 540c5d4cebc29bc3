"""Files as they lie on the disk, read as the bytes that are packed in them: by gzip, zstd, bzip2 or lz4, or by nothing.

The name's ending says by what. Files are read as streams: memory does not grow with their size.
"""

import contextlib
import io
import os

from stages.lib.errors import UserError

ENDINGS = (".gz", ".zst", ".bz2", ".lz4")
BUFFER_BYTES = 1 << 20


@contextlib.contextmanager
def opened(path):
    """A binary file of what a file holds. Raises UserError naming it where it is cut, damaged or cannot be read."""
    import pyarrow

    path = os.fspath(path)
    try:
        if path.endswith(ENDINGS) and os.path.getsize(path) == 0:
            raise OSError("it is empty, and even nothing is some bytes when packed")
        with pyarrow.input_stream(path) as stream, io.BufferedReader(stream, BUFFER_BYTES) as file:
            yield file
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{path} cannot be read to its end: {reason}") from None


def read(path):
    """All bytes that a file holds."""
    with opened(path) as file:
        return file.read()
