"""The auxiliary loss that balances the load of experts, and the load itself.

The loss is that of the Switch Transformer (arXiv 2101.03961, equations 4 to 6) for k experts per token, as in
transformers' `load_balancing_loss_func`: E * sum over experts of (share of the tokens that chose it) * (mean
probability of it), which is k if all experts have the same load, and up to E if k of them have all of it.

transformers takes these means over all tokens of a micro-batch and all layers, so that the loss depends on the
micro-batch and the number of ranks. Here they are taken over the targets of one row in one layer; the loss is the mean
over layers, and over rows by their numbers of targets, like the cross-entropy. So every division of a batch gives the
same gradient. (A balance per row is also what Mixtral's successors train for: DeepSeek-V3's "sequence-wise" loss, arXiv
2412.19437, section 2.1.2.)

B is the micro-batch size, L the sequence length, E the number of experts, k the number of experts per token.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from stages.lib.model.loss import IGNORED


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
