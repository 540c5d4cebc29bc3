"""The progress line of a training: step, loss, speed, time left."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from stages.lib.log import CLEAR, logger
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


class Progress:
    """One line that is rewritten on a terminal; the log gets a line every 30 s."""

    TERMINAL_SECONDS, LOG_SECONDS = 0.2, 30

    def __init__(self, title: str, total: int, done: int) -> None:
        """`done` of the `total` were done before this attempt, and do not count for the time left."""
        self.title, self.total, self.first = title, total, done
        self.started = time.monotonic()
        self.terminal = sys.stderr.isatty()
        self.shown = self.logged = -math.inf

    def show(self, done: int, text: str) -> None:
        """Show that `done` of the total are done, followed by `text`."""
        now = time.monotonic()
        left = (now - self.started) / max(1, done - self.first) * (self.total - done)
        line = f"{self.title} {done}/{self.total} {text}, {format_duration(left)} left"
        if done == self.total or now - self.logged >= self.LOG_SECONDS:
            self.logged = now
            logger.info("%s", line)
        if self.terminal and (done == self.total or now - self.shown >= self.TERMINAL_SECONDS):
            self.shown = now
            self._rewrite(line, "\n" if done == self.total else "")

    def _rewrite(self, line: str, end: str) -> None:
        try:
            print(f"{CLEAR}{line}", end=end, file=sys.stderr, flush=True)
        except OSError:  # the terminal was closed, which must not end the training
            self.terminal = False


def format_duration(seconds: float) -> str:
    """Return a duration as 3:07 (minutes) or 2:03:07 (hours)."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
