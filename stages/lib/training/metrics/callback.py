"""The interface between the training loop and its observers: metrics, trackers, watchdog; and the progress line."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stages.lib.log import logger
from stages.lib.render.terminal import Progress
from stages.lib.run_directory import journal


class Callback:
    """An observer of the training loop. The methods do nothing by default."""

    def before_step(self, step: int) -> None:
        """Run before step `step`, counted from 1."""

    def after_step(self, step: int) -> None:
        """Run after step `step` was launched; its kernels may still run."""

    def phase(self, name: str, step: int) -> None:
        """Run when a phase begins: "step" after each step, "save" before a save, an evaluation or a rollback.

        "start" is the phase before the first step.
        """

    def evaluating(self, step: int, done: int, total: int) -> None:
        """Run before each forward pass of an evaluation after step `step`; `done` of the `total` were launched."""

    def metrics(self, entry: dict[str, Any]) -> None:
        """Receive a line of metrics.jsonl."""

    def event(self, event: str, step: int, facts: dict[str, Any]) -> None:
        """Receive a line of events.jsonl."""

    def close(self) -> None:
        """Run when the training ends, also if it failed."""


def _of_each(name: str) -> Callable[..., None]:
    """Return a method of `Callbacks` that calls the method of this name of each callback."""

    def method(self: Callbacks, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, name)(*arguments)

    return method


class Callbacks(Callback):
    """Several callbacks, called in order."""

    def __init__(self, *callbacks: Callback) -> None:
        self.callbacks = list(callbacks)

    def add(self, callback: Callback) -> None:
        """Append a callback."""
        self.callbacks.append(callback)

    before_step, after_step, phase = map(_of_each, ("before_step", "after_step", "phase"))
    evaluating, metrics, event, close = map(_of_each, ("evaluating", "metrics", "event", "close"))


SHOWN = {"loss": "loss", "rewards/margins": "margin"}
"""{name of a figure in metrics.jsonl: its name in the line}"""


class ProgressLine(Callback):
    """Show the progress towards step `until`, and of each evaluation; for the first rank only.

    The time left has the evaluations that are still to come, also the one after the last step. `every`: steps between
    two. `steps_per_evaluation`: the time of one in steps, until the first was measured. The line starts again after a
    rollback.
    """

    def __init__(self, until: int, tokens_per_step: int, every: int, steps_per_evaluation: float) -> None:
        self.until, self.tokens_per_step = until, tokens_per_step
        self.every, self.steps_per_evaluation = every, steps_per_evaluation
        self._progress: Progress | None = None
        self._first, self._begun = 0, 0.0
        self._evaluation: Progress | None = None
        self._evaluated = 0.0  # seconds of all evaluations since the first step
        self._last: float | None = None  # seconds of the last one
        self._shown: dict[str, float] = {}

    def before_step(self, step: int) -> None:
        """Start the clock at the first step."""
        if self._progress is None:
            self._first, self._begun, self._evaluated = step - 1, time.monotonic(), 0.0
            self._progress = Progress("step", self.until, self._first)

    def after_step(self, step: int) -> None:
        """Show the line."""
        assert self._progress is not None
        seconds = time.monotonic() - self._begun
        rate = (step - self._first) * self.tokens_per_step / seconds
        shown = "".join(f"{name} {figure:.3f}, " for name, figure in self._shown.items())
        per_step = (seconds - self._evaluated) / (step - self._first)
        per_evaluation = self.steps_per_evaluation * per_step if self._last is None else self._last
        evaluations = (self.until - 1) // self.every - (step - 1) // self.every + 1
        left = (self.until - step) * per_step + evaluations * per_evaluation
        self._progress.show(step, f"{shown}{rate:,.0f} tokens/s", left)

    def evaluating(self, step: int, done: int, total: int) -> None:
        """Show the progress of an evaluation; the log has a line each 30 s."""
        if not done:
            self._evaluation = Progress(f"validation at step {step}:", total)
            self._evaluation.logged = self._evaluation.started  # the end of each has a line, and a short one no other
        elif self._evaluation is not None:
            self._evaluation.show(done, f"({done / total:.0%})")

    def metrics(self, entry: dict[str, Any]) -> None:
        """Remember the figures of the last written step, and the duration of the last evaluation."""
        if "loss" in entry:
            self._shown = {name: entry[key] for key, name in SHOWN.items() if entry.get(key) is not None}
        if "validation" in entry:
            self._last = entry["validation_seconds"]
            self._evaluated += entry["validation_seconds"]

    def event(self, event: str, step: int, facts: dict[str, Any]) -> None:
        """Start again after a rollback."""
        if event == "rollback":
            self._progress = None


UNLOGGED = ("formula", "model_flops_per_token", "hardware_flops_per_token", "peak_flops")
"""Facts of an event that are in events.jsonl only."""


class MetricsWriter(Callback):
    """Writes the journals of a run directory; for the first rank only."""

    def __init__(self, directory: Path, world_size: int) -> None:
        self.directory, self.world_size = directory, world_size

    def metrics(self, entry: dict[str, Any]) -> None:
        """Append the line of a step or an evaluation, and log the losses of the latter."""
        journal.append(self.directory / "metrics.jsonl", entry)
        if "validation" in entry:
            results = entry["validation"]
            losses = ", ".join(f"{source} {scores['loss']:.4f}" for source, scores in results.items())
            logger.info("validation loss at step %s, in %.1f s: %s", entry["step"], entry["validation_seconds"], losses)

    def event(self, event: str, step: int, facts: dict[str, Any]) -> None:
        """Append the line of an event, and log it, except a stop: its reason is the last line of the stage."""
        if event != "stop":
            logged = ", ".join(f"{name} {value}" for name, value in facts.items() if name not in UNLOGGED)
            level = logging.WARNING if event == "rollback" else logging.INFO
            logger.log(level, "%s at step %s%s", event, step, f": {logged}" if logged else "")
        entry = {"time": time.time(), "event": event, "step": step, "world_size": self.world_size, **facts}
        journal.append(self.directory / "events.jsonl", entry)
