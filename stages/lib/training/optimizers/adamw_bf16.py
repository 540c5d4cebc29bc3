"""AdamW with its moments in bfloat16."""

from typing import Any

import torch

from stages.lib.distributed import local_shards
from stages.lib.training.optimizers.adamw import MOMENTS, zero_state
from stages.lib.training.optimizers.found_inf import replace
from stages.lib.training.optimizers.recipe import OptimizerRecipe


class AdamWBF16(torch.optim.Optimizer):
    """AdamW (arXiv 1711.05101) that keeps its moments in bfloat16 and computes in float32, or in a wider dtype of the
    parameters. State keys and groups are those of torch.optim.AdamW.

    Parameters are updated one at a time, so that the memory beside the state is a few float32 copies of the largest
    shard. `found_inf`: a float tensor of one element on the parameters' device, or None. If it is 1.0, `step` changes
    nothing; the host does not wait for it.
    """

    found_inf: torch.Tensor | None

    def __init__(self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self.found_inf = None

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient, and their state."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def empty_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the state of a parameter before its first step."""
        return zero_state(parameter, torch.bfloat16)

    def state_bytes(self, parameter: torch.Tensor) -> int:
        """Return the bytes of state per element of a parameter."""
        return len(MOMENTS) * torch.bfloat16.itemsize

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        if not self.state[parameter]:
            self.state[parameter] = self.empty_state(parameter)
        state = self.state[parameter]
        assert parameter.grad is not None
        weight, gradient, *kept = (
            local_shards.local_tensor(t) for t in (parameter, parameter.grad, *(state[m] for m in MOMENTS))
        )
        precision = torch.promote_types(weight.dtype, torch.float32)
        gradient, first, second = (tensor.to(precision) for tensor in (gradient, *kept))
        beta1, beta2 = group["betas"]
        step = state["step"].double() + 1
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        denominator = (second / (1 - beta2**step)).sqrt_().add_(group["eps"])
        change = (first / (1 - beta1**step)).div_(denominator).mul_(-group["lr"])
        change.add_(weight, alpha=-group["lr"] * group["weight_decay"])
        for old, new in ((state["step"], step), (kept[0], first), (kept[1], second), (weight, change.add_(weight))):
            replace(old, new.to(old.dtype), self.found_inf)


def build(groups: list[dict[str, Any]], recipe: OptimizerRecipe) -> AdamWBF16:
    """Build AdamWBF16 over parameter groups."""
    return AdamWBF16(groups, lr=recipe.learning_rate, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps)
