"""Output on a terminal: bars, sparklines and texts of a given width, and a line of progress."""

from __future__ import annotations

import codecs
import itertools
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO, TypeVar

from stages.lib.log import CLEAR, logger
from stages.lib.render import numbers

Item = TypeVar("Item")


@dataclass(frozen=True)
class Glyphs:
    """The characters of bars and sparklines."""

    full: str
    empty: str
    levels: str
    """From the lowest to the highest."""

    cut: str
    """The end of a text that was cut off."""


BLOCKS = Glyphs("\u2588", "\u2591", "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588", "\u2026")
ASCII = Glyphs("#", "-", "_.-~=+*#", "~")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Return block characters if an output of this encoding can show them, ASCII otherwise."""
    try:
        "".join((BLOCKS.full, BLOCKS.empty, BLOCKS.levels, BLOCKS.cut)).encode(codecs.lookup(encoding or "ascii").name)
    except (LookupError, UnicodeEncodeError):
        return ASCII
    return BLOCKS


def bar(share: float, width: int, glyphs: Glyphs) -> str:
    """Return a bar of which `share`, from 0 to 1, is full."""
    full = int(min(1.0, max(0.0, share)) * width)
    return glyphs.full * full + glyphs.empty * (width - full)


def sparkline(values: Sequence[float], width: int, glyphs: Glyphs) -> str:
    """Return a curve of at most `width` characters; each is the mean of as many neighbours."""
    count = min(width, len(values))
    edges = [len(values) * number // max(1, count) for number in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    if not means:
        return ""
    low, high = min(means), max(means)
    top = len(glyphs.levels) - 1
    return "".join(glyphs.levels[round((mean - low) / (high - low) * top) if high > low else 0] for mean in means)


def fit(text: str, width: int, glyphs: Glyphs) -> str:
    """Return one line of at most `width` characters, cut off at its end."""
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text if len(text) <= width else text[: max(0, width - 1)] + glyphs.cut[:width]


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
        line = f"{self.title} {done}/{self.total} {text}, {numbers.clock(left)} left"
        if done == self.total or now - self.logged >= self.LOG_SECONDS:
            self.logged = now
            logger.info("%s", line)
        if self.terminal and (done == self.total or now - self.shown >= self.TERMINAL_SECONDS):
            self.shown = now
            try:
                print(f"{CLEAR}{line}", end="\n" if done == self.total else "", file=self.stream, flush=True)
            except OSError:  # the terminal was closed, which must not end the training
                self.terminal = False

    def advance(self) -> None:
        """Show that one more is done, and the share of the total."""
        self.done += 1
        self.show(self.done, f"({self.done / self.total:.0%})")


def track(title: str, items: Sequence[Item], stream: TextIO | None = None) -> Iterator[Item]:
    """Yield the items, and show how many of them the caller is done with."""
    progress = Progress(title, len(items), stream=stream)
    for item in items:
        yield item
        progress.advance()
