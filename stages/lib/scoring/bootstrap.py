"""Bootstrap over documents: standard errors and intervals of scores that are a mean or a ratio of sums.

A score such as bits per byte is a ratio of two sums over documents, which has no standard error in a closed form. So
documents are drawn with replacement, as many as there are, and the score is computed of each draw. Drawing n of n
documents understates the variance by (n - 1) / n, for a mean exactly; all results here are widened by that, so that
the standard error of a mean is the one that lm-evaluation-harness computes (Efron and Tibshirani, An Introduction to
the Bootstrap, 1993).
"""

from __future__ import annotations

import math

import numpy as np

RESAMPLES = 10_000
"""Draws of all documents. The standard error of a standard error is then 0.7%."""

BLOCK = 1 << 18
"""Documents drawn at once: 2 MiB of indices, which stay in the cache; a bound of the memory too."""


def resampled_sums(columns: np.ndarray, seed: int, resamples: int = RESAMPLES) -> np.ndarray:
    """Return the sums of `columns` [documents, K] over documents drawn with replacement: [resamples, K].

    The draws depend on the seed and the number of documents alone, so that two arrays get the same ones.
    """
    rng = np.random.default_rng(seed)
    count = len(columns)
    contiguous = [np.ascontiguousarray(column, np.float64) for column in columns.T]
    sums = np.empty((resamples, len(contiguous)))
    at_once = max(1, BLOCK // count)
    for first in range(0, resamples, at_once):
        drawn = rng.integers(count, size=(min(at_once, resamples - first), count))
        for number, column in enumerate(contiguous):
            sums[first : first + len(drawn), number] = column[drawn].sum(axis=1)
    return sums


def standard_error(resampled: np.ndarray, count: int) -> float:
    """Return the standard error of a score of `count` documents by its resampled values; NaN for one document."""
    return float(resampled.std()) * _widening(count)


def interval(estimate: float, resampled: np.ndarray, count: int, level: float = 0.95) -> tuple[float, float]:
    """Return the bounds of a score of `count` documents, quantiles of its resampled values; NaN for one document.

    The quantiles' distances from the estimate are widened. The interval always contains the estimate.
    """
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2]) - estimate
    widening = _widening(count)
    return estimate + min(0.0, float(low)) * widening, estimate + max(0.0, float(high)) * widening


def standard_error_of_ratio(numerators: np.ndarray, denominators: np.ndarray, seed: int) -> float:
    """Return the standard error of sum(numerators) / sum(denominators) over documents; NaN for one document.

    `denominators`: bytes or words of the documents, positive. Bits per byte has -ll / ln 2 as numerators.
    """
    sums = resampled_sums(np.stack([numerators, denominators], axis=1), seed)
    return standard_error(sums[:, 0] / sums[:, 1], len(numerators))


def _widening(count: int) -> float:
    return math.sqrt(count / (count - 1)) if count > 1 else math.nan
