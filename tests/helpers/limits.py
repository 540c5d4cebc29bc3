"""Limits of the process, for tests of what happens without room."""

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
