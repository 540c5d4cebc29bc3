"""Crash-loop detection: a second crash without a new step must not be retried by a scheduler.

A scheduler that resubmits a failed job cannot distinguish a lost node from a training that always fails at the same
step. The run directory can: each attempt writes to events.jsonl which step was reached before it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.lib.errors import UserError
from stages.lib.run_directory import history, journal
from stages.lib.run_directory.events import ATTEMPT, FILE, read_events
from stages.lib.run_directory.lease import job_number


def begin_attempt(directory: Path, automatic: bool) -> None:
    """Write the event of a new attempt. `automatic`: it was started by a scheduler, not by a person.

    Raises UserError if it is automatic, and the last two attempts crashed with no new step between them.
    """
    entries = history.entries(directory, [], history.TAIL)
    events, step = read_events(directory), max((e["step"] for e in entries if "validation" not in e), default=0)
    if automatic:
        _check(directory, events, step)
    event = {"time": time.time(), "event": ATTEMPT, "step": step, "job": job_number()}
    journal.append(directory / FILE, event)


def _check(directory: Path, events: Sequence[dict[str, Any]], step: int) -> None:
    starts = [index for index, event in enumerate(events) if event["event"] == ATTEMPT]
    if len(starts) < 2:
        return
    first, second = events[starts[-2] : starts[-1]], events[starts[-1] :]
    if crash_reason(first) and crash_reason(second) and step <= second[0]["step"]:
        raise UserError(
            f"the training in {directory} crashed twice without a step after step {step}, so it is not restarted "
            f"automatically; the last attempt: {crash_reason(second)}; fix the cause and restart"
        )


def crash_reason(events: Sequence[dict[str, Any]]) -> str | None:
    """Return why the attempt with these events crashed; None if it finished, or stopped on request."""
    last = events[-1]
    if last["event"] == "finish":
        return None
    if last["event"] == "hang":
        return f"hung at step {last['step']}"
    if last["event"] != "stop":
        return describe_kill(last)
    return None if last.get("preempted") else f"stopped with {last['reason']}"


def describe_kill(last: dict[str, Any]) -> str:
    """Return what is known of an attempt whose `last` event is not an end."""
    return f"no event after '{last['event']}' at step {last['step']:,}: killed, or the node was lost"
