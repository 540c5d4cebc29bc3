"""The registry of optimizers; their parameters, skipped steps and named state, the same for all of them."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from stages.lib.training.optimizers import adamw, muon
from stages.lib.training.optimizers.muon import LayerMatrix, layer_matrices
from stages.lib.training.optimizers.normuon import NorMuon
from stages.lib.training.optimizers.optimizer import Optimizer, decay_groups
from stages.lib.training.optimizers.recipe import OptimizerRecipe

if TYPE_CHECKING:
    from stages.lib.model.transformer import Transformer


class Combined:
    """Optimizers that step together. They share one `state`, and `found_inf` is that of all of them."""

    def __init__(self, *optimizers: Optimizer) -> None:
        self.optimizers = optimizers
        self.param_groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self.state: Any = defaultdict(dict)
        self._optimizer_of: dict[torch.Tensor, Optimizer] = {}
        for optimizer in optimizers:
            optimizer.state = self.state
            for group in optimizer.param_groups:
                self._optimizer_of |= dict.fromkeys(group["params"], optimizer)

    @property
    def found_inf(self) -> torch.Tensor | None:
        """The flag of a step that changes nothing."""
        return self.optimizers[0].found_inf

    @found_inf.setter
    def found_inf(self, flag: torch.Tensor | None) -> None:
        for optimizer in self.optimizers:
            optimizer.found_inf = flag

    def step(self) -> None:
        """Update all parameters and their state."""
        for optimizer in self.optimizers:
            optimizer.step()

    def scale_gradients(self, scale: torch.Tensor) -> None:
        """Multiply the gradients by `scale`, a float64 scalar, where they are or in the next step."""
        for optimizer in self.optimizers:
            optimizer.scale_gradients(scale)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def empty_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the state of a parameter before its first step."""
        return self._optimizer_of[parameter].empty_state(parameter)

    def state_bytes(self, parameter: torch.Tensor) -> int:
        """Return the bytes of state per element of a parameter."""
        return self._optimizer_of[parameter].state_bytes(parameter)


MATRIX_BUILDERS: dict[str, Callable[[Sequence[LayerMatrix], OptimizerRecipe], Any]] = {
    "muon": functools.partial(muon.build, muon.Muon),
    "normuon": functools.partial(muon.build, NorMuon),
}
"""Builders of optimizers of the layers' matrices, see recipe.MATRIX_OPTIMIZERS; AdamW updates the other parameters."""


def build(model: torch.nn.Module, recipe: OptimizerRecipe) -> Optimizer:
    """Build the optimizer that a recipe names over a model's parameters that are not frozen."""
    trained = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if recipe.name not in MATRIX_BUILDERS:
        return _adamw(trained, recipe)
    matrices = layer_matrices(cast("Transformer", model))
    taken = {matrix.parameter for matrix in matrices}
    others = {parameter: name for parameter, name in trained.items() if parameter not in taken}
    return Combined(MATRIX_BUILDERS[recipe.name](matrices, recipe), _adamw(others, recipe))


def _adamw(names: dict[torch.nn.Parameter, str], recipe: OptimizerRecipe) -> Optimizer:
    return cast(Optimizer, adamw.build(decay_groups(names, recipe.weight_decay), recipe, names))


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
