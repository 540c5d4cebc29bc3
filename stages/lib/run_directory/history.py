"""The steps of a training from metrics.jsonl and events.jsonl, without those that a rollback discarded.

A step may be written several times: after a kill it is repeated, and after a rollback it is taken with other samples.
The last line of a step counts. Steps that a rollback discarded do not count, even if they were not repeated yet. The
events also tell how each attempt of the training ended: a scheduler must not retry a second crash without a new step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stages.lib.errors import UserError
from stages.lib.run_directory import events as events_file
from stages.lib.run_directory import journal
from stages.lib.run_directory.lease import job_number

FILE = "metrics.jsonl"

TAIL = 16 << 20
"""Bytes at the end of metrics.jsonl that hold about 20,000 steps."""


def logs(directory: Path) -> list[Path]:
    """Return the paths of a run directory's logs, which only grow."""
    return [directory / FILE, directory / events_file.FILE]


def _is_scores(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(scores, dict) and journal.is_number(scores.get("loss")) for scores in value.values()
    )


def _is_ranks(value: Any) -> bool:
    checks = {"max": journal.is_number, "median": journal.is_number, "slowest": journal.is_text}
    return isinstance(value, dict) and journal.has(value, checks, checks)


CHECKS = {
    "step": journal.is_count,
    "tokens": journal.is_count,
    "time": journal.is_number,
    "samples": journal.is_range,
    "loss": lambda value: value is None or journal.is_number(value),
    "tokens_per_second": journal.is_number,
    "tokens_per_second_overall": journal.is_number,
    "ranks": _is_ranks,
    "validation": _is_scores,
}


def _is_entry(entry: dict[str, Any]) -> bool:
    """Return whether a line has what its readers use: the line of a step, or of an evaluation."""
    return journal.has(entry, ("step", "tokens", "validation" if "validation" in entry else "loss"), CHECKS)


def entries(
    directory: Path, events: Sequence[dict[str, Any]], last_bytes: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the entries of metrics.jsonl in the order of writing, without those that a rollback discarded.

    `events`: those of the same directory. `last_bytes`: read only the end of the file. Lines that are not entries
    are skipped and named in a warning.
    """
    rollbacks = [event for event in events if event["event"] == "rollback"]
    discarded = None  # the last discarded step: an evaluation after it was of its weights
    for entry in journal.read(directory / FILE, _is_entry, last_bytes):
        if "validation" not in entry:
            discarded = entry["step"] if _is_discarded(entry, rollbacks) else None
        if entry["step"] != discarded:
            yield entry


def sample_losses(directory: Path, events: Sequence[dict[str, Any]], count: int) -> list[float]:
    """Return at most `count` losses over the whole run, in the order of steps, without skipped and discarded steps.

    `events`: those of the same directory. The cost does not grow with the run. Of steps that were repeated after a
    kill only the later attempt counts.
    """
    rollbacks = [event for event in events if event["event"] == "rollback"]
    losses: list[float] = []
    lowest = sys.maxsize
    for entry in reversed(journal.sample(directory / FILE, _is_step, count)):
        if entry["step"] < lowest and is_good(entry) and not _is_discarded(entry, rollbacks):
            lowest = entry["step"]
            losses.append(entry["loss"])
    return losses[::-1]


def _is_step(entry: dict[str, Any]) -> bool:
    return "validation" not in entry and _is_entry(entry)


def _is_discarded(entry: dict[str, Any], rollbacks: Sequence[dict[str, Any]]) -> bool:
    # Samples are compared too: clocks of several hosts differ, and after a rollback the training reads later samples.
    first = entry.get("samples", [-1])[0]  # -1: written before rollbacks existed
    return any(
        entry["step"] > rollback["step"]
        and rollback["samples"][0] <= first < rollback["samples"][1]
        and entry.get("time", 0) <= rollback["time"]
        for rollback in rollbacks
    )


def is_good(entry: dict[str, Any]) -> bool:
    """Return whether an entry is of a step that changed the weights."""
    return entry["loss"] is not None and not entry.get("skipped")


def trouble_counts(events: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return how often each trouble happened: {"step skipped": 3, "rollback": 1, "hang": 0}.

    A step that was skipped again after a kill counts once; so does a rollback.
    """
    return {
        "step skipped": len({_step_and_samples(event) for event in events if event["event"] == "skip"}),
        "rollback": len({_step_and_samples(event) for event in events if event["event"] == "rollback"}),
        "hang": sum(event["event"] == "hang" for event in events),
    }


def troubles(events: Sequence[dict[str, Any]]) -> list[str]:
    """Return the counts of skipped steps, rollbacks and hangs, as text: ["3 steps skipped", "1 rollback"]."""
    words = []
    for name, count in trouble_counts(events).items():
        first, _, rest = name.partition(" ")
        if count:
            words.append(f"{count:,} {first}{'s' * (count > 1)} {rest}".rstrip())
    return words


def _step_and_samples(event: dict[str, Any]) -> tuple[int, ...]:
    return event["step"], *event["samples"]


def begin_attempt(directory: Path, automatic: bool) -> None:
    """Write the event of a new attempt. `automatic`: it was started by a scheduler, not by a person.

    A scheduler that resubmits a failed job cannot distinguish a lost node from a training that always fails at the same
    step; the events of its attempts can. Raises UserError if this one is automatic, and the last two attempts crashed
    with no new step between them.
    """
    steps = (entry["step"] for entry in entries(directory, [], TAIL) if "validation" not in entry)
    events, step = events_file.read_events(directory), max(steps, default=0)
    starts = [index for index, event in enumerate(events) if event["event"] == events_file.ATTEMPT]
    if automatic and len(starts) >= 2:
        first, second = events[starts[-2] : starts[-1]], events[starts[-1] :]
        if crash_reason(first) and crash_reason(second) and step <= second[0]["step"]:
            raise UserError(
                f"the training in {directory} crashed twice without a step after step {step}, so it is not restarted "
                f"automatically; the last attempt: {crash_reason(second)}; fix the cause and restart"
            )
    event = {"time": time.time(), "event": events_file.ATTEMPT, "step": step, "job": job_number()}
    journal.append(directory / events_file.FILE, event)


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
