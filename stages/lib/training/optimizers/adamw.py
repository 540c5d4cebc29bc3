"""AdamW (arXiv 1711.05101), torch's fused kernels."""

from typing import Any

import torch

from stages.lib.training.optimizers.recipe import OptimizerRecipe

MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW(torch.optim.AdamW):
    """torch's AdamW. Its fused `step` reads `found_inf`, which GradScaler sets too."""

    def empty_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the state of a parameter before its first step."""
        return zero_state(parameter, parameter.dtype)

    def state_bytes(self, parameter: torch.Tensor) -> int:
        """Return the bytes of state per element of a parameter."""
        return len(MOMENTS) * parameter.element_size()


def build(groups: list[dict[str, Any]], recipe: OptimizerRecipe) -> AdamW:
    """Build AdamW over parameter groups."""
    return AdamW(groups, lr=recipe.learning_rate, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps, fused=True)


def zero_state(parameter: torch.Tensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return a step count of 0, and moments of zeros in the parameter's shape and sharding."""
    zeros = {moment: torch.zeros_like(parameter, dtype=dtype).detach() for moment in MOMENTS}
    return {"step": torch.zeros((), dtype=torch.float32, device=parameter.device), **zeros}
