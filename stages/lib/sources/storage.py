"""Files of a source: on a local file system, or in a remote store of fsspec (s3://, hf://, gs:// ...).

A URL names its store. Keys and endpoints come from the places where the store's own tools read them, mainly the
environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, HF_TOKEN ...). None of them is kept.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import io
import os
import stat as stat_
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import urlsplit

from stages.lib.errors import UserError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from fsspec import AbstractFileSystem

BLOCK_BYTES = 4 << 20  # of a request to a remote store
BUFFER_BYTES = 1 << 20
REASON_CHARACTERS = 300  # of a store's message


@dataclass(frozen=True)
class Status:
    """The state of a file: its size in bytes, and an etag that changes with the content.

    `place`: (device, inode) of a local file, the same for all of its names.
    """

    bytes: int
    etag: str
    place: tuple[int, int] | None = field(default=None, compare=False)


def is_remote(name: Path | str) -> bool:
    """Return True if a name is a URL and not a path."""
    return "://" in str(name)


def has_password(name: str) -> bool:
    """Return True if a URL holds a password, which manifests, logs and reports would show."""
    return is_remote(name) and urlsplit(name).password is not None


def find(pattern: str) -> dict[str, Status]:
    """Return {name: Status} of the files that a path, a glob or a URL matches; of a directory, of all files below it.

    Files and directories of a directory whose names begin with a dot are skipped. Raises UserError if a store or a
    directory cannot be read, or a link is broken.
    """
    pattern = pattern.removeprefix("file://")
    if is_remote(pattern):
        return _find_remote(pattern)
    if os.path.isdir(pattern):
        pattern = os.path.join(glob.escape(pattern), "**")
    elif os.path.lexists(pattern):
        pattern = glob.escape(pattern)  # a name with [ in it
    for directory in _directories_of_glob(pattern):
        _check_readable(directory)
    found = {}
    for name in sorted({os.path.normpath(path) for path in glob.glob(pattern, recursive=True)}):
        try:
            stat = os.stat(name)
        except OSError as error:
            reason = "it is a broken link" if os.path.islink(name) else error.strerror
            raise UserError(f"{name} cannot be read: {reason}") from None
        if stat_.S_ISREG(stat.st_mode):
            found[name] = _of_path(stat)
    return found


def matches(pattern: str) -> bool:
    """Return True if a path, a directory or a glob has a file; it stops at the first. A URL is not opened."""
    pattern = pattern.removeprefix("file://")
    if is_remote(pattern):
        return True
    if os.path.isdir(pattern):
        pattern = os.path.join(glob.escape(pattern), "**")
    elif os.path.lexists(pattern):
        return True
    return any(os.path.lexists(name) and not os.path.isdir(name) for name in glob.iglob(pattern, recursive=True))


def _directories_of_glob(pattern: str) -> Iterator[str]:
    """Yield the directories whose entries a glob reads."""
    parts = pattern.split(os.sep)
    for at in range(len(parts) + 1):
        if (at < len(parts) and glob.has_magic(parts[at])) or (at == len(parts) and parts[-1] == "**"):
            yield from glob.glob(os.path.join(os.sep.join(parts[:at]) or (os.sep if at else "."), ""), recursive=True)


def _check_readable(directory: str) -> None:
    """Raise UserError if the entries of a directory cannot be read: glob would skip it."""
    try:
        os.scandir(directory).close()
        os.stat(os.path.join(directory, "."))
    except OSError as error:
        raise UserError(f"{directory} must be a directory that can be read: {error.strerror}") from None


def status(name: Path | str) -> Status:
    """Return the Status of a file now. Raises UserError if it does not exist."""
    if not is_remote(name):
        try:
            return _of_path(os.stat(name))
        except OSError as error:
            raise UserError(f"{name} cannot be read: {error.strerror}") from None
    url = str(name)
    with _store_errors(url):
        system, path = _file_system(url)
        if url.startswith("hf://"):  # without expand_info it lists the whole directory for one file
            return _of_info(system, system.info(path, refresh=True, expand_info=True))
        system.invalidate_cache()  # of earlier listings
        return _of_info(system, system.info(path))


def check_unchanged(before: Mapping[str, Status]) -> None:
    """Raise UserError if a file of {name: Status} has another Status now."""
    for name, state in before.items():
        if status(name) != state:
            raise UserError(f"{name} changed while it was read: finish writing it, and run this again")


def open_binary(name: str) -> BinaryIO:
    """Open a file to read from any position. Raises UserError naming a file that cannot be read."""
    if not is_remote(name):
        return open(name, "rb", buffering=BUFFER_BYTES)
    with _store_errors(name):
        system, path = _file_system(name)
        file = system.open(path, "rb", block_size=BLOCK_BYTES, cache_type="readahead")
    return io.BufferedReader(_RemoteFile(name, file), BUFFER_BYTES)


class _RemoteFile(io.RawIOBase):
    """A remote file. What its store raises while it is read becomes a UserError."""

    def __init__(self, name: str, file: Any) -> None:
        self.name, self._file = name, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        with _store_errors(self.name):
            return self._file.seek(position, whence)

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        position, size = self._file.tell(), getattr(self._file, "size", None)
        with _store_errors(self.name):
            data = self._file.read(len(view))
        if size is not None and len(data) < min(len(view), size - position):
            raise UserError(f"{self.name} must have {size} bytes, and ends after {position + len(data)}")
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@contextlib.contextmanager
def _store_errors(name: str) -> Iterator[None]:
    """Raise every error of a store or its library as a UserError that names the file."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # each store has errors of its own
        raise UserError(f"{name} cannot be read: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """Return an error's message on one line; only the server's answer if there is one, as in the Hub's errors."""
    text = getattr(error, "server_message", None) or str(error) or type(error).__name__
    return " ".join(text.split())[:REASON_CHARACTERS]


@functools.cache
def _file_system(url: str) -> tuple[AbstractFileSystem, str]:
    """Return (file system, path in it) of a URL."""
    import fsspec

    # passwords of a server come from ~/.netrc: a URL with one is refused
    options = {"client_kwargs": {"trust_env": True}} if url.startswith(("http://", "https://")) else {}
    return fsspec.core.url_to_fs(url, **options)


def _find_remote(pattern: str) -> dict[str, Status]:
    protocol = pattern.partition("://")[0]
    with _store_errors(pattern):
        system, path = _file_system(pattern)
        # in a URL of http `?` begins a query, and [ ] may stand in it
        is_glob = "*" in path.partition("?")[0] if protocol in ("http", "https") else glob.has_magic(path)
        found = system.glob(path, detail=True) if is_glob else _files_below(system, path)
        kept = {name: info for name, info in cast(dict, found).items() if info["type"] == "file"}
        # http keeps the whole URL as a path, others remove the protocol
        return {
            name if is_remote(name) else f"{protocol}://{name.lstrip('/')}": _of_info(system, info)
            for name, info in kept.items()
        }


def _files_below(system: AbstractFileSystem, path: str) -> dict[str, dict[str, Any]]:
    """Return {name: info} of a file or a directory's files. (`isdir` and `exists` are False on any error.)"""
    try:
        info = system.info(path)
    except FileNotFoundError as error:
        if isinstance(error.__cause__, OSError):  # the Hub's error for a missing repository or revision
            raise
        return {}
    return system.find(path, detail=True) if info["type"] == "directory" else {path: info}


def _of_path(stat: os.stat_result) -> Status:
    return Status(stat.st_size, f"{stat.st_size}-{stat.st_mtime_ns}", (stat.st_dev, stat.st_ino))


def _of_info(system: AbstractFileSystem, info: Mapping[str, Any]) -> Status:
    """Return the Status of a store's info on a file: its own hash of the content, else a hash of the whole info."""
    lfs = info.get("lfs") or {}
    etags = [info.get("ETag"), info.get("etag"), lfs.get("sha256"), info.get("blob_id"), info.get("xet_hash")]
    etag = next(filter(None, etags), None) or system.ukey(info["name"])
    if info.get("size") is None:
        raise UserError(f"the store of {info['name']} must report its size in bytes, and does not")
    return Status(info["size"], str(etag).strip('"'))
