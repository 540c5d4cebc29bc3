"""Append-only JSON lines: events.jsonl and metrics.jsonl of a run directory."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from stages.lib.errors import UserError
from stages.lib.log import logger

SAMPLE_BYTES, SAMPLE_LINES = 4096, 4
"""Buffer of a place that `sample` reads, and the number of lines that it tries there: some are evaluations."""


def append(path: Path, entry: dict[str, Any]) -> None:
    """Append one JSON line; it reaches the operating system before the call returns.

    Raises UserError if the file cannot be written.
    """
    line = json.dumps(entry, allow_nan=False) + "\n"
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        raise UserError(f"{path} could not be written: {error.strerror}") from None


def end_last_line(path: Path) -> None:
    """Append a newline if the last line is incomplete after a kill, so that the next entry has its own line.

    Raises UserError if the file cannot be written.
    """
    try:
        with open(path, "rb+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":
                    file.write(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path} could not be written: {error.strerror}") from None


def read(
    path: Path, is_entry: Callable[[dict[str, Any]], bool], last_bytes: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the entries in order; none if the file does not exist.

    Lines that are not entries, because of a kill or of damage, are skipped; at the end a warning names them. The last
    line is not named if it has no newline: it may be written at this moment. `last_bytes`: read only the end of the
    file. Raises UserError if the file cannot be read.
    """
    skipped = []
    for position, line in _lines(path, last_bytes):
        entry = _parse(line)
        if entry is not None and is_entry(entry):
            yield entry
        elif line.endswith(b"\n"):
            skipped.append(position)
    if skipped:
        _warn(path, len(skipped), skipped[0])


def sample(path: Path, is_entry: Callable[[dict[str, Any]], bool], count: int) -> list[dict[str, Any]]:
    """Return at most `count` entries at equal distances in the file, the first and the last among them.

    It reads a few lines at each place, so its cost does not grow with the file. [] if the file does not exist. Raises
    UserError if it cannot be read.
    """
    found = {}
    try:
        with open(path, "rb", buffering=SAMPLE_BYTES) as file:
            end = file.seek(0, os.SEEK_END)
            for number in range(count):
                for position, line in _lines_from(file, end * number // count):
                    entry = _parse(line)
                    if entry is not None and is_entry(entry):
                        found[position] = entry
                        break
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path} could not be read: {error.strerror}") from None
    return [found[position] for position in sorted(found)]


def _lines_from(file: BinaryIO, position: int) -> Iterator[tuple[int, bytes]]:
    """Yield the first few whole lines from a position on, with their positions."""
    if position:
        file.seek(position - 1)
        position += len(file.readline()) - 1  # the rest of a line; only its newline if a line begins at the position
    else:
        file.seek(0)
    for _ in range(SAMPLE_LINES):
        line = file.readline()
        yield position, line
        position += len(line)


def _lines(path: Path, last_bytes: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield the position of each line, in bytes, and the line."""
    try:
        with open(path, "rb") as file:
            position = 0
            if last_bytes is not None and file.seek(0, os.SEEK_END) > last_bytes:
                position = file.seek(-last_bytes, os.SEEK_END)
                position += len(file.readline())  # the rest of a line
            file.seek(position)
            for line in file:
                yield position, line
                position += len(line)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path} could not be read: {error.strerror}") from None


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


@functools.cache  # a start reads its events more than once
def _warn(path: Path, count: int, first: int) -> None:
    lines = "1 line that is" if count == 1 else f"{count:,} lines that are"
    logger.warning("%s: skipping %s damaged or torn by a kill, the first at byte %s", path, lines, f"{first:,}")


def has(entry: Mapping[str, Any], keys: Iterable[str], checks: Mapping[str, Callable[[Any], bool]]) -> bool:
    """Return whether an entry has all `keys`, and its values pass the checks of their keys."""
    return all(key in entry for key in keys) and all(check(entry[key]) for key, check in checks.items() if key in entry)


def is_text(value: Any) -> bool:
    """Return whether a value is a string."""
    return isinstance(value, str)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number from 0 on."""
    return type(value) is int and 0 <= value < 1 << 63


def is_range(value: Any) -> bool:
    """Return whether a value is a range of samples, [first, last + 1]."""
    return isinstance(value, list) and len(value) == 2 and all(map(is_count, value))
