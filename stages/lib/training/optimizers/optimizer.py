"""The interface of an optimizer, the parameters with weight decay, and gradient clipping."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from stages.lib.distributed import collectives

LR_RATIO = "lr_ratio"
"""Key of a group whose learning rate is this multiple of the recipe's."""


def decay_groups(parameters: Iterable[torch.nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Return the group of matrices, which decay, and that of vectors, which do not."""
    listed = list(parameters)
    return [
        {"params": [p for p in listed if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in listed if p.dim() <= 1], "weight_decay": 0.0},
    ]


def set_learning_rate(groups: Sequence[dict[str, Any]], learning_rate: float) -> None:
    """Set the learning rate of the next step."""
    for group in groups:
        group["lr"] = learning_rate * group.get(LR_RATIO, 1.0)


def clip_gradients(optimizer: Optimizer, limit: float, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Scale all gradients, now or in the next step, so that their global norm is at most `limit`.

    Returns the norm before, a float64 scalar. `group`: the ranks over which a parameter's shards lie, so that replicas
    are not counted twice. Default: all ranks. A norm that is not finite spoils the gradients: the step must then be
    skipped.

    Squares are summed in float64 on the CPU (in float32 within a tensor on a GPU, where float64 is slow) and reduced
    over the ranks as one number: torch's own clip_grad_norm_ differs by 3e-5 between 1 rank and 2.
    """
    gradients = _gradients(optimizer)
    norms = torch._foreach_norm(gradients, 2, dtype=precision_of_norm(gradients[0]))
    square = torch.stack(norms).double().square().sum()  # type: ignore[arg-type]
    dist.all_reduce(square, group=group)
    norm = square.sqrt()
    optimizer.scale_gradients((limit / (norm + 1e-6)).clamp(max=1.0))
    return norm


def scale_gradients(optimizer: Optimizer | torch.optim.Optimizer, scale: torch.Tensor) -> None:
    """Multiply the gradients of an optimizer's parameters by `scale`, a float64 scalar, where they are."""
    for gradient in _gradients(optimizer):
        gradient.mul_(scale.to(gradient.dtype))


def _gradients(optimizer: Optimizer | torch.optim.Optimizer) -> list[torch.Tensor]:
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return [collectives.local_tensor(parameter.grad) for parameter in parameters if parameter.grad is not None]


def precision_of_norm(gradient: torch.Tensor) -> torch.dtype:
    """Return the precision in which a gradient's squares are summed."""
    return torch.float64 if gradient.device.type == "cpu" else torch.float32


class Optimizer(Protocol):
    """The interface of an optimizer, see the package's docstring."""

    param_groups: list[dict[str, Any]]
    state: Any
    found_inf: torch.Tensor | None

    def step(self) -> None:
        """Update the parameters and their state."""

    def scale_gradients(self, scale: torch.Tensor) -> None:
        """Multiply the gradients by `scale`, a float64 scalar, where they are or in the next step."""

    def zero_grad(self) -> None:
        """Drop the gradients."""

    def empty_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the state of a parameter before its first step."""

    def state_bytes(self, parameter: torch.Tensor) -> int:
        """Return the bytes of state per element of a parameter."""
