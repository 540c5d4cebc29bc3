"""Muon for the matrices of layers, with its Newton-Schulz iteration.

See https://kellerjordan.github.io/posts/muon/ and arXiv 2502.16982.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from stages.lib.distributed import collectives
from stages.lib.distributed.row_exchange import Matrix, RowExchange, device_of
from stages.lib.model import key_table
from stages.lib.training.optimizers.optimizer import LR_RATIO, scale_gradients
from stages.lib.training.optimizers.recipe import MuonRecipe, OptimizerRecipe

if TYPE_CHECKING:
    from stages.lib.model.transformer import Transformer


COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic polynomial (https://kellerjordan.github.io/posts/muon/), as in torch.optim.Muon. They make small
singular values large in few steps; all end between about 0.7 and 1.2, not at 1."""

EPS = 1e-7
"""Lower bound of the norm by which a matrix is divided, as in torch.optim.Muon."""


def newton_schulz(matrix: torch.Tensor, steps: int) -> torch.Tensor:
    """Return a matrix [A, B] with the singular vectors of `matrix`, and with singular values near 1.

    All products are computed in the dtype of `matrix`; the operations are those of torch.optim.Muon, which has only
    bfloat16.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / x.norm().clamp(min=EPS)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x


def cost(rows: int, columns: int) -> float:
    """Return the multiplications and additions of one step."""
    short, long = sorted((rows, columns))
    return 2.0 * short * short * (2 * long + short)


def precision(parameter: torch.Tensor, device: torch.device) -> torch.dtype:
    """Return the dtype of the iteration for a parameter: bfloat16 on a GPU, as torch.optim.Muon has it.

    On the CPU it is that of the parameter. Without AMX, products of bfloat16 take 4 to 150 times as long as those of
    float32 (768 x 768 and 2048 x 768, torch 2.13, with AVX512 and AVX2), and the result must not depend on the kind of
    CPU. float64 stays float64 everywhere, so that shardings agree.
    """
    is_double = parameter.dtype == torch.float64
    return torch.bfloat16 if device.type != "cpu" and not is_double else parameter.dtype


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerMatrix:
    """A parameter that holds one matrix, or several that transformers keeps apart (q, k and v; gate and up)."""

    parameter: torch.nn.Parameter

    rows: tuple[int, ...]
    """The rows of each matrix, from the top row down."""


def layer_matrices(model: Transformer) -> list[LayerMatrix]:
    """Return the matrices of all layers, by the model's key table."""
    table = key_table.build(model.recipe, model.vocab_size)
    weights = {weight.key: weight for layer in table.layers for weight in layer if weight.columns is not None}
    return [
        LayerMatrix(parameter=parameter, rows=tuple(part.rows for part in weights[name].parts))
        for name, parameter in model.named_parameters()
        if name in weights
    ]


def replace(old: torch.Tensor, new: torch.Tensor, found_inf: torch.Tensor | None) -> None:
    """Copy `new` into `old`, of the same dtype, unless `found_inf`, a tensor of one element, is 1.0."""
    if found_inf is None:
        old.copy_(new)
    else:
        torch.where(found_inf == 1, old, new, out=old)


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
        dtype = precision(parameters[0], device_of(parameters[0]))
        parts = [part for matrix in matrices for part in _parts(matrix)]
        self.exchange = RowExchange(parts, dtype, cost, self.more_columns(parameters[0].dtype, dtype))

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update the parameters, which must all have a gradient, and their momentum."""
        (group,) = self.param_groups
        for parameter in group["params"]:
            self._update_momentum(parameter)
        for matrix, rows in self.exchange.map(self._rows_sent, self._function):
            change = self._change(matrix, rows)
            weight = self.exchange.local(matrix, matrix.parameter)
            rate = group["lr"] * _lr_factor(self.recipe.adjust_lr_fn, matrix.rows, matrix.columns)
            new = weight * (1 - group["lr"] * group["weight_decay"])
            replace(weight, new.add_(change.to(weight.device), alpha=-rate), self.found_inf)

    def scale_gradients(self, scale: torch.Tensor) -> None:
        """Multiply the gradients by `scale`, a float64 scalar."""
        scale_gradients(self, scale)

    def empty_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the state of a parameter before its first step: momentum of zeros, in its shape and sharding."""
        return {"momentum_buffer": torch.zeros_like(parameter, dtype=self.state_dtype).detach()}

    def state_bytes(self, parameter: torch.Tensor) -> int:
        """Return the bytes of state per element of a parameter."""
        return (self.state_dtype or parameter.dtype).itemsize

    def more_columns(self, dtype: torch.dtype, sent: torch.dtype) -> int:
        """Return the columns that are sent with a matrix in dtype `sent`; `dtype`: that of the parameters."""
        return 0

    def _rows_sent(self, matrix: Matrix) -> torch.Tensor:
        """Return what the owner of a matrix gets of this rank: its rows of the momentum after this step.

        With Nesterov they are one step ahead of it.
        """
        assert matrix.parameter.grad is not None
        gradient = self.exchange.local(matrix, matrix.parameter.grad)
        momentum = self.exchange.local(matrix, self.state[matrix.parameter]["momentum_buffer"]).to(gradient.dtype)
        return gradient.lerp(momentum, self.recipe.momentum) if self.recipe.nesterov else momentum

    def _function(self, whole: torch.Tensor) -> torch.Tensor:
        """Return what the owner of a matrix sends back."""
        return newton_schulz(whole, self.recipe.ns_steps)

    def _change(self, matrix: Matrix, rows: torch.Tensor) -> torch.Tensor:
        """Return the change of this rank's rows of a matrix, from what its owner sent."""
        return rows

    def _update_momentum(self, parameter: torch.Tensor) -> None:
        if not self.state[parameter]:
            self.state[parameter] = self.empty_state(parameter)
        assert parameter.grad is not None
        gradient = collectives.local_tensor(parameter.grad)
        momentum = collectives.local_tensor(self.state[parameter]["momentum_buffer"])
        new = momentum.to(gradient.dtype).lerp(gradient, 1 - self.recipe.momentum)
        replace(momentum, new.to(momentum.dtype), self.found_inf)


def build(kind: type[Muon], matrices: Sequence[LayerMatrix], recipe: OptimizerRecipe) -> Muon:
    """Build Muon, or another kind of it, over the matrices of layers."""
    state_dtype = torch.bfloat16 if recipe.state_dtype == "bfloat16" else None
    return kind(matrices, recipe.learning_rate, recipe.weight_decay, recipe.of_matrices, state_dtype)


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
