"""Muon for the matrices of layers (https://kellerjordan.github.io/posts/muon/, arXiv 2502.16982)."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import torch

from stages.lib.distributed import local_shards
from stages.lib.distributed.row_exchange import Matrix, RowExchange, device_of
from stages.lib.training.optimizers import newton_schulz
from stages.lib.training.optimizers.found_inf import replace
from stages.lib.training.optimizers.layer_matrices import LayerMatrix
from stages.lib.training.optimizers.parameter_groups import LR_RATIO
from stages.lib.training.optimizers.recipe import MuonRecipe, OptimizerRecipe


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon on matrices that lie fused in parameters, and are sharded by rows.

    The momentum is sharded as the parameter. Its orthogonalization needs whole matrices: each has an owner among the
    ranks, see `RowExchange`. `lr`: that of all parameters, unless the recipe has another. `state_dtype`: of the
    momentum; None for the parameters' own. `found_inf`: a float tensor of one element on the parameters' device, or
    None. If it is 1.0, `step` changes nothing; the host does not wait for it.
    """

    found_inf: torch.Tensor | None

    def __init__(
        self,
        matrices: Sequence[LayerMatrix],
        lr: float,
        weight_decay: float,
        recipe: MuonRecipe,
        state_dtype: torch.dtype | None = None,
    ) -> None:
        parameters = [matrix.parameter for matrix in matrices]
        ratio = 1.0 if recipe.learning_rate is None else recipe.learning_rate / lr
        defaults = {"lr": lr * ratio, LR_RATIO: ratio, "weight_decay": weight_decay}
        super().__init__([{"params": parameters}], defaults)
        self.recipe, self.state_dtype, self.found_inf = recipe, state_dtype, None
        first = parameters[0]
        self.exchange = RowExchange(
            [part for matrix in matrices for part in _parts(matrix)],
            newton_schulz.precision(first, device_of(first)),
            newton_schulz.cost,
        )

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update the parameters, which must all have a gradient, and their momentum."""
        (group,) = self.param_groups
        for parameter in group["params"]:
            self._update_momentum(parameter)
        orthogonalize = functools.partial(newton_schulz.orthogonalize, steps=self.recipe.ns_steps)
        for matrix, change in self.exchange.map(self._direction, orthogonalize):
            weight = self.exchange.local(matrix, matrix.parameter)
            rate = group["lr"] * _lr_factor(self.recipe.adjust_lr_fn, matrix.rows, matrix.columns)
            new = weight * (1 - group["lr"] * group["weight_decay"])
            replace(weight, new.add_(change.to(weight.device), alpha=-rate), self.found_inf)

    def empty_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the state of a parameter before its first step: momentum of zeros, in its shape and sharding."""
        return {"momentum_buffer": torch.zeros_like(parameter, dtype=self.state_dtype).detach()}

    def state_bytes(self, parameter: torch.Tensor) -> int:
        """Return the bytes of state per element of a parameter."""
        return (self.state_dtype or parameter.dtype).itemsize

    def _update_momentum(self, parameter: torch.Tensor) -> None:
        if not self.state[parameter]:
            self.state[parameter] = self.empty_state(parameter)
        assert parameter.grad is not None
        gradient = local_shards.local_tensor(parameter.grad)
        momentum = local_shards.local_tensor(self.state[parameter]["momentum_buffer"])
        new = momentum.to(gradient.dtype).lerp(gradient, 1 - self.recipe.momentum)
        replace(momentum, new.to(momentum.dtype), self.found_inf)

    def _direction(self, matrix: Matrix) -> torch.Tensor:
        """Return this rank's rows of the momentum after this step, one step ahead of it with Nesterov."""
        assert matrix.parameter.grad is not None
        gradient = self.exchange.local(matrix, matrix.parameter.grad)
        momentum = self.exchange.local(matrix, self.state[matrix.parameter]["momentum_buffer"]).to(gradient.dtype)
        return gradient.lerp(momentum, self.recipe.momentum) if self.recipe.nesterov else momentum


def build(matrices: Sequence[LayerMatrix], recipe: OptimizerRecipe) -> Muon:
    """Build Muon over the matrices of layers."""
    own = recipe.muon or MuonRecipe()
    state_dtype = torch.bfloat16 if recipe.state_dtype == "bfloat16" else None
    return Muon(matrices, recipe.learning_rate, recipe.weight_decay, own, state_dtype)


def _parts(fused: LayerMatrix) -> Iterator[Matrix]:
    first = 0
    for rows in fused.rows:
        yield Matrix(parameter=fused.parameter, first=first, rows=rows)
        first += rows


def _lr_factor(adjust_lr_fn: str, rows: int, columns: int) -> float:
    """Return the factor of the learning rate of a matrix, as torch.optim.Muon has it."""
    if adjust_lr_fn == "original":
        return math.sqrt(max(1, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))
