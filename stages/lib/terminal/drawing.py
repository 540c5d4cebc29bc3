"""Small drawings in text: bars, sparklines, numbers and texts of a given width."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from stages.lib.terminal.progress import format_duration

LONG_SECONDS = 100 * 3600
"""Durations from which days and hours are shown."""


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
    means = [sum(values[a:b]) / (b - a) for a, b in zip(edges, edges[1:], strict=False)]
    if not means:
        return ""
    low, high = min(means), max(means)
    top = len(glyphs.levels) - 1
    return "".join(glyphs.levels[round((mean - low) / (high - low) * top) if high > low else 0] for mean in means)


def short_number(value: float) -> str:
    """Return a number in at most 6 characters: 950, 12.3k, 4.1M."""
    for unit in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5 or unit == "T":
            return f"{value:.0f}" if not unit else f"{value:.1f}{unit}"
        value /= 1000
    raise AssertionError


def short_duration(seconds: float) -> str:
    """Return a duration in at most 8 characters: 3:07, 2:03:07, from 100 hours on 12d 4h."""
    if seconds < LONG_SECONDS - 1:
        return format_duration(seconds)
    days, rest = divmod(round(seconds), 86400)
    return f"{days}d {rest // 3600}h"


def fit(text: str, width: int, glyphs: Glyphs) -> str:
    """Return one line of at most `width` characters, cut off at its end."""
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text if len(text) <= width else text[: max(0, width - 1)] + glyphs.cut[:width]
