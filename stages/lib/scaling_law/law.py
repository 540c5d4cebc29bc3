"""The scaling law of Chinchilla: L(N, D) = E + A / N^alpha + B / D^beta (arXiv 2203.15556, equation 2).

It is fitted as in Chinchilla's approach 3 (section 3.3): the Huber loss of the residuals of log L is minimized by
L-BFGS from a grid of starts. Residuals are summed, not averaged, and scaled: with a small objective L-BFGS stops too
early (Besiroglu et al., arXiv 2404.10102).

A prediction of one measure, the validation loss per token or in bits per byte, has an interval from resampled points.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from stages.lib.errors import UserError
from stages.lib.scaling_law.rungs import Rung

NUM_CONSTANTS = 5
MIN_POINTS = NUM_CONSTANTS + 2
"""Fewest points of a fit: from fewer, the scatter about the law cannot be told, and no interval can be given."""

MIN_DIFFERENT = 3
"""Fewest different values of parameters, and of tokens: a constant and a power of them have three unknowns."""


@dataclass(frozen=True)
class Law:
    """The constants of the law, for a loss in nats per token (or in any other unit, which E, A and B then have)."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, parameters: np.ndarray | float, tokens: np.ndarray | float) -> np.ndarray:
        """Return the loss of models of N `parameters` trained on D `tokens`, arrays entry by entry."""
        n, d = np.asarray(parameters, float), np.asarray(tokens, float)
        return self.E + self.A * n**-self.alpha + self.B * d**-self.beta


@dataclass(frozen=True)
class Points:
    """Trained models: number of parameters, number of tokens, and loss, float64 [num_points] each."""

    parameters: np.ndarray
    tokens: np.ndarray
    loss: np.ndarray

    @classmethod
    def of(cls, rows: Iterable[Sequence[float]]) -> Points:
        """Return points from rows (parameters, tokens, loss)."""
        columns = np.array([tuple(row) for row in rows], float).reshape(-1, 3).T
        return cls(*columns)

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.loss)

    def take(self, rows: np.ndarray) -> Points:
        """Return the points of these row numbers, or of a mask."""
        return Points(self.parameters[rows], self.tokens[rows], self.loss[rows])

    def is_enough(self) -> bool:
        """Return true if the constants can be told: enough different points, parameters and tokens."""
        distinct = len(set(zip(self.parameters, self.tokens, self.loss, strict=True)))
        fewest = min(len(set(self.parameters)), len(set(self.tokens)))
        return distinct >= NUM_CONSTANTS and fewest >= MIN_DIFFERENT

    def check(self, where: str) -> None:
        """Raise UserError if there are too few points for a fit, or one of them is not positive."""
        given = (len(self), len(set(self.parameters)), len(set(self.tokens)))
        if given[0] < MIN_POINTS or min(given[1:]) < MIN_DIFFERENT:
            raise UserError(
                f"{where} must be at least {MIN_POINTS} trained models ({NUM_CONSTANTS} constants are fitted) with "
                f"{MIN_DIFFERENT} different numbers of parameters and of tokens, got {given[0]} with {given[1]} and "
                f"{given[2]}"
            )
        for name in ("parameters", "tokens", "loss"):
            if not (np.isfinite(getattr(self, name)) & (getattr(self, name) > 0)).all():
                raise UserError(f"{where} must have finite {name} greater than 0 in all points")


DELTA = 1e-3
"""Residual of log L from which on the Huber loss grows linearly: an outlier then has no more weight than that."""

NUM_STARTS = 12
"""Starts of the grid from which L-BFGS runs: those with the smallest objective."""

EXPONENTS = (0.05, 0.2, 0.35, 0.5, 0.8, 1.2)
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
MAX_EXPONENT = 3.0
SMALLEST_E = 0.01
"""Smallest E, as a share of the mean loss: below it, the loss does not depend on E, and L-BFGS would lose its way."""


class Objective:
    """The objective over theta = (log E, a, b, alpha, beta), where a and b are logs of the terms at the mean point.

    Centering log N and log D keeps A and alpha from trading places, so that L-BFGS needs few steps.
    """

    def __init__(self, points: Points) -> None:
        log_n, log_d, self.log_loss = np.log(points.parameters), np.log(points.tokens), np.log(points.loss)
        self.center = log_n.mean(), log_d.mean()
        self.n, self.d = log_n - self.center[0], log_d - self.center[1]

    def terms(self, theta: np.ndarray) -> np.ndarray:
        """Return the logs of the three terms of the law, [3, ..., num_points] for theta [..., 5]."""
        e, a, b, alpha, beta = (part[..., None] for part in np.moveaxis(np.asarray(theta), -1, 0))
        return np.stack([e + 0 * self.n, a - alpha * self.n, b - beta * self.d])

    def values(self, theta: np.ndarray) -> np.ndarray:
        """Return the objective [...] for theta [..., 5]."""
        return _huber(np.log(np.exp(self.terms(theta)).sum(0)) - self.log_loss)

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the objective and its gradient [5]."""
        terms = np.exp(self.terms(theta))
        loss = terms.sum(0)
        residual = np.log(loss) - self.log_loss
        slope = np.clip(residual, -DELTA, DELTA) / DELTA**2 / loss * terms
        return float(_huber(residual)), np.array([*slope.sum(-1), -slope[1] @ self.n, -slope[2] @ self.d])

    def law(self, theta: np.ndarray) -> Law:
        """Return the law of theta, with A and B at N = D = 1."""
        e, a, b, alpha, beta = (float(value) for value in theta)
        scale_n, scale_d = alpha * self.center[0], beta * self.center[1]
        return Law(float(np.exp(e)), float(np.exp(a + scale_n)), float(np.exp(b + scale_d)), alpha, beta)

    def theta(self, law: Law) -> np.ndarray:
        """Return theta of a law."""
        a, b = np.log([law.A, law.B]) - np.array([law.alpha, law.beta]) * self.center
        return np.array([np.log(law.E), a, b, law.alpha, law.beta])


def _huber(residual: np.ndarray) -> np.ndarray:
    """Return the sum of the Huber losses over the last axis, in units of DELTA^2."""
    size = np.abs(residual) / DELTA
    return np.where(size <= 1, size**2 / 2, size - 0.5).sum(-1)


def grid(objective: Objective) -> np.ndarray:
    """Return starts, float64 [num_starts, 5]: exponents, and how the mean loss is divided among the three terms."""
    mean = objective.log_loss.mean()
    divisions = [
        (constant, (1 - constant) * of_n, (1 - constant) * (1 - of_n))
        for constant, of_n in itertools.product(SHARES, SHARES)
    ]
    starts = [
        [*(mean + np.log(division)), alpha, beta]
        for division, alpha, beta in itertools.product(divisions, EXPONENTS, EXPONENTS)
    ]
    return np.array(starts)


def fit(points: Points) -> Law:
    """Return the law with the smallest objective, from the best starts of the grid."""
    objective = Objective(points)
    starts = grid(objective)
    best = starts[np.argsort(objective.values(starts), kind="stable")[:NUM_STARTS]]
    found = [_minimum(objective, start, 1e-10) for start in best]
    return objective.law(min(found, key=lambda result: result[0])[1])


def fit_near(points: Points, law: Law) -> Law:
    """Return the law with the smallest objective near another, to four digits: that of a resample of its points."""
    objective = Objective(points)
    return objective.law(_minimum(objective, objective.theta(law), 1e-6)[1])


def _minimum(objective: Objective, start: np.ndarray, tolerance: float) -> tuple[float, np.ndarray]:
    most, mean = objective.log_loss.max() + 1, objective.log_loss.mean()  # no term is larger than the loss
    constant, term, exponent = (mean + np.log(SMALLEST_E), most), (mean - 30, most), (0.0, MAX_EXPONENT)
    bounds = [constant, term, term, exponent, exponent]
    options = {"maxiter": 500, "ftol": tolerance, "gtol": 1e-6}
    result = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return float(result.fun), result.x


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
    random = np.random.default_rng(seed)
    laws: list[Law] = []
    while len(laws) < num_resamples:
        drawn = points.take(random.integers(len(points), size=len(points)))
        if drawn.is_enough():
            laws.append(fit_near(drawn, law))
    return laws


def held_out_errors(points: Points, law: Law) -> dict[str, float | None]:
    """Return how far off the law of the other points is, as the mean of |predicted / measured - 1|.

    `leave_one_out`: of each point; `largest_out`: of those with the most parameters, which is nearest to what a ladder
    is for. None where the other points cannot tell the constants.
    """

    def error(held_out: np.ndarray) -> float | None:
        others, held = points.take(~held_out), points.take(held_out)
        if not others.is_enough() or len(others) <= NUM_CONSTANTS:
            return None
        predicted = fit_near(others, law).loss(held.parameters, held.tokens)
        return float(np.abs(predicted / held.loss - 1).mean())

    ones = [error(np.arange(len(points)) == number) for number in range(len(points))]
    known = [value for value in ones if value is not None]
    return {
        "leave_one_out": float(np.mean(known)) if len(known) == len(ones) else None,
        "largest_out": error(points.parameters == points.parameters.max()),
    }


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
        "held_out": {
            name: None if error is None else _rounded(error)
            for name, error in held_out_errors(prediction.points, prediction.law).items()
        },
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
