"""Aggregations of lm-evaluation-harness as functions of a ratio of two sums over documents, which can be resampled.

A metric without an entry is the mean of its values. Metrics whose values are not numbers and that have no entry, such
as F1 over a task or BLEU, are no such function, and cannot be paired.

They are resampled by a bootstrap over documents. A score such as bits per byte is a ratio of two sums over documents,
which has no standard error in a closed form. So documents are drawn with replacement, as many as there are, and the
score is computed of each draw. Drawing n of n documents understates the variance by (n - 1) / n, for a mean exactly;
all results here are widened by that, so that the standard error of a mean is the one that lm-evaluation-harness
computes (Efron and Tibshirani, An Introduction to the Bootstrap, 1993).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BITS_OF_ANSWER = "bpb"
"""Bits per byte of the right answer, a metric that every task with choices has beside those of the harness."""

TOKEN_ACCURACY, CENTERED = "acc_token", "centered"
"""Of tasks that state their `chance`: accuracy by the mean log-likelihood per token, as in DCLM, and
(accuracy - chance) / (1 - chance)."""

OfRatio = Callable[[np.ndarray], np.ndarray]


def _mean(ratio: np.ndarray) -> np.ndarray:
    return ratio


def _perplexity(ratio: np.ndarray) -> np.ndarray:
    return np.exp(-ratio)


OF_NUMBERS: Mapping[str, OfRatio] = {"perplexity": _perplexity}
"""Functions of the mean; a metric that is not here is the mean itself."""

OF_PAIRS: Mapping[str, OfRatio] = {
    "bits_per_byte": lambda ratio: -ratio / math.log(2),
    "byte_perplexity": _perplexity,
    "word_perplexity": _perplexity,
}
"""Functions of sum(log-likelihoods) / sum(weights), of metrics with a pair per document."""


@dataclass(frozen=True)
class DocumentScores:
    """The scores of documents: the score over all of them is of_ratio(sum of column 0 / sum of column 1).

    A document has one row, whatever the number of pieces or questions that it was cut into: those are not independent.
    """

    columns: np.ndarray
    """[documents, 2]"""

    of_ratio: OfRatio

    def score(self) -> float:
        """Return the score over all documents."""
        return float(self.of_ratio(self._ratio()))

    def standard_error(self) -> float | None:
        """Return the standard error of the score by the delta method, of a mean the harness's; None for one document.

        It needs no draws, unlike the bootstrap, for which the score's distribution need not be nearly normal.
        """
        count = len(self.columns)
        if count < 2:
            return None
        influences = self.influences()
        return math.sqrt(float(influences @ influences) * count / (count - 1))

    def influences(self) -> np.ndarray:
        """Return by how much each document moves the score, to first order; [documents]."""
        ratio = self._ratio()
        step = 1e-6 * max(1.0, abs(float(ratio)))
        slope = (self.of_ratio(ratio + step) - self.of_ratio(ratio - step)) / (2 * step)
        return slope * (self.columns[:, 0] - ratio * self.columns[:, 1]) / self.columns[:, 1].sum()

    def _ratio(self) -> np.ndarray:
        numerator, denominator = self.columns.sum(axis=0)
        return numerator / denominator


def standard_error(
    metric: str, values: Sequence[Any], seed: int, documents: Sequence[str] | None = None
) -> float | None:
    """Return the standard error of a metric, by bootstrap over documents; None if it has none, or one document."""
    scores = document_scores(metric, values, documents)
    if scores is None or len(scores.columns) < 2:
        return None
    sums = resampled_sums(scores.columns, seed)
    error = resampled_error(scores.of_ratio(sums[:, 0] / sums[:, 1]), len(scores.columns))
    return error if math.isfinite(error) else None


def document_scores(
    metric: str, values: Sequence[Any], documents: Sequence[str] | None = None
) -> DocumentScores | None:
    """Return the scores of documents by a log's values of a metric, METRIC or METRIC/FILTER.

    `documents`: the document that each value belongs to; without it, each has its own. None if there is none, a value
    is missing, or the metric's aggregation is not known.
    """
    name = metric.partition("/")[0]
    if not len(values):
        return None
    if all(map(_is_number, values)):
        numbers = np.asarray(values, np.float64)
        columns = np.stack([numbers, np.ones(len(numbers))], axis=1)
        return DocumentScores(_by_document(columns, documents), OF_NUMBERS.get(name, _mean))
    if name in OF_PAIRS and all(map(_is_pair, values)):
        return DocumentScores(_by_document(np.asarray(values, np.float64), documents), OF_PAIRS[name])
    return None


def _by_document(columns: np.ndarray, documents: Sequence[str] | None) -> np.ndarray:
    """Return the sums of `columns` [values, 2] per document, in the order of their first values."""
    if documents is None:
        return columns
    numbers: dict[str, int] = {}
    at = [numbers.setdefault(document, len(numbers)) for document in documents]
    sums = np.zeros((len(numbers), 2))
    np.add.at(sums, at, columns)
    return sums


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)  # a truth value counts as 0 or 1


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value)) and value[1] >= 0


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


def resampled_error(resampled: np.ndarray, count: int) -> float:
    """Return the standard error of a score of `count` documents by its resampled values; NaN for one document."""
    return float(resampled.std()) * _widening(count)


def interval(estimate: float, resampled: np.ndarray, count: int, level: float = 0.95) -> tuple[float, float]:
    """Return the bounds of a score of `count` documents, quantiles of its resampled values; NaN for one document.

    The quantiles' distances from the estimate are widened. The interval always contains the estimate.
    """
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2]) - estimate
    widening = _widening(count)
    return estimate + min(0.0, float(low)) * widening, estimate + max(0.0, float(high)) * widening


def _widening(count: int) -> float:
    return math.sqrt(count / (count - 1)) if count > 1 else math.nan
