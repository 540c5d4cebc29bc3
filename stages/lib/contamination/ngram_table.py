"""A table of n-grams of one length: 64-bit hashes to look up, and the words to compare.

A hash only proposes: a window of a text is found if its words are those of the n-gram, so a collision is never a hit.
"""

from __future__ import annotations

import numpy as np

BASE = 0x9E3779B97F4A7C15
"""Base of the polynomial hash, modulo 2^64: odd, without a pattern."""

FILTER_SLOTS = 16
"""Bytes of the filter per n-gram: one window in 16 of a text without a hit goes on to the binary search."""


class NgramTable:
    """The n-grams of `n` words at `starts` [entries] of `ids` [words], the items' words as numbers.

    `rows` [entries]: the row of each entry; equal n-grams share one, unless their hashes collide with another's.
    `num_rows`: their number.
    """

    def __init__(self, ids: np.ndarray, values: np.ndarray, starts: np.ndarray, n: int) -> None:
        """Sort the n-grams. `values` [words]: random numbers for the words of `ids`."""
        self.ids, self.n = ids, n
        hashes = window_hashes(values, n)[starts]
        order = np.argsort(hashes, kind="stable")
        sorted_starts, sorted_hashes = starts[order], hashes[order]
        again = np.zeros(len(order), bool)
        again[1:] = sorted_hashes[1:] == sorted_hashes[:-1]
        for offset in range(n):
            again[1:] &= ids[sorted_starts[1:] + offset] == ids[sorted_starts[:-1] + offset]
        self.starts, self.hashes = sorted_starts[~again], sorted_hashes[~again]
        self.num_rows = len(self.starts)
        self.rows = np.empty(len(order), np.int64)
        self.rows[order] = np.cumsum(~again) - 1
        bits = max(1, (FILTER_SLOTS * len(self.starts)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._filter = np.zeros(1 << bits, bool)
        self._filter[self.hashes >> self._shift] = True

    def find(self, ids: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (rows, places) of all n-grams in a text: `ids` and `values` of its words; a place is a word's."""
        hashes = window_hashes(values, self.n)
        places = np.flatnonzero(self._filter[hashes >> self._shift])
        hashes = hashes[places]
        at: np.ndarray = np.searchsorted(self.hashes, hashes)  # type: ignore[assignment]
        rows_found, places_found = [], []
        while len(at):  # once, and again for n-grams whose hashes collide
            same = self.hashes[np.minimum(at, self.num_rows - 1)] == hashes
            same &= at < self.num_rows
            at, hashes, places = at[same], hashes[same], places[same]
            equal = self._equal(ids, places, at)
            rows_found.append(at[equal])
            places_found.append(places[equal])
            at = at + 1
        return np.concatenate([np.empty(0, np.int64), *rows_found]), np.concatenate(
            [np.empty(0, np.int64), *places_found]
        )

    def _equal(self, ids: np.ndarray, places: np.ndarray, rows: np.ndarray) -> np.ndarray:
        equal = np.ones(len(rows), bool)
        starts = self.starts[rows]
        for offset in range(self.n):
            equal &= ids[places + offset] == self.ids[starts + offset]
        return equal


def window_hashes(values: np.ndarray, n: int) -> np.ndarray:
    """Return the hash of each window of `n` values, uint64 [len(values) - n + 1], in about 2 log2(n) passes.

    `values`: uint64. The hash of a window of two parts is that of the first times BASE^(words of the second) plus that
    of the second; windows of 1, 2, 4, ... words are put together.
    """
    num_windows = len(values) - n + 1
    if num_windows <= 0:
        return np.empty(0, np.uint64)
    hashes, covered = np.zeros(num_windows, np.uint64), 0
    power, width = values, 1  # the hash of each window of `width` words
    while covered < n:
        if n & width:
            hashes = hashes * _base_to(width) + power[covered : covered + num_windows]
            covered += width
        if covered < n:
            power = power[: len(power) - width] * _base_to(width) + power[width:]
            width *= 2
    return hashes


def _base_to(exponent: int) -> np.uint64:
    return np.uint64(pow(BASE, exponent, 1 << 64))
