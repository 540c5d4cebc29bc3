"""Next-token prediction: the cross-entropy of each target, plus the z-loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from stages.lib.model.loss import IGNORED
from stages.lib.model.transformer import documents_of
from stages.lib.training.objectives.objective import Balance, Objective

if TYPE_CHECKING:
    from stages.lib.model.transformer import Transformer
    from stages.lib.training.settings.recipe import TrainRecipe


class NextToken(Objective):
    """A unit is a target. A batch is (inputs, targets), [samples, L] each."""

    figures: tuple[str, ...] = ("loss", "z_loss")

    def __init__(self, z_loss: float = 0.0, balance: Balance | None = None) -> None:
        """`z_loss`: weight of the z-loss."""
        self.z_loss, self.balance = z_loss, balance or Balance()
        self.figures = (*self.figures, *self.balance.figures)

    def count(self, batch: Sequence[np.ndarray]) -> int:
        """Return the number of targets."""
        return int(np.count_nonzero(batch[1] != IGNORED))

    def sums(
        self, model: Transformer, micro_batch: Sequence[torch.Tensor], document_end: int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sums of cross-entropy and z-loss, and of a sparse model's auxiliary loss."""
        tokens, targets = micro_batch
        loss, z_loss, routing = model(tokens, targets, documents_of(tokens, document_end), self.z_loss)
        figures = torch.stack([loss.detach(), z_loss.detach()]).double()
        return self.balance.add(loss + z_loss, figures, routing, (targets != IGNORED).sum(1))


def build(recipe: TrainRecipe, balance: Balance) -> NextToken:
    """Build the objective of a recipe."""
    return NextToken(recipe.z_loss, balance)
