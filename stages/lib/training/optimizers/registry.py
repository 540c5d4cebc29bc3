"""The registry of optimizers; their parameters, skipped steps and named state, the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from stages.lib.training.optimizers import adamw, adamw_bf16, muon
from stages.lib.training.optimizers.combined import Combined
from stages.lib.training.optimizers.layer_matrices import LayerMatrix, layer_matrices
from stages.lib.training.optimizers.optimizer import Optimizer
from stages.lib.training.optimizers.parameter_groups import decay_groups
from stages.lib.training.optimizers.recipe import OptimizerRecipe

if TYPE_CHECKING:
    from stages.lib.model.transformer import Transformer


ADAMW: dict[str, Callable[[list[dict[str, Any]], OptimizerRecipe], Any]] = {
    "float32": adamw.build,
    "bfloat16": adamw_bf16.build,
}
"""Builders of AdamW over parameter groups, by state_dtype."""

MATRIX_BUILDERS: dict[str, Callable[[Sequence[LayerMatrix], OptimizerRecipe], Any]] = {"muon": muon.build}
"""Builders of optimizers of the layers' matrices; AdamW updates the other parameters."""


def build(model: torch.nn.Module, recipe: OptimizerRecipe) -> Optimizer:
    """Build the optimizer that a recipe names over a model's parameters that are not frozen."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if recipe.name not in MATRIX_BUILDERS:
        return _adamw(trained, recipe)
    matrices = layer_matrices(cast("Transformer", model))
    taken = {matrix.parameter for matrix in matrices}
    others = [parameter for parameter in trained if parameter not in taken]
    return Combined(MATRIX_BUILDERS[recipe.name](matrices, recipe), _adamw(others, recipe))


def _adamw(parameters: list[torch.nn.Parameter], recipe: OptimizerRecipe) -> Optimizer:
    return cast(Optimizer, ADAMW[recipe.state_dtype](decay_groups(parameters, recipe.weight_decay), recipe))


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
