"""Statistics of a difference between two models: on the documents that both logs have, or from two standard errors.

The interval of a paired difference is a bootstrap over documents. Its p-value is that of a randomization test: if both
models were equally good, their scores of a document could be swapped. For accuracies that is McNemar's test. A
bootstrap's own p-value would be too small where few documents differ: with 5, all in favor of one model, it is 0.01,
while a fair coin falls five times on the same side with a probability of 0.06.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stages.lib.scoring import aggregations
from stages.lib.scoring.aggregations import DocumentScores, document_scores
from stages.lib.scoring.sample_logs import Document, SampleLog


class Joined:
    """The samples of two logs, by document."""

    def __init__(self, reference: SampleLog, other: SampleLog, metric: str) -> None:
        """Join the samples that have the same number and the same hash."""
        self.metric = metric
        self.origins = reference.origins
        self.found = [log.values(metric) for log in (reference, other)]
        shared = sorted(self.found[0].keys() & self.found[1].keys())
        self.changed = [at for at in shared if self.found[0][at][0] != self.found[1][at][0]]
        self.documents = [at for at in shared if self.found[0][at][0] == self.found[1][at][0]]

    def reason_to_leave_out(self) -> str | None:
        """Return why the logs are of two tasks with one name; None if they are of one."""
        if self.changed:
            count = len(self.changed) + len(self.documents)
            return f"{len(self.changed)} of {count} documents have another hash: the task or its data changed"
        return None if self.documents else "the logs have no document in common"

    def reason_not_to_pair(self, values: Sequence[float]) -> str | None:
        """Return why the score cannot be computed from samples; None if it can. `values`: those of the manifests."""
        whole = [self._scores(number, [*found]) for number, found in enumerate(self.found)]
        if whole[0] is None or whole[1] is None or whole[0].of_ratio is not whole[1].of_ratio:
            return f"{self.metric} is no function of a sum over documents, or is missing for one"
        for scores, value in zip(whole, values, strict=True):
            if scores is not None and not math.isclose(scores.score(), value, rel_tol=1e-6, abs_tol=1e-9):
                return f"{self.metric} of its samples is {scores.score():.6g}, and its score is {value:.6g}"
        return None

    def scores(self) -> tuple[DocumentScores, DocumentScores]:
        """Return the scores of the joined documents, in the same order."""
        first, second = self._scores(0, self.documents), self._scores(1, self.documents)
        assert first is not None and second is not None  # checked by reason_not_to_pair
        return first, second

    def _scores(self, number: int, documents: Sequence[Document]) -> DocumentScores | None:
        values = [self.found[number][document][1] for document in documents]
        # samples that are cut from one document of a corpus are not independent
        origins = [self.origins.get(document, str(document)) for document in documents]
        return document_scores(self.metric, values, origins)

    def notes(self) -> list[str]:
        """Return a note if one log has more documents than the other."""
        counts = [len(found) for found in self.found]
        if counts == [len(self.documents)] * 2:
            return []
        return [f"{len(self.documents)} documents are in both logs, which have {counts[0]} and {counts[1]}"]


SEED = 0
LEVEL = 0.95
TIES = 1e-9
"""Relative rounding within which a difference of swapped scores counts as equal to the observed one."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference of scores, its interval and its p-value; None for those that cannot be computed."""

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None


def paired(reference: DocumentScores, other: DocumentScores) -> Difference:
    """Return the difference other - reference of scores of the same documents, in the same order."""
    value = other.score() - reference.score()
    count = len(reference.columns)
    if count < 2:
        return Difference(value=value, p=1.0)
    both = np.concatenate([reference.columns, other.columns], axis=1)
    low, high = aggregations.interval(
        value, _differences(aggregations.resampled_sums(both, SEED), reference), count, LEVEL
    )
    return Difference(value=value, low=low, high=high, p=_randomization_test(both, reference))


def _differences(sums: np.ndarray, scores: DocumentScores) -> np.ndarray:
    """Return the differences of scores by sums [..., 4] of the columns of the reference and of the other model."""
    return scores.of_ratio(sums[:, 2] / sums[:, 3]) - scores.of_ratio(sums[:, 0] / sums[:, 1])


def _randomization_test(both: np.ndarray, scores: DocumentScores) -> float:
    """Return the p-value: the share of random swaps with a difference at least as large as the observed one."""
    total = both.sum(axis=0)
    change = (both[:, 2:] - both[:, :2])[(both[:, 2:] != both[:, :2]).any(axis=1)]
    observed = abs(_differences(total[None], scores)[0])
    larger = 0
    for swaps in _swaps(len(change)):
        moved = swaps @ change
        differences = _differences(total + np.concatenate([moved, -moved], axis=1), scores)
        larger += int((np.abs(differences) >= observed * (1 - TIES)).sum())
    return (1 + larger) / (1 + aggregations.RESAMPLES)


def _swaps(count: int) -> Iterator[np.ndarray]:
    """Yield random zeros and ones for `count` documents, [rows, count], RESAMPLES rows in all."""
    rng = np.random.default_rng(SEED)
    at_once = max(1, aggregations.BLOCK // max(1, count))
    for first in range(0, aggregations.RESAMPLES, at_once):
        rows = min(at_once, aggregations.RESAMPLES - first)
        bits = rng.integers(256, size=(rows, -(-count // 8)), dtype=np.uint8)
        yield np.unpackbits(bits, axis=1, count=count).astype(np.float64)


def unpaired(value: float, errors: Sequence[float | None]) -> Difference:
    """Return a difference whose models count as independent, which is cautious if their documents are the same.

    `errors`: the two standard errors. The difference has a normal distribution if both are known.
    """
    known = [error for error in errors if error is not None]
    if len(known) < len(errors):
        return Difference(value=value)
    error = math.hypot(*known)
    p = math.erfc(abs(value) / error / math.sqrt(2)) if error else float(value == 0)
    margin = 1.959964 * error
    return Difference(value=value, low=value - margin, high=value + margin, p=p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values that are corrected for their number (Holm, A Simple Sequentially Rejective Procedure, 1979).

    The probability of one false rejection or more among all is then at most the level, however they depend on each
    other.
    """
    order = sorted(range(len(p_values)), key=lambda number: p_values[number])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, number in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[number]))
        corrected[number] = largest
    return corrected
