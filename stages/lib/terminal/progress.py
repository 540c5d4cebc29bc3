"""A line of progress: rewritten on a terminal, appended to the log now and then."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TextIO, TypeVar

from stages.lib.log import CLEAR, logger

Item = TypeVar("Item")


class Progress:
    """One line that is rewritten on a terminal; the log gets a line every 30 s."""

    TERMINAL_SECONDS, LOG_SECONDS = 0.2, 30

    def __init__(self, title: str, total: int, done: int = 0, stream: TextIO | None = None) -> None:
        """`done` of the `total` were done before this attempt, and do not count for the time left.

        `stream`: the terminal, if stderr is redirected.
        """
        self.title, self.total, self.first, self.done = title, total, done, done
        self.started = time.monotonic()
        self.stream = stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.shown = self.logged = -math.inf

    def show(self, done: int, text: str, left: float | None = None) -> None:
        """Show that `done` of the total are done, followed by `text` and the time left: seconds, or by the speed."""
        now = time.monotonic()
        if left is None:
            left = (now - self.started) / max(1, done - self.first) * (self.total - done)
        line = f"{self.title} {done}/{self.total} {text}, {format_duration(left)} left"
        if done == self.total or now - self.logged >= self.LOG_SECONDS:
            self.logged = now
            logger.info("%s", line)
        if self.terminal and (done == self.total or now - self.shown >= self.TERMINAL_SECONDS):
            self.shown = now
            self._rewrite(line, "\n" if done == self.total else "")

    def advance(self) -> None:
        """Show that one more is done, and the share of the total."""
        self.done += 1
        self.show(self.done, f"({self.done / self.total:.0%})")

    def _rewrite(self, line: str, end: str) -> None:
        try:
            print(f"{CLEAR}{line}", end=end, file=self.stream, flush=True)
        except OSError:  # the terminal was closed, which must not end the training
            self.terminal = False


def track(title: str, items: Sequence[Item], stream: TextIO | None = None) -> Iterator[Item]:
    """Yield the items, and show how many of them the caller is done with."""
    progress = Progress(title, len(items), stream=stream)
    for item in items:
        yield item
        progress.advance()


def format_duration(seconds: float) -> str:
    """Return a duration as 3:07 (minutes) or 2:03:07 (hours)."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
