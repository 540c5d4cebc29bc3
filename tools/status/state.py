"""The state of a run directory: as labelled lines, and in short as one line of the screen of all runs."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib.checkpoints.commit import COMMIT, read_commit
from stages.lib.errors import UserError
from stages.lib.manifest import ModelManifest
from stages.lib.render.numbers import clock
from stages.lib.run_directory import events as run_events
from stages.lib.run_directory import history, lease
from stages.lib.training import stop_requests

RECENT = 20
"""Number of last steps over which the speed and the slowest rank are computed."""

SLOW = 1.2
"""A rank is reported as slow if it takes more than this multiple of the median rank's time."""


@dataclass(frozen=True)
class Content:
    """Content of the files of a run directory."""

    events: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    """The last entries of metrics.jsonl that are of steps."""

    validation: dict[str, Any] | None
    """The last entry of an evaluation."""

    evaluation: float
    """Seconds of the last evaluation."""


def read_content(directory: Path, last_bytes: int) -> Content:
    """Read the events, and the end of metrics.jsonl. Raises UserError if they cannot be read."""
    events = run_events.read_events(directory)
    entries = list(history.entries(directory, events, last_bytes))
    validation = next((entry for entry in reversed(entries) if "validation" in entry), None)
    seconds = next((entry["validation_seconds"] for entry in reversed(entries) if "validation_seconds" in entry), 0.0)
    return Content(events, [entry for entry in entries if "loss" in entry], validation, seconds)


def describe(directory: Path, models: Sequence[ModelManifest]) -> list[tuple[str, str]]:
    """Return (label, text) lines on a run directory, without empty ones.

    `models`: the manifests of its milestones.
    """
    content = read_content(directory, history.TAIL)
    events, steps, total = content.events, content.steps, total_steps(content.events, models)
    lines = {
        "step": _progress(steps, total),
        "validation": "",
        "speed": _speed(content, total),
        "slowest rank": _slowest_rank(steps[-RECENT:]),
        "problems": ", ".join(history.troubles(events)),
        "last hang": "",
        "checkpoint": "none",
        "state": _state(directory, events),
        "milestones": ", ".join(f"{model.identity['step']:,}" for model in models) or "none",
    }
    if entry := content.validation:
        losses = ", ".join(f"{source} {scores['loss']:.4f}" for source, scores in entry["validation"].items())
        lines["validation"] = f"loss {losses} at step {entry['step']:,}"
    if hangs := [event for event in events if event["event"] == "hang"]:
        last = hangs[-1]
        stacks = f"stacks of the ranks in hang/{last['stamp']}-rank*.txt"
        lines["last hang"] = f"at step {last['step']:,}, {ago(last['time'])}; {stacks}"
    for checkpoint in sorted(path.parent for path in directory.glob(f"checkpoints/[0-9]*/{COMMIT}")):
        with contextlib.suppress(UserError):  # it is not complete
            read_commit(checkpoint)
            lines["checkpoint"] = f"checkpoints/{checkpoint.name} ({ago(checkpoint.stat().st_mtime)})"
    return [(label, text) for label, text in lines.items() if text]


def total_steps(events: Sequence[dict[str, Any]], models: Sequence[ModelManifest]) -> int | None:
    """Return the number of steps of the whole run, from the newest event or manifest that has it; None if none has."""
    numbers = [event["steps"] for event in events if "steps" in event]
    numbers = numbers or [model.record["horizon"]["steps"] for model in models if "horizon" in model.record]
    return numbers[-1] if numbers else None


def _progress(steps: Sequence[dict[str, Any]], total: int | None) -> str:
    if not steps:
        return "none yet" + (f" of {total:,}" if total else "")
    newest = steps[-1]
    share = f" of {total:,} ({newest['step'] / total:.0%})" if total else ""
    loss = "loss not finite" if newest["loss"] is None else f"loss {newest['loss']:.4f}"
    skipped = ", skipped" if newest.get("skipped") else ""
    return f"{newest['step']:,}{share}, {newest['tokens']:,} tokens, {loss}{skipped}"


def _speed(content: Content, total: int | None) -> str:
    median = median_step(content.steps)
    if median is None:
        return ""
    text = f"{median['tokens_per_second']:,.0f} tokens/s"
    if isinstance(median.get("mfu"), float):  # "n/a" if the device's peak is unknown
        text += f", MFU {median['mfu']:.1%}"
    left = seconds_left(content, total)
    return text if left is None else f"{text}, {clock(left)} left"


def median_step(steps: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the entry with the median speed of the last steps; None if no speed is known."""
    timed = [entry for entry in steps[-RECENT:] if "tokens_per_second" in entry]
    return sorted(timed, key=lambda entry: entry["tokens_per_second"])[len(timed) // 2] if timed else None


def seconds_left(content: Content, total: int | None) -> float | None:
    """Return the seconds until step `total` is trained and evaluated; None if unknown, or if the run is there."""
    steps = content.steps
    median = median_step(steps)
    if median is None or not total:
        return None
    newest = steps[-1]
    # the overall speed includes saving and evaluation
    rate = min(median["tokens_per_second"], newest.get("tokens_per_second_overall", float("inf")))
    if not rate or not 0 < newest["step"] < total:
        return None
    return float(newest["tokens"] / newest["step"] * (total - newest["step"]) / rate + content.evaluation)


def _slowest_rank(steps: Sequence[dict[str, Any]]) -> str:
    """Return the host of the rank that delays the others, "" if none does."""
    timed = [entry["ranks"] for entry in steps if entry.get("ranks", {}).get("median")]
    if not timed:
        return ""
    ratio = statistics.median(ranks["max"] / ranks["median"] for ranks in timed)
    host = statistics.mode(ranks["slowest"] for ranks in timed)
    return f"on {host}, {ratio:.1f} times the median rank's time per step" if ratio > SLOW else ""


def _state(directory: Path, events: Sequence[dict[str, Any]]) -> str:
    """Return what the run does now, or why it stopped."""
    if holder := lease.holder(directory):
        return f"training now: {holder}"
    if marker := stop_requests.read_marker(directory):
        saved = f"saved at step {marker['step']:,}" if marker["step"] else "before its first checkpoint"
        return f"stopped by {marker['reason']}, {saved}; restart to resume"
    if not events:
        return "not started"
    last = events[-1]
    at = f"at step {last['step']:,}"
    if last["event"] == "finish":
        return f"reached its milestone, step {last['step']:,}"
    if last["event"] == "stop":
        return last["reason"] if last.get("preempted") else f"stopped {at}: {last['reason'].removesuffix(': ')}"
    if last["event"] == "hang":
        detected = f"detected after {clock(last['seconds'])} by rank {last['rank']} on {last['host']}"
        return f"hung {at}, {detected}; restart to resume"
    return f"{history.describe_kill(last)}; restart to resume"


def ago(moment: float) -> str:
    """Return how long ago a time in seconds since 1970 was."""
    return f"{clock(max(0, time.time() - moment))} ago"


TAIL = 64 << 10
"""Bytes at the end of metrics.jsonl that are read: about 80 steps, more than the speed is computed over."""

LOSSES = 48
"""Number of losses over the whole run that are read for its curve."""

QUIET_SECONDS = 60
"""Time without a new step from which a training's last step is shown in place of its last event."""

TRAINING, WAITING, DONE = "training", "waiting", "done"
GROUPS = (TRAINING, WAITING, DONE)
"""A run trains now; does not, but has steps left; has all its steps."""

WORDS = {"attempt": "starting", "start": "started", "resume": "resumed", "save": "saved", "skip": "skipped a step"}
"""{kind of event: its word for a training that runs}"""


@dataclass(frozen=True, kw_only=True)
class Overview:
    """The newest state of a run."""

    name: str
    group: str
    """One of GROUPS."""

    step: int
    total: int | None
    """Steps of the whole run, if they are known."""

    loss: float | None
    losses: tuple[float, ...]
    tokens_per_second: float | None
    left: float | None
    """Seconds until the last step."""

    last: str
    """The last event, or the reason why the run does not train."""


class Reader:
    """Reads run directories; files that did not change since the last time are not read again."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[Any, ...], Content, tuple[float, ...]]] = {}

    def read_all(self, results: Path) -> list[Overview]:
        """Return the overview of each run: of its directory that trains, else of the one that changed last."""

        def order(directory: Path) -> tuple[bool, float]:
            return lease.holder(directory) is not None, max(changed for changed, _ in _signature(directory))

        overviews = []
        for home in sorted(path for path in results.glob("runs/*") if path.is_dir()):
            directories = [path for path in home.glob("train/*") if path.is_dir()]
            if directories:
                overviews.append(self.read(home.name, max(directories, key=order)))
        return overviews

    def read(self, name: str, directory: Path) -> Overview:
        """Return the overview of one run directory."""
        signature = _signature(directory)
        if directory not in self._known or self._known[directory][0] != signature:
            try:
                content = read_content(directory, TAIL)
                losses = tuple(history.sample_losses(directory, content.events, LOSSES))
            except UserError:  # for example a file of another user
                content, losses = Content([], [], None, 0.0), ()
            self._known[directory] = signature, content, losses
        _, content, losses = self._known[directory]
        events, steps = content.events, content.steps
        newest = steps[-1] if steps else None
        total = total_steps(events, ())
        step = newest["step"] if newest else 0
        training = lease.holder(directory) is not None
        is_done = not training and bool(events) and events[-1]["event"] == "finish" and step >= (total or 0)
        median = median_step(steps)
        return Overview(
            name=name,
            group=TRAINING if training else DONE if is_done else WAITING,
            step=step,
            total=total,
            loss=newest["loss"] if newest else None,
            losses=losses,
            tokens_per_second=median["tokens_per_second"] if median else None,
            left=seconds_left(content, total),
            last=", ".join([_last(directory, content, training, is_done), *history.troubles(events)]),
        )


def _signature(directory: Path) -> tuple[tuple[float, int], ...]:
    """Return (time of the last change, size) of each file that is read; zeros of one that does not exist."""
    signature = []
    for path in (directory / history.FILE, directory / run_events.FILE):
        try:
            status = path.stat()
            signature.append((status.st_mtime, status.st_size))
        except OSError:
            signature.append((0.0, 0))
    return tuple(signature)


def _last(directory: Path, content: Content, training: bool, is_done: bool) -> str:
    """Return in few words what happened last, or why a run with steps left does not train."""
    if not content.events:
        return "starting" if training else "not started"
    last = content.events[-1]
    step_time = float(content.steps[-1].get("time", 0)) if content.steps else 0.0
    if training and step_time > last["time"] and time.time() - step_time > QUIET_SECONDS:
        return f"last step {ago(step_time)}"
    if training:
        return f"{WORDS.get(last['event'], last['event'])} {ago(last['time'])}"
    if is_done:
        return f"done {ago(last['time'])}"
    if marker := stop_requests.read_marker(directory):
        return f"stopped by {marker['reason']}"
    if last["event"] == "finish":
        return "at its milestone"
    if last["event"] in ("hang", "stop"):
        return last.get("reason", "hung").removesuffix(": ")
    return f"killed {ago(max(last['time'], step_time))}"
