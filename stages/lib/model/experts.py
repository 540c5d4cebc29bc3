"""Sparse feed-forward layers: a router gives each token to some of the experts (Mixtral, arXiv 2401.04088).

N is the number of tokens, k the number of experts per token, E the number of experts, D the hidden size, F the
intermediate size. No token is dropped: the N * k rows are sorted by their expert, multiplied by its matrices in groups
of any size, and put back. Nothing is added by an atomic operation, so equal inputs give equal bits.

The experts' matrices are those of ibm-fms (`cond_ffn.w13`, `cond_ffn.w2`), stored with two dimensions: FSDP shards
rows, and there may be fewer experts than ranks, but not fewer rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from stages.lib.model.loss import IGNORED
from stages.lib.model.model_recipe import ModelRecipe


class Routing(NamedTuple):
    """The choices of all routers in a forward pass, over the tokens whose target is not -100."""

    aux_loss: torch.Tensor
    """The auxiliary loss of each row, the mean over layers: [B], at least float32. 0 for a row without targets."""

    load: torch.Tensor
    """The tokens of each row that an expert was chosen for, by layer: [B, num_hidden_layers, E], without gradient."""


def routing(probabilities: list[torch.Tensor], targets: torch.Tensor, experts_per_token: int) -> Routing:
    """The auxiliary loss and the load. `probabilities`: [B, L, E] of each layer. `targets`: int64 [B, L]."""
    stacked = torch.stack(probabilities, 1)  # [B, layers, L, E]
    counted = (targets != IGNORED).to(stacked.dtype)
    num_targets = counted.sum(1).clamp(min=1)
    chosen = torch.zeros_like(stacked).scatter(-1, stacked.topk(experts_per_token, dim=-1).indices, 1)
    load = torch.einsum("bnle,bl->bne", chosen, counted)
    sums = torch.einsum("bnle,bl->bne", stacked, counted)
    scale = stacked.shape[-1] / num_targets.square()
    return Routing((load * sums).sum(-1).mean(-1) * scale, load.detach())


class Experts(nn.Module):
    """SwiGLU layers side by side."""

    def __init__(self, num_experts: int, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.w13 = nn.Parameter(torch.empty(num_experts * 2 * intermediate_size, hidden_size))
        self.w2 = nn.Parameter(torch.empty(num_experts * hidden_size, intermediate_size))

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """[N * k, D] -> [N * k, D]. `ends`: int32 [E], the row after the last one of each expert."""
        # the casts do nothing under FSDP, which has cast the weights (training/parallelize.py)
        w13, w2 = (weight.to(x.dtype).unflatten(0, (self.num_experts, -1)) for weight in (self.w13, self.w2))
        gate, up = grouped_product(x, w13, ends).chunk(2, dim=-1)
        return grouped_product(functional.silu(gate) * up, w2, ends)


class SparseFeedForward(nn.Module):
    """A router and its experts."""

    def __init__(self, recipe: ModelRecipe) -> None:
        super().__init__()
        assert recipe.router is not None
        self.num_experts, self.experts_per_token = recipe.router.num_experts, recipe.router.experts_per_token
        self.gate = nn.Linear(recipe.hidden_size, self.num_experts, bias=False)
        self.cond_ffn = Experts(self.num_experts, recipe.hidden_size, recipe.intermediate_size)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, L, D] -> ([B, L, D], the router's probabilities [B, L, E] of at least float32)."""
        probabilities = router_probabilities(self.gate(x))
        weights, chosen = probabilities.flatten(0, 1).topk(self.experts_per_token, dim=-1)  # [N, k]
        experts, order = chosen.flatten().sort(stable=True)
        numbers = torch.arange(self.num_experts, device=x.device)
        ends = torch.searchsorted(experts, numbers, right=True, out_int32=True)
        places = order.argsort()
        rows = self.cond_ffn(_Dispatch.apply(x.flatten(0, 1), order, places), ends)
        rows = _Permute.apply(rows, places, order).unflatten(0, weights.shape)  # [N, k, D]
        weights = weights / weights.sum(-1, keepdim=True)
        return (rows * weights.unsqueeze(-1)).sum(1).to(x.dtype).view_as(x), probabilities


def router_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """The softmax of a router's logits, of at least float32."""
    return logits.softmax(-1, torch.promote_types(logits.dtype, torch.float32))


def choice_margins(probabilities: torch.Tensor, experts_per_token: int) -> torch.Tensor:
    """Return by how much the last chosen expert is more likely than the first one that is not: [..., E] -> [...].

    Rounding decides a choice whose margin is about 0. Without an expert that is not chosen it is at least 1.
    """
    ordered = functional.pad(probabilities.sort(dim=-1, descending=True).values, (0, 1), value=-1.0)
    return ordered[..., experts_per_token - 1] - ordered[..., experts_per_token]


def grouped_product(x: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Multiply groups of rows by a matrix each: [N, columns], [E, rows, columns] -> [N, rows].

    `ends`: int32 [E], the row after the last one of each group; a group may be empty.
    """
    if has_grouped_kernel(x, matrices):
        return functional.grouped_mm(x, matrices.transpose(1, 2), offs=ends)
    return looped_product(x, matrices, ends)


def has_grouped_kernel(x: torch.Tensor, matrices: torch.Tensor) -> bool:
    """True if one kernel computes all groups, without the host knowing their sizes.

    torch has it for bfloat16 on NVIDIA GPUs from the A100 on, for rows of a multiple of 16 bytes.
    """
    if x.device.type != "cuda" or x.dtype != torch.bfloat16 or any(size % 8 for size in matrices.shape[1:]):
        return False
    return torch.cuda.get_device_capability(x.device) >= (8, 0)


@torch.compiler.disable
def looped_product(x: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The same, one group at a time. The host waits for the sizes of the groups."""
    sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
    groups = zip(x.split(sizes), matrices.unbind(), strict=True)
    return torch.cat([functional.linear(rows, matrix) for rows, matrix in groups])


class _Permute(torch.autograd.Function):
    """Rows in another order. Indexing would add up gradients by atomic operations, though no row is used twice."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, order: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(places)
        return x.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        (places,) = ctx.saved_tensors
        return grad.index_select(0, places), None, None


class _Dispatch(torch.autograd.Function):
    """[N, D] -> [N * k, D]: each row k times, in an order of the N * k rows; `places` is the inverse order."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, order: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(places)
        ctx.copies = len(order) // len(x)
        return x.index_select(0, order // ctx.copies)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        (places,) = ctx.saved_tensors
        return grad.index_select(0, places).unflatten(0, (-1, ctx.copies)).sum(1), None, None
