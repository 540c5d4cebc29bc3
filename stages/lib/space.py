"""Whether a file system has room for what shall be written: asked before the work, not found out after hours of it."""

import contextlib
import ctypes
import errno
import os
import resource
import tempfile
from pathlib import Path

from stages.lib.errors import UserError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def require(directory, num_bytes, what, num_files=1):
    """Raise UserError when `what`, `num_bytes` in `num_files` files of about one size, cannot be written now.

    Asks in this order: free space of the file system, the process' limit on the size of a file (`ulimit -f`), and the
    file system itself, by reserving the bytes in nameless temporary files. Only the last sees a quota. A file system
    that reserves nothing is believed. One process asks for all ranks of a shared file system. Raises UserError also
    where the directory is missing or cannot be written. What is promised holds until somebody else writes.
    """
    directory = Path(directory)
    size = -(-num_bytes // num_files)
    try:
        _check_free(directory, num_bytes, what)
        _check_file_size(directory, size, what)
        _reserve(directory, [size] * num_files, f"{what} needs {amount(num_bytes)} in {directory}")
    except OSError as error:
        raise UserError(f"{directory} must be a directory that can be written: {error.strerror}") from None


def _check_free(directory, num_bytes, what):
    system = os.statvfs(directory)
    free = system.f_bavail * system.f_frsize
    if system.f_blocks and num_bytes > free:  # 0 blocks in all: a file system that does not say
        raise UserError(f"{what} needs {amount(num_bytes)} in {directory}, whose file system has {amount(free)} free")


def _check_file_size(directory, num_bytes, what):
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and num_bytes > limit:
        raise UserError(
            f"{what} needs files of {amount(num_bytes)} in {directory}, but `ulimit -f` allows {amount(limit)} a file"
        )


def _reserve(directory, sizes, need):
    with contextlib.ExitStack() as files:
        for size in sizes:
            file = files.enter_context(tempfile.TemporaryFile(dir=directory))  # nameless: a kill leaves nothing
            error = _allocate(file.fileno(), size)
            if error in FULL:
                raise UserError(f"{need}, which its file system refuses: {os.strerror(error)}")


def _allocate(descriptor, num_bytes):
    """Reserve bytes by fallocate(2); returns the errno, 0 when it went well.

    Not os.posix_fallocate: where a file system cannot reserve, that one writes every block.
    """
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if fallocate is None or num_bytes == 0:  # not on macOS; 0 bytes would be EINVAL
        return 0
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    while fallocate(descriptor, 0, 0, num_bytes):
        if ctypes.get_errno() != errno.EINTR:
            return ctypes.get_errno()
    return 0


def amount(num_bytes):
    """A number of bytes as a person reads it: 12.3 GB, powers of 1,000."""
    for exponent, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if num_bytes >= 10**exponent:
            return f"{num_bytes / 10**exponent:.1f} {unit}"
    return f"{num_bytes} bytes"
