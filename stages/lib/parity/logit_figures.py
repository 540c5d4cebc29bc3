"""Figures of the difference of logits, for parity.json."""

from typing import Any

import torch

from stages.lib.parity.rounding import largest_difference


class LogitFigures:
    """Sums over logits that come in rows."""

    def __init__(self) -> None:
        self.differences: list[float] = []
        self.tokens = self.agreed = 0
        self.total = self.squares = 0.0

    def add(self, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        """Add logits [..., V] of the same tokens."""
        self.differences.append(largest_difference(ours, theirs))
        agreed = ours.argmax(-1) == theirs.argmax(-1)
        self.agreed += int(agreed.sum())
        self.tokens += agreed.numel()
        self.total += float(ours.double().mean(-1).sum())
        self.squares += float(ours.double().square().mean(-1).sum())

    def of(self, tolerance: float) -> dict[str, Any]:
        """Return the entry of parity.json. `tolerance`: the largest difference at a standard deviation of 1 or less.

        It grows in proportion to a larger one.
        """
        std = max(self.squares / self.tokens - (self.total / self.tokens) ** 2, 0.0) ** 0.5
        return {
            "tokens": self.tokens,
            "max_difference": float(torch.tensor(self.differences).max()),  # Python's max() can lose a NaN
            "allowed": tolerance * max(1.0, std),
            "std": std,
            "argmax_agreement": self.agreed / self.tokens,
        }
