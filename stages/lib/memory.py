"""Memory: errors that mean that it ran out, as one sentence, and its return to the system."""

import ctypes
import errno
import re
import resource

from stages.lib.space import amount

MESSAGES = (
    *("DefaultCPUAllocator", "CUDA out of memory", "std::bad_alloc", "Cannot allocate memory"),
    *("failed to map segment from shared object", "can't start new thread"),
)
"""Parts of messages of torch, C++, the system, the dynamic linker and Python's threads."""

REQUEST = re.compile(r"allocate (\d+) bytes|allocate ([\d.]+ ?[KMGT]i?B)")


def reason(error: BaseException) -> str | None:
    """Return a sentence if an error means that memory ran out, with what was requested and used; None for another."""
    text = " ".join(str(error).split())
    known = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    if not known and not any(message in text for message in MESSAGES):
        return None
    request = REQUEST.search(text)
    requested = "a request" if request is None else f"a request of {request[2] or amount(int(request[1]))}"
    peak = amount(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    allowed = "" if limit == resource.RLIM_INFINITY else f", and `ulimit -v` allows {amount(limit)} of addresses"
    return f"out of memory: {requested} failed; the process used up to {peak}{allowed}"


def trim() -> None:
    """Return freed memory to the system, where the C library is glibc.

    It keeps blocks of up to 32 MiB for later ones, which often do not fit: a loop over layers grew by the weights of a
    layer in each turn, although they were freed.
    """
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is not None:
        release(0)
