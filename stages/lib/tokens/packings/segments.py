"""Segments of a source's token stream, of which rows are made."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Segments:
    """Segments of some rows, row after row and in each from left to right; int64 arrays [segments].

    `rows`: index of the row among the requested rows. `starts`, `counts`: tokens of the stream, each count at least 1.
    `places`: the column at which a segment begins. `closed`: whether the token after a segment is no target.
    """

    rows: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    places: np.ndarray
    closed: bool = False


def ranges(firsts: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All numbers of some ranges: (index of the range, the number), int64 arrays [sum of counts]."""
    of_range = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    return of_range, np.arange(len(of_range)) - before[of_range] + firsts[of_range]
