"""Guards against steps that would spoil the weights: NaN, infinity, spikes of the loss.

Whether a step is bad is decided on the device, without waiting for it: the optimizer skips it there. What the guard
remembers is a part of the checkpoint, so a resumed run skips the same steps.
"""

from dataclasses import dataclass

import torch

from stages.lib.recipe import identity


@dataclass(frozen=True, kw_only=True)
class LossGuardRecipe:
    """When a step is bad, and what happens after many of them. A bad step changes no weight; its batch is passed by."""

    spike: float | None = identity(None, above=0)
    """A loss is a spike when it is so many standard deviations above the mean of the last `window` good losses; 6 is
    usual. Default: only a loss or gradient that is not finite is bad."""

    window: int = identity(128, minimum=8)
    """How many losses the mean and deviation are taken over; before half as many are known nothing is a spike."""

    bad_steps: int = identity(10, minimum=1)
    """After so many bad steps in a row the training does what `on_repeated` says."""

    on_repeated: str = identity("stop", choices=("stop", "rollback"))
    """stop: end with an error. rollback: go back to the newest checkpoint before the bad steps, and pass by all samples
    since."""

    max_rollbacks: int = identity(3, minimum=1)
    """How often a run may rollback before it stops."""


class LossGuard:
    """Judges steps. `tensors` is its memory, for the checkpoint."""

    def __init__(self, recipe, device):
        self.recipe = recipe
        self.tensors = {
            "losses": torch.full((recipe.window,), float("nan"), dtype=torch.float64, device=device),
            "bad_steps": torch.zeros((), dtype=torch.int64, device=device),
        }

    def judge(self, step, loss, norm):
        """1.0 where the step must be skipped, else 0.0: a float32 tensor. `loss` and `norm`: float64 tensors."""
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

    def forget(self):
        """Begin anew, as with the first step."""
        self.tensors["losses"].fill_(torch.nan)
        self.forget_streak()

    def forget_streak(self):
        """Begin to count anew, after a rollback."""
        self.tensors["bad_steps"].zero_()
