"""The scaling law of Chinchilla: L(N, D) = E + A / N^alpha + B / D^beta (arXiv 2203.15556, equation 2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stages.lib.errors import UserError

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
