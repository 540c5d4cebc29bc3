"""The steps of a training from metrics.jsonl and events.jsonl, without those that a rollback discarded.

A step may be written several times: after a kill it is repeated, and after a rollback it is taken with other samples.
The last line of a step counts. Steps that a rollback discarded do not count, even if they were not repeated yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TAIL = 16 << 20
"""Bytes at the end of metrics.jsonl that hold about 20,000 steps."""


def entries(
    directory: Path, events: Sequence[dict[str, Any]], last_bytes: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the entries of metrics.jsonl in the order of writing, without those that a rollback discarded.

    `events`: those of the same directory. `last_bytes`: read only the end of the file. Incomplete lines (after a kill)
    are skipped.
    """
    rollbacks = [event for event in events if event["event"] == "rollback"]
    discarded = None  # the last discarded step: an evaluation after it was of its weights
    for entry in _lines(directory / "metrics.jsonl", last_bytes):
        if "validation" not in entry:
            discarded = entry["step"] if _is_discarded(entry, rollbacks) else None
        if entry["step"] != discarded:
            yield entry


def _is_discarded(entry: dict[str, Any], rollbacks: Sequence[dict[str, Any]]) -> bool:
    # Samples are compared too: clocks of several hosts differ, and after a rollback the training reads later samples.
    first = entry.get("samples", [-1])[0]  # -1: written before rollbacks existed
    return any(
        entry["step"] > rollback["step"]
        and rollback["samples"][0] <= first < rollback["samples"][1]
        and entry["time"] <= rollback["time"]
        for rollback in rollbacks
    )


def _lines(path: Path, last_bytes: int | None) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with open(path, "rb") as file:
        if last_bytes is not None and file.seek(0, 2) > last_bytes:
            file.seek(-last_bytes, 2)
            file.readline()  # the rest of a line
        else:
            file.seek(0)
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                continue  # incomplete after a kill


def is_good(entry: dict[str, Any]) -> bool:
    """Return whether an entry is of a step that changed the weights."""
    return entry["loss"] is not None and not entry.get("skipped")


def troubles(events: Sequence[dict[str, Any]]) -> list[str]:
    """Return the counts of skipped steps, rollbacks and hangs, as text: ["3 steps skipped", "1 rollback"].

    A step that was skipped again after a kill counts once; so does a rollback.
    """
    counts = {
        "step skipped": len({_step_and_samples(event) for event in events if event["event"] == "skip"}),
        "rollback": len({_step_and_samples(event) for event in events if event["event"] == "rollback"}),
        "hang": sum(event["event"] == "hang" for event in events),
    }
    return [f"{count:,} {_plural(name, count)}" for name, count in counts.items() if count]


def _step_and_samples(event: dict[str, Any]) -> tuple[int, ...]:
    return event["step"], *event["samples"]


def _plural(name: str, count: int) -> str:
    first, _, rest = name.partition(" ")
    return f"{first}{'s' * (count > 1)} {rest}".rstrip()
