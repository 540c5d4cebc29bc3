"""AdamW on sharded parameters, and clipping by the true global norm."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from stages.lib.recipe import identity

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True)
class OptimizerRecipe:
    """AdamW (arXiv 1711.05101)."""

    learning_rate: float = identity(3e-4, above=0)
    """The peak learning rate."""

    beta1: float = identity(0.9, minimum=0, maximum=1)
    """Decay of the average of gradients."""

    beta2: float = identity(0.95, minimum=0, maximum=1)
    """Decay of the average of squared gradients."""

    epsilon: float = identity(1e-8, above=0)
    """Added to the root of the averaged squared gradient."""

    weight_decay: float = identity(0.1, minimum=0)
    """Decoupled weight decay of matrices; norms are never decayed."""

    clip: float = identity(1.0, above=0)
    """The largest global gradient norm; longer gradients are scaled down to it."""


def build(model, recipe):
    """AdamW over the parameters of a model; matrices decay, vectors do not."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    betas = (recipe.beta1, recipe.beta2)
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=betas, eps=recipe.epsilon, fused=True)


def moments(model, optimizer):
    """AdamW's state by FMS key: {"base_model...weight": {"exp_avg", "exp_avg_sq", "step"}}.

    Before the first step, zeros take its place, so that a checkpoint can be loaded into it.
    """
    result = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state.update({moment: torch.zeros_like(parameter) for moment in MOMENTS})
        result[name] = dict(state)
    return result


def clip_gradients(parameters, limit):
    """Scale all gradients so that their global norm is at most `limit`; returns the norm before, a float64 tensor.

    Squares are summed in float64 on the CPU (in float32 within a tensor on a GPU, where float64 is slow) and reduced
    over the ranks as one number: torch's own clip_grad_norm_ differs by 3e-5 between 1 rank and 2.
    """
    gradients = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in parameters if p.grad is not None]
    square = torch.zeros((), dtype=torch.float64, device=gradients[0].device)
    for gradient in gradients:
        precise = gradient.double() if gradient.device.type == "cpu" else gradient.float()
        square += precise.square().sum()
    dist.all_reduce(square)
    norm = square.sqrt()
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.dtype))
    return norm
