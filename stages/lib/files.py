"""Files that are whole or absent: atomic writes, hashes, and directories that reach the disk."""

import contextlib
import csv
import errno
import glob
import hashlib
import json
import math
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from stages.lib.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OF_FILE_SYSTEM = (
    *(*FULL, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
    *(errno.ENAMETOOLONG, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE),
)
"""Errors of the file system that are the user's to mend: another path, a higher limit or more space."""
BLOCK_BYTES = 1 << 20  # hashed at once


def make_parent(path: Path | str) -> None:
    """Make the parent directory of `path`. Raises UserError if that fails."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_be_written(path, error.strerror) from None


def _cannot_be_written(path: Path | str, reason: str | None) -> UserError:
    return UserError(f"{path} must be in a directory that can be written: {reason}")


def check_output(path: Path | str, option: str = "") -> None:
    """Raise UserError if a file cannot be written at `path`, without making anything: for a check before the work.

    A rename replaces whatever has the name, also a device or a pipe: only a regular file may be there. `option`: what
    stands before the path in the message.
    """
    path = Path(path)
    if os.path.exists(path) and not os.path.isfile(path):
        found = "a directory" if path.is_dir() else "a device, a pipe or a socket"
        raise UserError(f"{option}{path} is {found}, expected a new name or a regular file")
    above = next((above for above in path.absolute().parents if os.path.lexists(above)), Path("/"))
    if not above.is_dir():
        raise _cannot_be_written(f"{option}{path}", os.strerror(errno.ENOTDIR))
    if not os.access(above, os.W_OK | os.X_OK):
        read_only = os.statvfs(above).f_flag & os.ST_RDONLY
        raise _cannot_be_written(f"{option}{path}", os.strerror(errno.EROFS if read_only else errno.EACCES))


FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a text that spreadsheets take for a formula."""


def write_csv(file: IO[str], columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as CSV; an unknown value is empty, and keys without a column are left out.

    A text that a spreadsheet would run as a formula has an apostrophe before it, titles included; numbers stay.
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(_inert, columns))
    writer.writerows([_inert(row.get(name, "")) for name in columns] for row in rows)


def _inert(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value


def payload_of(output: Path) -> Path:
    """Return the directory of the files of a manifest `output`: its path without the suffix.

    Raises UserError if it has none.
    """
    if not output.suffix:
        raise UserError(f"--output {output} must end in .json: its files are in the directory of that name without it")
    return output.with_suffix("")


def _full_disk(path: Path, error: BaseException) -> UserError | None:
    """Return a UserError if an error means that the disk is full; None for any other error."""
    if isinstance(error, OSError) and error.errno in FULL:
        return UserError(f"{path} cannot be written: {error.strerror}")
    return None


@contextlib.contextmanager
def atomic(path: Path | str, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; rename it to `path` if the block succeeds, else delete it.

    Raises UserError if the directory cannot be written.
    """
    path = Path(path)
    check_output(path)
    make_parent(path)
    try:
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except OSError as error:
        raise _cannot_be_written(path, error.strerror) from None
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


def clear_leftovers(path: Path | str) -> None:
    """Delete the temporary files of killed writers of `path`. No other process may be writing it."""
    path = Path(path)
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        leftover.unlink(missing_ok=True)


def clear_leftovers_in(directory: Path) -> None:
    """Delete the temporary files of killed writers of all files in a directory. No other process may be writing one."""
    for leftover in directory.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_directory(path: Path | str) -> Iterator[Path]:
    """Make a directory beside `path`; rename it to `path` if the block succeeds, else delete it.

    Temporary directories of killed attempts are deleted. Raises UserError if the parent cannot be written.
    """
    path = Path(path)
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.making"):
        shutil.rmtree(leftover, ignore_errors=True)
    make_parent(path)
    try:
        making = path.with_name(f".{path.name}.{uuid.uuid4().hex}.making")
        making.mkdir()
    except OSError as error:
        raise _cannot_be_written(path, error.strerror) from None
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


def sync_directory(path: Path | str) -> None:
    """Flush the entries of a directory to the disk, if the file system can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path | str, data: Any) -> None:
    """Write JSON atomically: keys in the order given, indented by two spaces, one newline at the end."""
    with atomic(path, "w") as file:
        json.dump(data, file, indent=2, ensure_ascii=False, allow_nan=False)
        file.write("\n")


def parse_json(text: str) -> Any:
    """Parse JSON that can be written again. Raises ValueError with the reason.

    Python's parser also reads NaN, Infinity and lone surrogates, which cannot be hashed or written later.
    """
    try:
        data = json.loads(text, parse_constant=_number, parse_float=_number)
        if "\\u" in text:
            json.dumps(data, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from None
    except UnicodeEncodeError:
        raise ValueError("a text has half of a surrogate pair") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return data


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.20} is not a finite number")
    return number


def read_json(path: Path | str) -> Any:
    """Read a JSON file. Raises UserError if it is missing or not JSON."""
    try:
        return parse_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not valid JSON: it is not UTF-8") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None


def read_json_object(path: Path | str) -> dict[str, Any]:
    """Read a JSON file that holds an object. Raises UserError if it is missing, not JSON, or holds something else."""
    data = read_json(path)
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold a JSON object, and holds a {type(data).__name__}")
    return data


def read_cache(path: Path | str) -> dict[str, Any]:
    """Return what `write_cache` wrote; an empty dict if the file is missing or damaged."""
    try:
        return read_json_object(path)
    except UserError:
        return {}


def write_cache(path: Path | str, data: Mapping[str, Any]) -> None:
    """Write what can be computed again; nothing is written where the directory cannot be."""
    with contextlib.suppress(UserError, OSError):
        write_json(path, data)


def sha256_bytes(data: bytes | memoryview) -> str:
    """Return the sha256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path | str) -> str:
    """Return the sha256 of a file's bytes, in hexadecimal."""
    return sha256_range(path)[1]


def sha256_range(path: Path | str, first: int = 0, end: int | None = None) -> tuple[int, str]:
    """Return (number, sha256) of a file's bytes [first, end), up to its end if `end` is None."""
    digest, count = hashlib.sha256(), 0
    block = memoryview(bytearray(BLOCK_BYTES))  # one for all: new memory per block costs 0.1 s per GB
    with open(path, "rb", buffering=0) as file:
        file.seek(first)
        while size := file.readinto(block[: BLOCK_BYTES if end is None else min(BLOCK_BYTES, end - first - count)]):
            digest.update(block[:size])
            count += size
    return count, digest.hexdigest()


class Sha256(Protocol):
    """A function that returns the sha256 of a file's bytes [first, end), in hexadecimal."""

    def __call__(self, path: Path, first: int = 0, end: int | None = None) -> str: ...  # noqa: D102


@contextlib.contextmanager
def kept_hashes(cache: Path) -> Iterator[Sha256]:
    """Yield a function that hashes a file only if its size or times are others than in the file `cache`."""
    kept = read_cache(cache)
    before = dict(kept)

    def sha256(path: Path, first: int = 0, end: int | None = None) -> str:
        status = path.stat()
        state = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        name = f"{path.absolute()}" if end is None and not first else f"{path.absolute()}[{first}:{end}]"
        known = kept.get(name)
        if not isinstance(known, list) or known[:-1] != state:
            whole = end is None and not first
            known = kept[name] = [*state, sha256_file(path) if whole else sha256_range(path, first, end)[1]]
        return known[-1]

    yield sha256
    if kept != before:
        write_cache(cache, kept)


class HashingWriter:
    """A binary file for sequential writing that computes the sha256 and the number of bytes written so far."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.hash = hashlib.sha256()
        self.bytes = 0

    def write(self, data: Any) -> int:
        """Write a bytes-like object; return its number of bytes."""
        view = memoryview(data).cast("B")
        self.file.write(view)
        self.hash.update(view)
        self.bytes += len(view)
        return len(view)

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self.bytes

    def flush(self) -> None:
        """Flush the file to the operating system."""
        self.file.flush()

    def fileno(self) -> int:
        """Return the descriptor of the underlying file."""
        return self.file.fileno()

    closed = False

    def close(self) -> None:
        """Flush the file, which its opener closes."""
        self.flush()
