"""Predictions of a fitted law with intervals, by the bootstrap.

An interval covers two things: that other ladders would give another law (the points are resampled with replacement, and
the law is fitted again), and that a trained model does not lie on its law (the scatter of the points about the law, of
n - 5 degrees of freedom, is added as a t-distributed error of log L). With few points the second is most of it. It does
not cover that the target is trained in another way than the ladder, or that the law itself fails beyond the points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stages.lib.scaling_law.fit import fit, fit_near
from stages.lib.scaling_law.law import NUM_CONSTANTS, Law, Points

LEVEL = 0.95
"""Share of targets that the interval should contain."""

NUM_RESAMPLES = 300
DRAWS_PER_LAW = 20


@dataclass(frozen=True)
class Interval:
    """Predicted losses with the bounds of their intervals, float64 [num_targets] each."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Prediction:
    """The law of some points, and those of its resamples."""

    def __init__(self, points: Points, seed: int = 0, num_resamples: int = NUM_RESAMPLES) -> None:
        self.points, self.seed = points, seed
        self.law = fit(points)
        self.laws = resampled_laws(points, self.law, seed, num_resamples)

    @property
    def scatter(self) -> float:
        """The standard deviation of log L about the law."""
        residuals = np.log(self.points.loss / self.law.loss(self.points.parameters, self.points.tokens))
        return float(np.sqrt((residuals**2).sum() / self.freedom))

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the scatter: what the points have more than the law has constants."""
        return len(self.points) - NUM_CONSTANTS

    def of(self, parameters: np.ndarray | float, tokens: np.ndarray | float) -> Interval:
        """Return the predicted losses of models of N `parameters` trained on D `tokens`."""
        n, d = np.atleast_1d(parameters), np.atleast_1d(tokens)
        value = self.law.loss(n, d)
        errors = np.random.default_rng(self.seed + 1).standard_t(self.freedom, (len(self.laws), DRAWS_PER_LAW, 1))
        logs = np.log([law.loss(n, d) for law in self.laws])[:, None, :] + self.scatter * errors
        low, high = np.exp(np.quantile(logs.reshape(-1, len(n)), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0))
        return Interval(value, np.minimum(low, value), np.maximum(high, value))


def resampled_laws(points: Points, law: Law, seed: int, num_resamples: int) -> list[Law]:
    """Return the laws of `num_resamples` draws of as many points with replacement.

    A draw that cannot tell all constants is drawn again: too few different points, parameters or tokens.
    """
    random, laws = np.random.default_rng(seed), []
    while len(laws) < num_resamples:
        drawn = points.take(random.integers(len(points), size=len(points)))
        if drawn.is_enough():
            laws.append(fit_near(drawn, law))
    return laws
