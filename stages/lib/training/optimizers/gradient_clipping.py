"""Clipping of gradients by their global norm."""

from collections.abc import Iterable

import torch
import torch.distributed as dist

from stages.lib.distributed import local_shards


def clip_gradients(
    parameters: Iterable[torch.nn.Parameter], limit: float, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Scale all gradients so that their global norm is at most `limit`; return the norm before, a float64 scalar.

    `group`: the ranks over which a parameter's shards lie, so that replicas are not counted twice. Default: all ranks.
    A norm that is not finite spoils the gradients: the step must then be skipped.

    Squares are summed in float64 on the CPU (in float32 within a tensor on a GPU, where float64 is slow) and reduced
    over the ranks as one number: torch's own clip_grad_norm_ differs by 3e-5 between 1 rank and 2.
    """
    gradients = [local_shards.local_tensor(p.grad) for p in parameters if p.grad is not None]
    square = torch.zeros((), dtype=torch.float64, device=gradients[0].device)
    for gradient in gradients:
        square += precise(gradient).square().sum()
    dist.all_reduce(square, group=group)
    norm = square.sqrt()
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.dtype))
    return norm


def precise(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient in the precision in which its squares are summed."""
    return gradient.double() if gradient.device.type == "cpu" else gradient.float()
