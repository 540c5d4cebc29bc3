"""Skips steps that would spoil the weights: NaN, infinity, spikes of the loss.

The device decides whether a step is bad, without synchronization, and the optimizer skips it there. The guard's state
is part of the checkpoint, so a resumed run skips the same steps.
"""

from __future__ import annotations

import torch

from stages.lib.training.faults.recipe import LossGuardRecipe


class LossGuard:
    """Decides whether a step is bad. `tensors` is its state, for the checkpoint."""

    def __init__(self, recipe: LossGuardRecipe, device: torch.device) -> None:
        """`device`: where losses are compared."""
        self.recipe = recipe
        self.tensors = {
            "losses": torch.full((recipe.window,), float("nan"), dtype=torch.float64, device=device),
            "bad_steps": torch.zeros((), dtype=torch.int64, device=device),
        }

    def is_bad(self, step: int, loss: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        """Return 1.0 if the step must be skipped, else 0.0 (float32 scalar). `loss`, `norm`: float64 scalars."""
        bad = ~(torch.isfinite(loss) & torch.isfinite(norm))
        losses, bad_steps = self.tensors["losses"], self.tensors["bad_steps"]
        if self.recipe.spike is not None:
            known = ~losses.isnan()
            count = known.sum()
            mean = losses.nansum() / count
            deviation = ((losses - mean).square().nansum() / count).sqrt()
            bad |= (count * 2 >= self.recipe.window) & (loss > mean + self.recipe.spike * deviation)
        losses[step % self.recipe.window] = torch.where(bad, torch.nan, loss)
        torch.where(bad, bad_steps + 1, torch.zeros_like(bad_steps), out=bad_steps)
        return bad.float()

    def reset(self) -> None:
        """Restore the state before the first step."""
        self.tensors["losses"].fill_(torch.nan)
        self.reset_bad_steps()

    def reset_bad_steps(self) -> None:
        """Set the count of consecutive bad steps to 0, after a rollback."""
        self.tensors["bad_steps"].zero_()
