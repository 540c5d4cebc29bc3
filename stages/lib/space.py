"""Disk space, checked before the work so that a job does not fail after hours; memory that ran out, and its return."""

import contextlib
import ctypes
import errno
import os
import re
import resource
import tempfile
from pathlib import Path

from stages.lib import files
from stages.lib.errors import UserError


def require(directory: Path | str, num_bytes: int, what: str, num_files: int = 1) -> None:
    """Raise UserError if `what`, `num_bytes` in `num_files` files of about one size, cannot be written now.

    Checks in this order: free space of the file system, the process' limit on the size of a file (`ulimit -f`), and the
    file system itself, by reserving the bytes in nameless temporary files: only the last sees a quota. A file system
    that cannot reserve passes. One process checks for all ranks of a shared file system. Raises UserError also if the
    directory is missing or cannot be written. The result holds until somebody else writes.
    """
    directory = Path(directory)
    size = -(-num_bytes // num_files)
    try:
        system = os.statvfs(directory)
        free = system.f_bavail * system.f_frsize
        if system.f_blocks and num_bytes > free:  # 0 blocks in all: a file system that does not report its size
            raise UserError(
                f"{what} needs {amount(num_bytes)} in {directory}, whose file system has {amount(free)} free"
            )
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit != resource.RLIM_INFINITY and size > limit:
            raise UserError(
                f"{what} needs files of {amount(size)} in {directory}, but `ulimit -f` allows {amount(limit)} per file"
            )
        with contextlib.ExitStack() as opened:
            for _ in range(num_files):
                file = opened.enter_context(tempfile.TemporaryFile(dir=directory))  # nameless: a kill leaves nothing
                error = _allocate(file.fileno(), size)
                if error in files.FULL:
                    raise UserError(
                        f"{what} needs {amount(num_bytes)} in {directory}, which its file system refuses: "
                        f"{os.strerror(error)}"
                    )
    except OSError as error:
        raise UserError(f"{directory} must be a directory that can be written: {error.strerror}") from None


def _allocate(descriptor: int, num_bytes: int) -> int:
    """Reserve bytes by fallocate(2); return the errno, 0 on success.

    Not os.posix_fallocate: if a file system cannot reserve, that writes every block.
    """
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if fallocate is None or num_bytes == 0:  # not on macOS; 0 bytes would be EINVAL
        return 0
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    while fallocate(descriptor, 0, 0, num_bytes):
        if ctypes.get_errno() != errno.EINTR:
            return ctypes.get_errno()
    return 0


def amount(num_bytes: float) -> str:
    """Format a number of bytes: 12.3 GB, powers of 1,000."""
    for exponent, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if num_bytes >= 10**exponent:
            return f"{num_bytes / 10**exponent:.1f} {unit}"
    return f"{num_bytes:,.0f} byte{'' if num_bytes == 1 else 's'}"


OUT_OF_MEMORY = (
    *("DefaultCPUAllocator", "CUDA out of memory", "std::bad_alloc", "Cannot allocate memory"),
    *("failed to map segment from shared object", "can't start new thread"),
)
"""Parts of messages of torch, C++, the system, the dynamic linker and Python's threads."""

NO_THREAD = os.strerror(errno.EAGAIN)
"""The whole message of a RuntimeError of a C++ library that cannot start a thread, whose stack needs memory."""

REQUESTED_BYTES = re.compile(r"allocate (\d+) bytes|allocate ([\d.]+ ?[KMGT]i?B)")


def out_of_memory(error: BaseException) -> str | None:
    """Return a sentence if an error means that memory ran out, with what was requested and used; None for another."""
    text = " ".join(str(error).split())
    known = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    known = known or (isinstance(error, RuntimeError) and text == NO_THREAD)
    if not known and not any(message in text for message in OUT_OF_MEMORY):
        return None
    request = REQUESTED_BYTES.search(text)
    requested = "a request" if request is None else f"a request of {request[2] or amount(int(request[1]))}"
    peak = amount(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    allowed = "" if limit == resource.RLIM_INFINITY else f", and `ulimit -v` allows {amount(limit)} of addresses"
    return f"out of memory: {requested} failed; the process used up to {peak}{allowed}"


def trim_memory() -> None:
    """Return freed memory to the system, where the C library is glibc.

    It keeps blocks of up to 32 MiB for later ones, which often do not fit: a loop over layers grew by the weights of a
    layer in each turn, although they were freed.
    """
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is not None:
        release(0)
