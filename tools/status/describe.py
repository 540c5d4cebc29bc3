"""The state of a run directory as labelled lines: step, speed, time left, last checkpoint, why it stopped."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.lib.checkpoints.commit import COMMIT, read_commit
from stages.lib.errors import UserError
from stages.lib.manifest import Manifest
from stages.lib.run_directory import crashes, history, lease
from stages.lib.run_directory.events import read_events
from stages.lib.terminal.progress import format_duration
from stages.lib.training import stop_requests

RECENT = 20
"""Number of last steps over which the speed and the slowest rank are computed."""

SLOW = 1.2
"""A rank is reported as slow if it takes more than this multiple of the median rank's time."""


def describe(directory: Path, models: Sequence[Manifest]) -> list[tuple[str, str]]:
    """Return (label, text) lines on a run directory, without empty ones.

    `models`: the manifests of its milestones.
    """
    events = read_events(directory)
    entries = list(history.entries(directory, events, history.TAIL))
    steps = [entry for entry in entries if "loss" in entry]
    validation = next((entry for entry in reversed(entries) if "validation" in entry), None)
    total = total_steps(events, models)
    lines = {
        "step": _progress(steps, total),
        "validation": validation and _validation(validation),
        "speed": steps and _speed(steps, total, evaluation_seconds(entries)),
        "slowest rank": _slowest_rank(steps[-RECENT:]),
        "problems": ", ".join(history.troubles(events)),
        "last hang": _last_hang(events),
        "checkpoint": _last_checkpoint(directory),
        "state": _state(directory, events),
        "milestones": ", ".join(f"{made.identity['step']:,}" for made in models) or "none",
    }
    return [(label, str(text)) for label, text in lines.items() if text]


def total_steps(events: Sequence[dict[str, Any]], models: Sequence[Manifest]) -> int | None:
    """Return the number of steps of the whole run, from the newest event or manifest that has it; None if none has."""
    numbers = [event["steps"] for event in events if "steps" in event]
    numbers = numbers or [made.record["horizon"]["steps"] for made in models if "horizon" in made.record]
    return numbers[-1] if numbers else None


def _progress(steps: Sequence[dict[str, Any]], total: int | None) -> str:
    if not steps:
        return "none yet" + (f" of {total:,}" if total else "")
    newest = steps[-1]
    share = f" of {total:,} ({newest['step'] / total:.0%})" if total else ""
    loss = "loss not finite" if newest["loss"] is None else f"loss {newest['loss']:.4f}"
    skipped = ", skipped" if newest.get("skipped") else ""
    return f"{newest['step']:,}{share}, {newest['tokens']:,} tokens, {loss}{skipped}"


def _validation(entry: dict[str, Any]) -> str:
    losses = ", ".join(f"{source} {scores['loss']:.4f}" for source, scores in entry["validation"].items())
    return f"loss {losses} at step {entry['step']:,}"


def _speed(steps: Sequence[dict[str, Any]], total: int | None, evaluation: float) -> str:
    median = median_step(steps)
    if median is None:
        return ""
    text = f"{median['tokens_per_second']:,.0f} tokens/s"
    if isinstance(median.get("mfu"), float):  # "n/a" if the device's peak is unknown
        text += f", MFU {median['mfu']:.1%}"
    left = seconds_left(steps, total, evaluation)
    return text if left is None else f"{text}, {format_duration(left)} left"


def median_step(steps: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the entry with the median speed of the last steps; None if no speed is known."""
    timed = [entry for entry in steps[-RECENT:] if "tokens_per_second" in entry]
    return sorted(timed, key=lambda entry: entry["tokens_per_second"])[len(timed) // 2] if timed else None


def evaluation_seconds(entries: Sequence[dict[str, Any]]) -> float:
    """Return the seconds of the last evaluation among entries of metrics.jsonl, 0 if there is none."""
    return next((entry["validation_seconds"] for entry in reversed(entries) if "validation_seconds" in entry), 0.0)


def seconds_left(steps: Sequence[dict[str, Any]], total: int | None, evaluation: float) -> float | None:
    """Return the seconds until step `total` is trained and evaluated; None if they are not known, or the run is there.

    `evaluation`: seconds of the last one.
    """
    median = median_step(steps)
    if median is None or not total:
        return None
    newest = steps[-1]
    # the overall speed includes saving and evaluation
    rate = min(median["tokens_per_second"], newest.get("tokens_per_second_overall", float("inf")))
    if not rate or not 0 < newest["step"] < total:
        return None
    return float(newest["tokens"] / newest["step"] * (total - newest["step"]) / rate + evaluation)


def _slowest_rank(steps: Sequence[dict[str, Any]]) -> str | None:
    """Return the host of the rank that delays the others, None if none does."""
    timed = [entry["ranks"] for entry in steps if entry.get("ranks", {}).get("median")]
    if not timed:
        return None
    ratio = statistics.median(ranks["max"] / ranks["median"] for ranks in timed)
    host = statistics.mode(ranks["slowest"] for ranks in timed)
    return f"on {host}, {ratio:.1f} times the median rank's time per step" if ratio > SLOW else None


def _last_hang(events: Sequence[dict[str, Any]]) -> str | None:
    hangs = [event for event in events if event["event"] == "hang"]
    if not hangs:
        return None
    last = hangs[-1]
    return f"at step {last['step']:,}, {ago(last['time'])}; stacks of the ranks in hang/{last['stamp']}-rank*.txt"


def _last_checkpoint(directory: Path) -> str:
    complete = [path.parent for path in directory.glob(f"checkpoints/[0-9]*/{COMMIT}") if _is_complete(path.parent)]
    if not complete:
        return "none"
    newest = max(complete)
    return f"checkpoints/{newest.name} ({ago(newest.stat().st_mtime)})"


def _is_complete(checkpoint: Path) -> bool:
    """Return True if the commit marker of a checkpoint is valid and all its files have their sizes."""
    try:
        read_commit(checkpoint)
    except UserError:
        return False
    return True


def _state(directory: Path, events: Sequence[dict[str, Any]]) -> str:
    if holder := lease.holder(directory):
        return f"training now: {holder}"
    if marker := stop_requests.read_marker(directory):
        saved = f"saved at step {marker['step']:,}" if marker["step"] else "before its first checkpoint"
        return f"stopped by {marker['reason']}, {saved}; restart to resume"
    return _last_event(events)


def _last_event(events: Sequence[dict[str, Any]]) -> str:
    if not events:
        return "not started"
    last = events[-1]
    at = f"at step {last['step']:,}"
    if last["event"] == "finish":
        return f"reached its milestone, step {last['step']:,}"
    if last["event"] == "stop" and last.get("preempted"):
        return last["reason"]
    if last["event"] == "stop":
        return f"stopped {at}: {last['reason'].removesuffix(': ')}"
    if last["event"] == "hang":
        detected = f"detected after {format_duration(last['seconds'])} by rank {last['rank']} on {last['host']}"
        return f"hung {at}, {detected}; restart to resume"
    return f"{crashes.describe_kill(last)}; restart to resume"


def ago(moment: float) -> str:
    """Return how long ago a time in seconds since 1970 was."""
    return f"{format_duration(max(0, time.time() - moment))} ago"
