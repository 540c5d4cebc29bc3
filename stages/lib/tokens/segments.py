"""Of which pieces of a source's stream rows are made."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Segments:
    """Pieces of some rows, row after row and in each from left to right; int64 arrays [pieces].

    `rows`: in which of the rows that were asked for. `starts`, `counts`: which tokens of the stream, each count at
    least 1. `places`: the column at which a piece begins. `closed`: whether the token behind a piece is no target.
    """

    rows: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    places: np.ndarray
    closed: bool = False


def ranges(firsts, counts):
    """All numbers of some ranges: (of which range, the number), int64 arrays [sum of counts]."""
    of_range = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    return of_range, np.arange(len(of_range)) - before[of_range] + firsts[of_range]
