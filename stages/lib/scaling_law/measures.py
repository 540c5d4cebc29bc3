"""The prediction of one measure of a target with its interval, as plain data.

A measure is the validation loss per token, or in bits per byte.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.lib.scaling_law.law import NUM_CONSTANTS, Law, Points, fit, fit_near
from stages.lib.scaling_law.rungs import Rung

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


CURVE_POINTS = 24
DIGITS = 6


def predict(rungs: Sequence[Rung], values: Sequence[float]) -> Prediction:
    """Return the prediction by a measure of a ladder's models. Raises UserError if they are too few for a fit."""
    points = Points.of((rung.parameters, rung.tokens, value) for rung, value in zip(rungs, values, strict=True))
    points.check("--models")
    return Prediction(points)


def result(prediction: Prediction, parameters: int, tokens: int) -> dict[str, Any]:
    """Return value, bounds, law and scatter of a measure of a model of N `parameters` trained on D `tokens`."""
    interval = prediction.of(parameters, tokens)
    law = {name: _rounded(value) for name, value in dataclasses.asdict(prediction.law).items()}
    return {
        **{name: _rounded(getattr(interval, name)[0]) for name in ("value", "low", "high")},
        "level": LEVEL,
        "law": law,
        "scatter": _rounded(prediction.scatter),
    }


def curve(prediction: Prediction, parameters: int, tokens: int) -> list[dict[str, float]]:
    """Return the law and its band for models from the smallest of the ladder up to the target, for a figure.

    They have the target's tokens per parameter.
    """
    sizes = np.geomspace(prediction.points.parameters.min(), parameters, CURVE_POINTS)
    interval = prediction.of(sizes, sizes * (tokens / parameters))
    columns = {"parameters": sizes, "tokens": sizes * (tokens / parameters)}
    columns |= {name: getattr(interval, name) for name in ("value", "low", "high")}
    return [{name: _rounded(column[row]) for name, column in columns.items()} for row in range(CURVE_POINTS)]


def _rounded(value: float) -> float:
    """Round to a few digits: the last ones differ between machines, and the digest would."""
    return float(f"{float(value):.{DIGITS}g}")
