"""AdamW on sharded parameters, and clipping by the true global norm."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from stages.lib.distributed import local_shards
from stages.lib.errors import UserError
from stages.lib.recipe import identity
from stages.lib.training.compact_adamw import MOMENTS, CompactAdamW

COARSE = 2**-8
"""What 1 - beta must exceed for bfloat16 moments: a smaller change than this share of a number may round to none."""


@dataclass(frozen=True, kw_only=True)
class OptimizerRecipe:
    """AdamW (arXiv 1711.05101)."""

    learning_rate: float = identity(3e-4, above=0)
    """The peak learning rate."""

    beta1: float = identity(0.9, minimum=0, maximum=1)
    """Decay of the average of gradients."""

    beta2: float = identity(0.95, minimum=0, maximum=1)
    """Decay of the average of squared gradients."""

    eps: float = identity(1e-8, above=0)
    """Added to the root of the averaged squared gradient."""

    weight_decay: float = identity(0.1, minimum=0)
    """Decoupled weight decay of matrices; norms are never decayed."""

    max_grad_norm: float = identity(1.0, above=0)
    """The largest global gradient norm; longer gradients are scaled down to it."""

    state_dtype: str = identity("float32", choices=("float32", "bfloat16"))
    """How AdamW's two averages are kept. float32: like the weights (float64 where those are). bfloat16: 4 bytes a
    parameter in place of 8, in memory and in checkpoints; updates are computed in float32 and rounded to 8 bits. A
    change of under 0.4% is then lost, so averages follow slowly for betas near 1, and not at all for those that leave
    a step less than 1/256: such betas are refused."""

    def check(self, where):
        """Raise UserError where bfloat16 moments would stand still."""
        for name in ("beta1", "beta2"):
            beta = getattr(self, name)
            if self.state_dtype == "bfloat16" and 1 - beta <= COARSE:
                raise UserError(
                    f"{where}.{name} must be less than {1 - COARSE:.4f} with state_dtype bfloat16, which would round "
                    f"the steps of a slower average to nothing, got {beta}"
                )


def build(model, recipe):
    """AdamW over the parameters of a model; matrices decay, vectors do not."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    options = {"lr": recipe.learning_rate, "betas": (recipe.beta1, recipe.beta2), "eps": recipe.eps}
    if recipe.state_dtype == "bfloat16":
        return CompactAdamW(groups, **options)
    return torch.optim.AdamW(groups, **options, fused=True)


def skip_if(optimizer, flag):
    """Make the next calls of `step` change nothing where `flag` is 1.0: no weight, no moment, no count of steps.

    `flag` is a tensor of one element, 0.0 or 1.0. The host does not wait for it, but where it is on another device than
    the parameters (offloaded to the CPU). torch's fused AdamW reads this attribute too; GradScaler sets it.
    """
    device = optimizer.param_groups[0]["params"][0].device
    optimizer.found_inf = flag.detach().to(device, torch.float32)


def moments(model, optimizer):
    """AdamW's state by FMS key: {"base_model...weight": {"exp_avg", "exp_avg_sq", "step"}}.

    Before the first step, zeros take its place, so that a checkpoint can be loaded into it.
    """
    result = {}
    for name, parameter in model.named_parameters():
        if not optimizer.state[parameter]:
            optimizer.state[parameter] = _empty_state(optimizer, parameter)
        result[name] = dict(optimizer.state[parameter])
    return result


def _empty_state(optimizer, parameter):
    if isinstance(optimizer, CompactAdamW):
        return optimizer.empty_state(parameter)
    zeros = {moment: torch.zeros_like(parameter).detach() for moment in MOMENTS}
    return {"step": torch.zeros((), dtype=torch.float32, device=parameter.device), **zeros}


def clip_gradients(parameters, limit, group=None):
    """Scale all gradients so that their global norm is at most `limit`; returns the norm before, a float64 tensor.

    `group`: the ranks over which a parameter's shards lie; replicas are not counted twice. Default: all ranks. A norm
    that is not finite spoils the gradients: the step must then be skipped.

    Squares are summed in float64 on the CPU (in float32 within a tensor on a GPU, where float64 is slow) and reduced
    over the ranks as one number: torch's own clip_grad_norm_ differs by 3e-5 between 1 rank and 2.
    """
    gradients = [local_shards.local(p.grad) for p in parameters if p.grad is not None]
    square = torch.zeros((), dtype=torch.float64, device=gradients[0].device)
    for gradient in gradients:
        precise = gradient.double() if gradient.device.type == "cpu" else gradient.float()
        square += precise.square().sum()
    dist.all_reduce(square, group=group)
    norm = square.sqrt()
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.dtype))
    return norm
