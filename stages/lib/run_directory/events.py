"""events.jsonl of a run directory: what happened to the training, one event per line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.lib.run_directory import journal

FILE = "events.jsonl"

ATTEMPT = "attempt"
"""The first event of each attempt; its `step` is the last step of all attempts before."""

KINDS = {
    **dict.fromkeys((ATTEMPT, "start", "resume", "save", "finish"), ()),
    "stop": ("reason",),
    "hang": ("stamp", "seconds", "rank", "host"),
    "skip": ("samples",),
    "rollback": ("samples",),
}
"""The keys of each kind of event beside `event`, `step` and `time`, as far as they are read."""

CHECKS = {
    "event": lambda value: journal.is_text(value) and value in KINDS,
    "step": journal.is_count,
    "time": journal.is_number,
    "steps": journal.is_count,
    "samples": journal.is_range,
    "reason": journal.is_text,
    "stamp": journal.is_text,
    "seconds": journal.is_number,
    "rank": journal.is_count,
    "host": journal.is_text,
}


def read_events(directory: Path) -> list[dict[str, Any]]:
    """Return the events of a run directory in order; lines that are not events are skipped and named in a warning."""
    return list(journal.read(directory / FILE, _is_event))


def _is_event(entry: dict[str, Any]) -> bool:
    if not journal.has(entry, ("event", "step", "time"), CHECKS):
        return False
    return journal.has(entry, KINDS[entry["event"]], CHECKS)
