"""The progress line of a training: step, loss, speed, time left."""

from __future__ import annotations

import time
from typing import Any

from stages.lib.terminal.progress import Progress
from stages.lib.training.callbacks.callback import Callback

SHOWN = {"loss": "loss", "rewards/margins": "margin"}
"""{name of a figure in metrics.jsonl: its name in the line}"""


class ProgressLine(Callback):
    """Show the progress towards step `until`; for the first rank only. It starts again after a rollback."""

    def __init__(self, until: int, tokens_per_step: int) -> None:
        self.until, self.tokens_per_step = until, tokens_per_step
        self._progress: Progress | None = None
        self._first, self._begun = 0, 0.0
        self._shown: dict[str, float] = {}

    def before_step(self, step: int) -> None:
        """Start the clock at the first step."""
        if self._progress is None:
            self._first, self._begun = step - 1, time.monotonic()
            self._progress = Progress("step", self.until, self._first)

    def after_step(self, step: int) -> None:
        """Show the line."""
        assert self._progress is not None
        rate = (step - self._first) * self.tokens_per_step / (time.monotonic() - self._begun)
        shown = "".join(f"{name} {figure:.3f}, " for name, figure in self._shown.items())
        self._progress.show(step, f"{shown}{rate:,.0f} tokens/s")

    def metrics(self, entry: dict[str, Any]) -> None:
        """Remember the figures of the last written step."""
        if "loss" in entry:
            self._shown = {name: entry[key] for key, name in SHOWN.items() if entry.get(key) is not None}

    def event(self, event: str, step: int, facts: dict[str, Any]) -> None:
        """Start again after a rollback."""
        if event == "rollback":
            self._progress = None
