"""AdamW (arXiv 1711.05101): torch's fused kernels, and one whose moments are bfloat16."""

from typing import Any

import torch

from stages.lib.distributed import collectives
from stages.lib.training.optimizers.recipe import OptimizerRecipe

CACHED, ON_GPU = 1 << 18, 1 << 24
"""Elements that are updated at a time: on the CPU what its caches hold, on a GPU enough for fast kernels."""


class AdamWBF16(torch.optim.Optimizer):
    """AdamW (arXiv 1711.05101) that keeps its moments in bfloat16, and takes the fused step of torch.optim.AdamW with
    copies of them in the parameters' dtype, float32 or wider. State keys and groups are those of torch.optim.AdamW.

    A part of a parameter is updated at a time, so that the memory beside the state is two copies of such a part.
    `found_inf`: a float tensor of one element on the parameters' device, or None. If it is 1.0, `step` changes
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
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        assert parameter.grad is not None
        changed = map(collectives.local_tensor, (parameter, *(state[name] for name in MOMENTS)))
        flat = [collectives.local_tensor(parameter.grad).reshape(-1), *(tensor.view(-1) for tensor in changed)]
        size = elements_at_a_time(parameter)
        state["step"] += 1
        for gradient, weight, *kept in zip(*(tensor.split(size) for tensor in flat), strict=True):
            first, second = (moment.to(weight.dtype) for moment in kept)
            torch._fused_adamw_(
                *([weight], [gradient], [first], [second], [], [state["step"]]),
                lr=group["lr"],
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
                found_inf=self.found_inf,
            )
            for moment, new in zip(kept, (first, second), strict=True):
                moment.copy_(new)
        if self.found_inf is not None:
            state["step"] -= self.found_inf


def elements_at_a_time(parameter: torch.Tensor) -> int:
    """Return the number of elements of a parameter that are updated at a time."""
    return CACHED if parameter.device.type == "cpu" else ON_GPU


def build_adamw_bf16(groups: list[dict[str, Any]], recipe: OptimizerRecipe) -> AdamWBF16:
    """Build AdamWBF16 over parameter groups."""
    return AdamWBF16(groups, lr=recipe.learning_rate, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps)


MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW(torch.optim.AdamW):
    """torch's AdamW. Its fused `step` reads `found_inf`, which GradScaler sets too."""

    def empty_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the state of a parameter before its first step."""
        return zero_state(parameter, parameter.dtype)

    def state_bytes(self, parameter: torch.Tensor) -> int:
        """Return the bytes of state per element of a parameter."""
        return len(MOMENTS) * parameter.element_size()


def build_adamw(groups: list[dict[str, Any]], recipe: OptimizerRecipe) -> AdamW:
    """Build AdamW over parameter groups."""
    return AdamW(groups, lr=recipe.learning_rate, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps, fused=True)


def zero_state(parameter: torch.Tensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return a step count of 0, and moments of zeros in the parameter's shape and sharding."""
    zeros = {moment: torch.zeros_like(parameter, dtype=dtype).detach() for moment in MOMENTS}
    return {"step": torch.zeros((), dtype=torch.float32, device=parameter.device), **zeros}
