"""Layers that compute in bfloat16 from float32 weights, on one rank, without FSDP.

FSDP's mixed precision gathers and casts weights to memory that it frees after each block, and copies gradients into a
buffer and out of it. On one rank there is nothing to gather: these are copies of about 50 bytes per parameter and
micro-batch. So each layer casts its weights when it uses them. The same values are cast to the same bits in both, and
gradients of bfloat16 are added up in float32 in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from stages.lib.model.transformer import Transformer


class CastLinear(nn.Linear):
    """A linear layer whose weights are cast to the dtype of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., columns] -> [..., rows]."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.linear(x, self.weight.to(x.dtype), bias)


class CastRMSNorm(nn.RMSNorm):
    """A norm whose weight is cast to the dtype of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., D] -> [..., D]."""
        return functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class HalfEmbedding(nn.Embedding):
    """An embedding in bfloat16: all layers after it take its dtype."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """int64 [B, L] -> bfloat16 [B, L, D]."""
        self.cast_weight = self.weight.bfloat16()
        return functional.embedding(tokens, self.cast_weight)


CASTING: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: CastLinear,
    nn.RMSNorm: CastRMSNorm,
    nn.Embedding: HalfEmbedding,
}
"""{class: the same with casts}. A Float8Linear casts its weight anyway."""


def cast_weights(model: Transformer) -> None:
    """Let a model of float32 weights compute in bfloat16. Experts, adapters and the loss cast theirs anyway."""
    for module in model.modules():
        if type(module) in CASTING and module.weight.dtype != torch.bfloat16:  # frozen weights beside LoRA's are
            module.__class__ = CASTING[type(module)]
