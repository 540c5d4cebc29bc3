"""The prediction of one measure of a target (validation loss per token, or in bits per byte), as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from stages.lib.scaling_law.law import Points
from stages.lib.scaling_law.prediction import LEVEL, Prediction
from stages.lib.scaling_law.rungs import Rung

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
