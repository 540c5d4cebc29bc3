"""The registry of optimizers; parameter groups, skipped steps and named state, the same for all of them."""

from collections.abc import Callable
from typing import Any, Protocol, cast

import torch

from stages.lib.training.optimizers import adamw, adamw_bf16
from stages.lib.training.optimizers.recipe import OptimizerRecipe


class Optimizer(Protocol):
    """The interface of an optimizer, see the package's docstring."""

    param_groups: list[dict[str, Any]]
    state: Any
    found_inf: torch.Tensor | None

    def step(self) -> None:
        """Update the parameters and their state."""

    def zero_grad(self) -> None:
        """Drop the gradients."""

    def empty_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the state of a parameter before its first step."""

    def state_bytes(self, width: int) -> int:
        """Return the bytes of state per parameter of `width` bytes."""


BUILDERS: dict[str, Callable[[list[dict[str, Any]], OptimizerRecipe], Any]] = {
    "adamw": adamw.build,
    "adamw_bf16": adamw_bf16.build,
}


def build(model: torch.nn.Module, recipe: OptimizerRecipe) -> Optimizer:
    """Build the optimizer that a recipe names over a model's parameters that are not frozen; only matrices decay."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return cast(Optimizer, BUILDERS[recipe.name](groups, recipe))


def skip_if(optimizer: Optimizer, flag: torch.Tensor) -> None:
    """Make the next calls of `step` change nothing if `flag` is 1.0: no weight, no moment, no step count.

    `flag` is a tensor of one element, 0.0 or 1.0. The host waits for it only if it is on another device than the
    parameters (cpu_offload).
    """
    device = optimizer.param_groups[0]["params"][0].device
    optimizer.found_inf = flag.detach().to(device, torch.float32)


def named_state(model: torch.nn.Module, optimizer: Optimizer) -> dict[str, dict[str, torch.Tensor]]:
    """Return the optimizer's state by FMS key: {"base_model...weight": {"exp_avg", "exp_avg_sq", "step"}}.

    Before the first step it is filled with the empty state, so that a checkpoint can be loaded into it. Frozen
    parameters have none.
    """
    result = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if not optimizer.state[parameter]:
            optimizer.state[parameter] = optimizer.empty_state(parameter)
        result[name] = dict(optimizer.state[parameter])
    return result
