"""Faults of a disk: no room for files of a size, and bits that flip."""

import contextlib
import resource


@contextlib.contextmanager
def files_of_at_most(num_bytes):
    """Behave like a full disk: a longer write fails with an OSError."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def flip_bit(path, at=None):
    """Flip a bit of the byte `at`, or of the one in the middle; a second call undoes the first."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)
