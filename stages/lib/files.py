"""Files that are whole or absent: atomic writes, hashes, and directories that reach the disk."""

import contextlib
import errno
import glob
import hashlib
import json
import os
import shutil
import uuid
from pathlib import Path

from stages.lib.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
BLOCK_BYTES = 1 << 20  # that are hashed at once


def make_parent(path):
    """Make the directory that `path` shall stand in. Raises UserError when that cannot be."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path} must be in a directory that can be written: {error.strerror}") from None


def _full_disk(path, error):
    """A UserError where an error says that the disk bears no more; None for any other error."""
    if isinstance(error, OSError) and error.errno in FULL:
        return UserError(f"{path} cannot be written: {error.strerror}")
    return None


@contextlib.contextmanager
def atomic(path, mode="wb"):
    """Open a temporary file beside `path` that takes its name when the block ends well, and vanishes otherwise.

    Raises UserError when the directory cannot be written.
    """
    path = Path(path)
    make_parent(path)
    try:
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except OSError as error:
        raise UserError(f"{path} must be in a directory that can be written: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if full := _full_disk(path, error):
            raise full from None
        raise
    sync_directory(path.parent)


def clear_leftovers(path):
    """Delete what attempts to write the file `path` left when they were killed; only where nobody writes it now."""
    path = Path(path)
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        leftover.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_directory(path):
    """Make a directory beside `path` that takes its place when the block ends well, and vanishes otherwise.

    What an earlier attempt left when it was killed is deleted. Raises UserError when the parent cannot be written.
    """
    path = Path(path)
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.making"):
        shutil.rmtree(leftover, ignore_errors=True)
    make_parent(path)
    try:
        making = path.with_name(f".{path.name}.{uuid.uuid4().hex}.making")
        making.mkdir()
    except OSError as error:
        raise UserError(f"{path} must be in a directory that can be written: {error.strerror}") from None
    try:
        yield making
        sync_directory(making)
        shutil.rmtree(path, ignore_errors=True)
        making.rename(path)
    except BaseException as error:
        shutil.rmtree(making, ignore_errors=True)
        if full := _full_disk(path, error):
            raise full from None
        raise
    sync_directory(path.parent)


def sync_directory(path):
    """Bring the names in a directory to the disk; a file system that cannot do so is left alone."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path, data):
    """Write JSON atomically: keys in the order given, two spaces, one newline at the end."""
    with atomic(path, "w") as file:
        json.dump(data, file, indent=2, ensure_ascii=False, allow_nan=False)
        file.write("\n")


def read_json(path):
    """Read a JSON file. Raises UserError when it is missing or is not JSON."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise UserError(f"{path} must hold JSON, and does not") from None


def sha256_bytes(data):
    """The sha256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path):
    """The sha256 of a file's bytes, in hexadecimal."""
    return sha256_range(path)[1]


def sha256_range(path, first=0, end=None):
    """(number, sha256) of a file's bytes [first, end), up to its end where `end` is None."""
    digest, count = hashlib.sha256(), 0
    with open(path, "rb") as file:
        file.seek(first)
        while data := file.read(BLOCK_BYTES if end is None else min(BLOCK_BYTES, end - first - count)):
            digest.update(data)
            count += len(data)
    return count, digest.hexdigest()


class HashingWriter:
    """A binary file for sequential writing that knows the sha256 and the number of bytes written so far."""

    def __init__(self, file):
        self.file = file
        self.hash = hashlib.sha256()
        self.bytes = 0

    def write(self, data):
        """Write a bytes-like object; returns its number of bytes."""
        view = memoryview(data).cast("B")
        self.file.write(view)
        self.hash.update(view)
        self.bytes += len(view)
        return len(view)

    def tell(self):
        """The number of bytes written so far."""
        return self.bytes

    def flush(self):
        """Hand what was written to the operating system."""
        self.file.flush()

    def fileno(self):
        """The descriptor of the file behind."""
        return self.file.fileno()

    closed = False

    def close(self):
        """Leave the file open: who opened it closes it."""
        self.flush()
