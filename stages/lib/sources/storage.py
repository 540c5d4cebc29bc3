"""Where the files of a source lie: on a file system, or behind an address that fsspec knows (s3://, hf://, gs:// ...).

An address names its store by itself; keys and endpoints are taken from where the store's own tools take them, the
environment above all (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, HF_TOKEN ...). None of them is kept.
"""

import contextlib
import functools
import glob
import io
import os
import stat as stat_
from dataclasses import dataclass, field

from stages.lib.errors import UserError

BLOCK_BYTES = 4 << 20  # of an address, asked for at once
BUFFER_BYTES = 1 << 20
REASON_CHARACTERS = 300  # of what a store says


@dataclass(frozen=True)
class Status:
    """A file as it was found: its size in bytes, and a text that is another one when its content is another.

    `place`: where it lies, of a local one, whatever its names.
    """

    bytes: int
    etag: str
    place: tuple | None = field(default=None, compare=False)


def is_address(name):
    """Whether a name is an address and no path."""
    return "://" in str(name)


def find(pattern):
    """{name: Status} of the files that a path, a glob or an address means; of a directory, all files below it.

    Files and directories whose name begins with a dot are none of a directory's. Raises UserError where an address
    cannot be asked, a directory cannot be read, or a link leads nowhere.
    """
    pattern = pattern.removeprefix("file://")
    if is_address(pattern):
        return _find_behind(pattern)
    if os.path.isdir(pattern):
        pattern = os.path.join(glob.escape(pattern), "**")
    elif os.path.lexists(pattern):
        pattern = glob.escape(pattern)  # a name with [ in it
    for directory in _to_be_read(pattern):
        _check_open(directory)
    found = {}
    for name in sorted({os.path.normpath(path) for path in glob.glob(pattern, recursive=True)}):
        try:
            stat = os.stat(name)
        except OSError as error:
            reason = "it is a link to nothing" if os.path.islink(name) else error.strerror
            raise UserError(f"{name} cannot be read: {reason}") from None
        if stat_.S_ISREG(stat.st_mode):
            found[name] = _of_path(stat)
    return found


def _to_be_read(pattern):
    """The directories whose entries a glob looks through."""
    parts = pattern.split(os.sep)
    for at in range(len(parts) + 1):
        if (at < len(parts) and glob.has_magic(parts[at])) or (at == len(parts) and parts[-1] == "**"):
            yield from glob.glob(os.path.join(os.sep.join(parts[:at]) or (os.sep if at else "."), ""), recursive=True)


def _check_open(directory):
    """Raise UserError where the entries of a directory cannot be seen: glob would pass it by."""
    try:
        os.scandir(directory).close()
        os.stat(os.path.join(directory, "."))
    except OSError as error:
        raise UserError(f"{directory} must be a directory that can be read: {error.strerror}") from None


def status(name):
    """The Status of a file now. Raises UserError where it is gone."""
    if not is_address(name):
        try:
            return _of_path(os.stat(name))
        except OSError as error:
            raise UserError(f"{name} cannot be read: {error.strerror}") from None
    with said(name):
        system, path = _system(name)
        if name.startswith("hf://"):  # it lists the whole directory for a file, unless it is asked for all of one
            return _of_info(system, system.info(path, refresh=True, expand_info=True))
        system.invalidate_cache()  # of what was listed before
        return _of_info(system, system.info(path))


def opened(name):
    """A binary file, which can be read from any position. Raises UserError naming what cannot be read."""
    if not is_address(name):
        return open(name, "rb", buffering=BUFFER_BYTES)
    with said(name):
        system, path = _system(name)
        file = system.open(path, "rb", block_size=BLOCK_BYTES, cache_type="readahead")
    return io.BufferedReader(_Behind(name, file), BUFFER_BYTES)


class _Behind(io.RawIOBase):
    """A file behind an address: what its store raises while it is read is a UserError as well."""

    def __init__(self, name, file):
        self.name, self._file = name, file

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self._file.tell()

    def seek(self, position, whence=os.SEEK_SET):
        with said(self.name):
            return self._file.seek(position, whence)

    def readinto(self, buffer):
        position, size = self._file.tell(), getattr(self._file, "size", None)
        with said(self.name):
            data = self._file.read(len(buffer))
        if size is not None and len(data) < min(len(buffer), size - position):
            raise UserError(f"{self.name} must have {size} bytes, and ends after {position + len(data)}")
        buffer[: len(data)] = data
        return len(data)

    def close(self):
        if not self.closed:
            self._file.close()
        super().close()


@contextlib.contextmanager
def said(name):
    """Inside, whatever a store or a library for it raises is a UserError that names the address."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # each store has errors of its own
        raise UserError(f"{name} cannot be read: {_reason(error)}") from None


def _reason(error):
    """What an error says, in a line; where it has one, the answer of the server alone, as the Hub's errors have it."""
    text = getattr(error, "server_message", None) or str(error) or type(error).__name__
    return " ".join(text.split())[:REASON_CHARACTERS]


@functools.cache
def _system(address):
    """(file system, path in it) of an address."""
    import fsspec

    return fsspec.core.url_to_fs(address)


def _find_behind(pattern):
    protocol = pattern.partition("://")[0]
    with said(pattern):
        system, path = _system(pattern)
        found = system.glob(path, detail=True) if glob.has_magic(path) else _found(system, path)
        kept = {name: info for name, info in found.items() if info["type"] == "file"}
        # http keeps the whole address as a path, others leave the protocol out
        return {
            name if is_address(name) else f"{protocol}://{name.lstrip('/')}": _of_info(system, info)
            for name, info in kept.items()
        }


def _found(system, path):
    """{name: info} of a file or of a directory's files. (`isdir` and `exists` are false for all that goes wrong.)"""
    try:
        info = system.info(path)
    except FileNotFoundError as error:
        if isinstance(error.__cause__, OSError):  # the Hub says here that a repository or a revision is not there
            raise
        return {}
    return system.find(path, detail=True) if info["type"] == "directory" else {path: info}


def _of_path(stat):
    return Status(stat.st_size, f"{stat.st_size}-{stat.st_mtime_ns}", (stat.st_dev, stat.st_ino))


def _of_info(system, info):
    """Of what a store says of a file: its own mark of the content, else all that it says."""
    lfs = info.get("lfs") or {}
    marks = [info.get("ETag"), info.get("etag"), lfs.get("sha256"), info.get("blob_id"), info.get("xet_hash")]
    mark = next(filter(None, marks), None) or system.ukey(info["name"])
    if info.get("size") is None:
        raise UserError(f"{info['name']} must say how many bytes it has, and does not")
    return Status(info["size"], str(mark).strip('"'))
