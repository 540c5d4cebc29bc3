"""Files of a source: on a local file system, or in a remote store of fsspec (s3://, hf://, gs:// ...).

A URL names its store. Keys and endpoints come from the places where the store's own tools read them, mainly the
environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, HF_TOKEN ...). None of them is kept: in the query of a URL of http,
`${NAME}` is the environment variable NAME, which is filled in for a request alone.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import glob
import io
import os
import re
import stat as stat_
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import quote, unquote

from stages.lib.errors import UserError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from fsspec import AbstractFileSystem

BLOCK_BYTES = 4 << 20  # of a request to a remote store
BUFFER_BYTES = 1 << 20
HTTP = ("http://", "https://")
REASON_CHARACTERS = 300  # of a store's message
REFERENCE = re.compile(r"\$\{(\w+)\}")
"""A reference to an environment variable, in the query of a URL of http."""

PARAMETER = re.compile(r"(?<=[?&;#])([^?&;#=\s]+)=([^&;#\s]+)")
CREDENTIAL = re.compile(
    r"token(-|$)|secret|passw|pwd|signature|credential|session|api-?key|access-?key|"
    r"(^|-)(auth|authorization|bearer|hmac|jwt|key|pass|sas|sig)(-|$)"
)
"""Names of parameters whose values are secret, in lower case with a dash between their words."""

HIDDEN, EMPTY, NO_FILE = "hidden", "empty", "no regular file"
"""Reasons for which a listing leaves a file out."""


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


def credential_of(name: str) -> str | None:
    """Return what is secret in a URL, which manifests, logs and reports would show: `a password`, or a parameter.

    None without one. A parameter is secret by its name (CREDENTIAL), unless its value is a reference.
    """
    if not is_remote(name):
        return None
    if re.search(r"://[^/?#]*:[^/?#]*@|https?://[^/?#]*@", name, re.IGNORECASE):  # a name of http may be a token
        return "a password"
    for parameter, value in PARAMETER.findall(name):
        if is_credential(parameter) and not REFERENCE.fullmatch(value):
            return f"the parameter {parameter}"
    return None


def is_credential(parameter: str) -> bool:
    """Return whether the value of a parameter or an option is secret, by its name."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+", "-", unquote(parameter))
    return bool(CREDENTIAL.search(words.lower()))


def without_query(name: str) -> str:
    """Return the name of a file, without the query of a URL of http: with its ending."""
    return name.partition("?")[0] if name.startswith(HTTP) else name


def _with_values(url: str) -> str:
    """Return a URL with its references replaced. Raises UserError if an environment variable is missing."""
    before, mark, query = url.partition("?")
    if not url.startswith(HTTP):
        return url
    for variable in REFERENCE.findall(query):
        if not os.environ.get(variable):
            raise UserError(
                f"{url} cannot be read: the environment variable {variable} is missing or empty; set it for all jobs"
            )
    return before + mark + REFERENCE.sub(lambda found: os.environ[found[1]], query)


def _with_references(text: str, url: str) -> str:
    """Return a text with the references of a URL in place of their values."""
    for variable in REFERENCE.findall(url.partition("?")[2]):
        if value := os.environ.get(variable):
            for form in (value, unquote(value), quote(value)):
                text = text.replace(form, f"${{{variable}}}")
    return text


def find(pattern: str, left_out: Counter[str] | None = None) -> dict[str, Status]:
    """Return {name: Status} of the files that a path, a glob or a URL matches; of a directory, of all files below it.

    As in Spark and Arrow, files and directories of a directory are left out if their names begin with a dot or an
    underscore (`_SUCCESS`, `_temporary`; not `_key=value`), unless a glob asks for them (`_*`), and so are the empty
    files of a directory. `left_out` counts them. Raises UserError if a store or a directory cannot be read, or a link
    is broken or leads in a circle.
    """
    pattern, left_out = pattern.removeprefix("file://"), Counter() if left_out is None else left_out
    if is_remote(pattern):
        return _find_remote(pattern, left_out)
    is_directory, found = os.path.isdir(pattern), {}
    for name in sorted({os.path.normpath(path) for path in _local_files(pattern, left_out)}):
        try:
            stat = os.stat(name)
        except OSError as error:
            reason = "it is a broken link" if os.path.islink(name) else error.strerror
            raise UserError(f"{name} cannot be read: {reason}") from None
        if not stat_.S_ISREG(stat.st_mode):
            left_out[NO_FILE] += not stat_.S_ISDIR(stat.st_mode)
        elif is_directory and not stat.st_size:
            left_out[EMPTY] += 1
        else:
            found[name] = _of_path(stat)
    return found


def matches(pattern: str) -> bool:
    """Return True if a path, a directory or a glob has a file; it stops at the first. A URL is not opened."""
    pattern = pattern.removeprefix("file://")
    return is_remote(pattern) or any(not os.path.isdir(name) for name in _local_files(pattern, Counter()))


def _local_files(pattern: str, left_out: Counter[str]) -> Iterator[str]:
    """Yield the paths that a path or a glob matches; of a directory, those of the files below it."""
    if os.path.isdir(pattern):
        yield from _matching(pattern, ["**"], (), left_out)
    elif os.path.lexists(pattern):  # also a name with [ in it
        yield pattern
    else:
        root = os.sep if pattern.startswith(os.sep) else ""
        yield from _matching(root, [part for part in pattern.split(os.sep) if part], (), left_out)


def _matching(
    directory: str, parts: Sequence[str], above: tuple[tuple[int, int], ...], left_out: Counter[str]
) -> Iterator[str]:
    """Yield the paths below a directory ("" for the working directory) that the parts of a glob match.

    `above`: (device, inode) of the directories that lead to it.
    """
    part, *rest = parts
    if not glob.has_magic(part):
        path = os.path.join(directory, part)
        if rest and os.path.isdir(path):
            yield from _matching(path, rest, above, left_out)
        elif not rest and os.path.lexists(path):
            yield path
        return
    if part == "**" and rest:  # no directory
        yield from _matching(directory, rest, above, left_out)
    try:
        names = sorted(os.listdir(directory or "."))
        stat = os.stat(os.path.join(directory, "."))
    except OSError as error:
        raise UserError(
            f"{os.path.join(directory, '')} must be a directory that can be read: {error.strerror}"
        ) from None
    place = stat.st_dev, stat.st_ino
    if place in above:
        raise UserError(f"{directory} is a link in a circle: it leads back to a directory above it; remove the link")
    for name in names:
        path = os.path.join(directory, name)
        if part != "**" and not fnmatch.fnmatchcase(name, part):
            continue
        is_directory = os.path.isdir(path)
        if is_hidden(name) and part[0] != name[0]:
            # at the last part of a glob, so that `**/x` counts a name once
            left_out[HIDDEN] += is_directory or not rest
        elif is_directory and (part == "**" or rest):
            yield from _matching(path, parts if part == "**" else rest, (*above, place), left_out)
        elif not rest:
            yield path


def is_hidden(name: str) -> bool:
    """Return True for the name of a file or a directory that Spark and Arrow leave out."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


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
            return _of_info(system, url, system.info(path, refresh=True, expand_info=True))
        system.invalidate_cache()  # of earlier listings
        return _of_info(system, url, system.info(path))


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
        raise UserError(f"{name} cannot be read: {_reason(name, error)}") from None


def _reason(name: str, error: Exception) -> str:
    """Return an error's message on one line; only the server's answer if there is one, as in the Hub's errors.

    URLs in it, also those of a redirect, have no credentials.
    """
    text = getattr(error, "server_message", None) or str(error) or type(error).__name__
    if hasattr(error.__cause__, "status"):  # of http, whose errors are all FileNotFoundError(url)
        text = str(error.__cause__)
    text = _with_references(" ".join(text.split()), name)
    if REFERENCE.search(name):  # the library may have encoded a value in another way
        text = re.sub(r"\?[^\s'\"]+", "?...", text)
    return PARAMETER.sub(_without_value, text)[:REASON_CHARACTERS]


def _without_value(found: re.Match[str]) -> str:
    is_shown = not is_credential(found[1]) or REFERENCE.fullmatch(found[2])
    return found[0] if is_shown else f"{found[1]}=..."


@functools.cache
def _file_system(url: str) -> tuple[AbstractFileSystem, str]:
    """Return (file system, path in it) of a URL."""
    import fsspec

    # passwords of a server come from ~/.netrc: a URL with one is refused
    options = {"client_kwargs": {"trust_env": True}} if url.startswith(HTTP) else {}
    return fsspec.core.url_to_fs(_with_values(url), **options)


def _find_remote(pattern: str, left_out: Counter[str]) -> dict[str, Status]:
    protocol = pattern.partition("://")[0]
    with _store_errors(pattern):
        system, path = _file_system(pattern)
        # in a URL of http `?` begins a query, and [ ] may stand in it
        is_glob = "*" in path.partition("?")[0] if protocol in ("http", "https") else glob.has_magic(path)
        found = system.glob(path, detail=True) if is_glob else _files_below(system, path)
        parts = path.strip("/").split("/")
        literal = next((at for at, part in enumerate(parts) if glob.has_magic(part)), len(parts))
        files = {}
        for name, info in cast(dict, found).items():
            if info["type"] != "file":
                continue
            is_named = not is_glob and name.strip("/") == path.strip("/")
            below = [] if is_named else name.strip("/").split("/")[literal:]
            if any(is_hidden(part) and not any(asked[0] == part[0] for asked in parts[literal:]) for part in below):
                left_out[HIDDEN] += 1
                continue
            if not is_named and not is_glob and info.get("size") == 0:
                left_out[EMPTY] += 1
                continue
            # http keeps the whole URL as a path, others remove the protocol
            url = _with_references(name, pattern) if is_remote(name) else f"{protocol}://{name.lstrip('/')}"
            if name == path and protocol in ("http", "https"):
                url = pattern
            if secret := credential_of(url):
                raise UserError(
                    f"{pattern} cannot be listed: the URL of a file in it has {secret}; list the files one by one, "
                    "with ${NAME} for an environment variable that holds it"
                )
            files[url] = _of_info(system, url, info)
        return files


def _files_below(system: AbstractFileSystem, path: str) -> dict[str, dict[str, Any]]:
    """Return {name: info} of a file or a directory's files. (`isdir` and `exists` are False on any error.)"""
    try:
        info = system.info(path)
    except FileNotFoundError as error:
        is_hub = isinstance(error.__cause__, OSError)  # its error for a missing repository or revision
        if is_hub or getattr(error.__cause__, "status", 404) != 404:  # http: a token that expired, for example
            raise
        return {}
    return system.find(path, detail=True) if info["type"] == "directory" else {path: info}


def _of_path(stat: os.stat_result) -> Status:
    return Status(stat.st_size, f"{stat.st_size}-{stat.st_mtime_ns}", (stat.st_dev, stat.st_ino))


def _of_info(system: AbstractFileSystem, url: str, info: Mapping[str, Any]) -> Status:
    """Return the Status of a store's info on a file: its own hash of the content, else a hash of the whole info.

    Of http, the latter is one of the URL, with references: it stays if a signature changes.
    """
    lfs = info.get("lfs") or {}
    etags = [info.get("ETag"), info.get("etag"), lfs.get("sha256"), info.get("blob_id"), info.get("xet_hash")]
    etag = next(filter(None, etags), None) or system.ukey(url if url.startswith(HTTP) else info["name"])
    if info.get("size") is None:
        raise UserError(f"the store of {url} does not report its size in bytes")
    return Status(info["size"], str(etag).strip('"'))
