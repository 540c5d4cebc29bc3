"""The interface between the training loop and its observers: metrics, trackers, watchdog, profiler, progress."""

from typing import Any


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


class Callbacks(Callback):
    """Several callbacks, called in order."""

    def __init__(self, *callbacks: Callback) -> None:
        self.callbacks = list(callbacks)

    def add(self, callback: Callback) -> None:
        """Append a callback."""
        self.callbacks.append(callback)

    def before_step(self, step: int) -> None:
        """Call `before_step` of each callback."""
        for callback in self.callbacks:
            callback.before_step(step)

    def after_step(self, step: int) -> None:
        """Call `after_step` of each callback."""
        for callback in self.callbacks:
            callback.after_step(step)

    def phase(self, name: str, step: int) -> None:
        """Call `phase` of each callback."""
        for callback in self.callbacks:
            callback.phase(name, step)

    def evaluating(self, step: int, done: int, total: int) -> None:
        """Call `evaluating` of each callback."""
        for callback in self.callbacks:
            callback.evaluating(step, done, total)

    def metrics(self, entry: dict[str, Any]) -> None:
        """Call `metrics` of each callback."""
        for callback in self.callbacks:
            callback.metrics(entry)

    def event(self, event: str, step: int, facts: dict[str, Any]) -> None:
        """Call `event` of each callback."""
        for callback in self.callbacks:
            callback.event(event, step, facts)

    def close(self) -> None:
        """Call `close` of each callback."""
        for callback in self.callbacks:
            callback.close()
