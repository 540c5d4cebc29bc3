"""One run in short: progress, speed, time left, losses over the whole run, what happened last."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib.errors import UserError
from stages.lib.run_directory import events as run_events
from stages.lib.run_directory import history, lease
from stages.lib.training import stop_requests
from tools.status.describe import ago, evaluation_seconds, median_step, seconds_left, total_steps

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


@dataclass(frozen=True)
class _Content:
    """Content of the files of a run directory."""

    events: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    losses: tuple[float, ...]
    evaluation: float
    """Seconds of the last evaluation."""


class Reader:
    """Reads run directories; files that did not change since the last time are not read again."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[Any, ...], _Content]] = {}

    def read_all(self, results: Path) -> list[Overview]:
        """Return the overview of each run: of its directory that trains, else of the one that changed last."""
        homes = sorted(path for path in results.glob("runs/*") if path.is_dir())
        found = []
        for home in homes:
            directories = [path for path in home.glob("train/*") if path.is_dir()]
            if directories:
                found.append(self.read(home.name, max(directories, key=_rank)))
        return found

    def read(self, name: str, directory: Path) -> Overview:
        """Return the overview of one run directory."""
        content = self._content(directory)
        events, steps = content.events, content.steps
        newest = steps[-1] if steps else None
        total = total_steps(events, ())
        step = newest["step"] if newest else 0
        training = lease.holder(directory) is not None
        done = not training and bool(events) and events[-1]["event"] == "finish" and step >= (total or 0)
        median = median_step(steps)
        return Overview(
            name=name,
            group=TRAINING if training else DONE if done else WAITING,
            step=step,
            total=total,
            loss=newest["loss"] if newest else None,
            losses=content.losses,
            tokens_per_second=median["tokens_per_second"] if median else None,
            left=seconds_left(steps, total, content.evaluation),
            last=_last(directory, content, training, done),
        )

    def _content(self, directory: Path) -> _Content:
        paths = directory / history.FILE, directory / run_events.FILE
        signature = tuple(_signature(path) for path in paths)
        known = self._known.get(directory)
        if known is None or known[0] != signature:
            known = signature, _read(directory)
            self._known[directory] = known
        return known[1]


def _rank(directory: Path) -> tuple[bool, float]:
    """Return what orders the directories of a run: one that trains, then the time of the last change."""
    changes = (_signature(directory / name) for name in (history.FILE, run_events.FILE))
    return lease.holder(directory) is not None, max(change[0] for change in changes)


def _signature(path: Path) -> tuple[float, int]:
    """Return (time of the last change, size) of a file; zeros if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return 0.0, 0
    return found.st_mtime, found.st_size


def _read(directory: Path) -> _Content:
    try:
        events = run_events.read_events(directory)
        entries = list(history.entries(directory, events, TAIL))
        steps, losses = (
            [entry for entry in entries if "loss" in entry],
            history.sample_losses(directory, events, LOSSES),
        )
        return _Content(events, steps, tuple(losses), evaluation_seconds(entries))
    except UserError:  # for example a file of another user
        return _Content([], [], (), 0.0)


def _last(directory: Path, content: _Content, training: bool, done: bool) -> str:
    """Return what happened last, with the counts of problems, in few words."""
    events = content.events
    if not events:
        last = "starting" if training else "not started"
    elif training:
        last = _last_of_training(content)
    else:
        last = f"done {ago(events[-1]['time'])}" if done else _reason_of_end(directory, content)
    return ", ".join([last, *history.troubles(events)])


def _last_of_training(content: _Content) -> str:
    last, step_time = content.events[-1], _time_of_last_step(content)
    if step_time > last["time"] and time.time() - step_time > QUIET_SECONDS:
        return f"last step {ago(step_time)}"
    return f"{WORDS.get(last['event'], last['event'])} {ago(last['time'])}"


def _reason_of_end(directory: Path, content: _Content) -> str:
    """Return why a run with steps left does not train."""
    last = content.events[-1]
    if marker := stop_requests.read_marker(directory):
        return f"stopped by {marker['reason']}"
    if last["event"] == "finish":
        return "at its milestone"
    if last["event"] in ("hang", "stop"):
        return last.get("reason", "hung").removesuffix(": ")
    return f"killed {ago(max(last['time'], _time_of_last_step(content)))}"


def _time_of_last_step(content: _Content) -> float:
    return float(content.steps[-1].get("time", 0)) if content.steps else 0.0
