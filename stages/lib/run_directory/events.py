"""events.jsonl of a run directory: what happened to the training, one event per line."""

from __future__ import annotations

from collections.abc import Sequence
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
    "commit": journal.is_text,
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
    known = journal.has(entry, ("event", "step", "time"), CHECKS)
    return known and journal.has(entry, KINDS[entry["event"]], CHECKS)


class Lineage:
    """The descent of a run's checkpoints, each named by the sha256 of its commit.json, from the `events` of the run.

    A save records the checkpoint that it wrote, a resume the one that it loaded. An earlier version recorded neither:
    nothing is known of the descent of such checkpoints.
    """

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        self._parents: dict[str, set[str]] = {}
        self._steps: dict[str, int] = {}
        self._last_steps: int | None = None
        newest: str | None = None  # of those that the weights descend from
        at_step: dict[int, str] = {}
        for event in events:
            if event["event"] in ("start", "resume"):
                newest, self._last_steps = event.get("commit"), event.get("steps")
            elif event["event"] == "rollback":
                newest = at_step.get(event["step"])
            elif event["event"] == "save" and "commit" in event:
                # a step that was repeated in the same bits has the same commit, and one more parent
                self._parents.setdefault(event["commit"], set()).update([newest] if newest else [])
                if self._last_steps is not None:
                    self._steps[event["commit"]] = self._last_steps
                newest = event["commit"]
            if newest is not None and event["event"] in ("resume", "save"):
                at_step[event["step"]] = newest

    def __contains__(self, commit: str) -> bool:
        """Return whether the descent of a checkpoint is recorded."""
        return commit in self._parents

    def descends(self, commit: str, ancestor: str) -> bool:
        """Return whether a checkpoint is `ancestor`, or was trained from it."""
        reached = [commit]
        for name in reached:
            if name == ancestor:
                return True
            reached += self._parents.get(name, set()).difference(reached)
        return False

    def steps(self, commit: str) -> int | None:
        """Return the recipe's `steps` under which a checkpoint was trained; None if no event tells.

        A checkpoint without an event is of the last attempt, which was killed between the two.
        """
        return self._steps.get(commit, self._last_steps)
