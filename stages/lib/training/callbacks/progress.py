"""The progress line of a training: step, loss, speed, time left."""

from __future__ import annotations

import time
from typing import Any

from stages.lib.terminal.progress import Progress
from stages.lib.training.callbacks.callback import Callback

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
