"""Files that are whole or absent: atomic writes, hashes, and directories that reach the disk."""

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from pathlib import Path

from stages.lib.errors import UserError


def make_parent(path):
    """Make the directory that `path` shall stand in. Raises UserError when that cannot be."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path} must be in a directory that can be written: {error.strerror}") from None


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
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


@contextlib.contextmanager
def atomic_directory(path):
    """Make a directory beside `path` that takes its place when the block ends well, and vanishes otherwise.

    What an earlier attempt left when it was killed is deleted. Raises UserError when the parent cannot be written.
    """
    path = Path(path)
    for leftover in path.parent.glob(f".{path.name}.*.making"):
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
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
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
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
