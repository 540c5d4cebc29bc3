"""Append-only JSON lines: events.jsonl and metrics.jsonl of a run directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stages.lib.errors import UserError


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
    """Append a newline if the last line is incomplete after a kill, so that the next entry has its own line."""
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        with open(path, "a", encoding="utf-8") as file:
            file.write("\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the entries in order, without incomplete lines (after a kill); [] if the file does not exist."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    entries = []
    for line in text.split("\n"):
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue  # incomplete after a kill, or the empty end
    return entries
