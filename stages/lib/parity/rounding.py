"""Rounding told from mistakes: the difference of two float32 results, judged by the same result in float64.

Correct code differs by 1e-6 of a result's standard deviation. But sharp attention amplifies rounding: with weights of a
standard deviation of 0.2 and 2,048 tokens, correct logits differ by 1e-4. So a difference above the tolerance is a
mistake only if theirs is also further from float64 than `FACTOR` times ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

FACTOR = 4.0
"""Both round as often, in another order: with weights of a standard deviation of 0.02 to 0.5, three seeds each, correct
code had at most 1.8 times our error at 2,048 tokens. A mistake has a hundred times as much and more."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The largest absolute difference of two results."""

    largest: float
    allowed: float

    passed: bool
    """True if it is at most `allowed`, or rounding."""

    @property
    def is_rounding(self) -> bool:
        """True if it is larger than `allowed`, and passed in comparison with float64."""
        return self.passed and not self.largest <= self.allowed


def compare(ours: torch.Tensor, theirs: torch.Tensor, allowed: float, exact: Callable[[], torch.Tensor]) -> Difference:
    """Compare two float32 tensors of one shape. `exact`: computes ours in float64, called if they differ by more."""
    largest = largest_difference(ours, theirs)
    passed = largest <= allowed  # NaN is not
    if not passed:
        reference = exact()
        error = largest_difference(reference, theirs)
        passed = error <= allowed or error <= FACTOR * largest_difference(reference, ours)
    return Difference(largest=largest, allowed=allowed, passed=passed)


def largest_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest absolute difference; NaN if one is NaN."""
    return float((a - b).abs().max())
