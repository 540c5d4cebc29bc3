"""Matrix products in float8: each tensor has one scale, computed when it is cast (tensorwise dynamic scaling).

The linear layers of the blocks multiply in it, forward and backward (arXiv 2209.05433): activations and weights are
cast to e4m3, gradients to e5m2. Embedding, head, norms and attention itself stay in bfloat16, and so does what a layer
returns. Parameters and their names do not change: a weight is cast in each pass.

A scale is a power of two. So it moves exponents alone, and a value that does not underflow is rounded alike whatever
else is in its tensor: results depend little on `micro_batch_size` and the number of ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from stages.lib.model.transformer import Transformer

VALUES, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
SMALLEST = 2.0**-100
"""Largest absolute value that is assumed for a tensor of smaller ones: its scale and the inverse are normal numbers."""

EXPONENT = 0x7F800000
"""The bits of a float32's exponent."""

Cast = tuple[torch.Tensor, torch.Tensor]
"""A tensor in float8, and the number by which its values are multiplied to get those before: a float32 scalar."""


def apply(model: Transformer) -> None:
    """Let the linear layers of a model's blocks multiply in float8. Call it before torch.compile and FSDP."""
    for module in model.base_model.layers.modules():
        if type(module) is nn.Linear:
            module.__class__ = Float8Linear


class Float8Linear(nn.Linear):
    """A linear layer that multiplies in float8. All sizes, the number of rows too, must be multiples of 16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, L, columns] -> [B, L, rows], in the dtype of `x`."""
        product = _Linear.apply(x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])
        return product if self.bias is None else product + self.bias.to(x.dtype)


def cast(x: torch.Tensor, dtype: torch.dtype) -> Cast:
    """Cast a tensor of float32 or bfloat16, scaled by the largest power of two that keeps its values in range.

    A value that is not finite makes the products with it not finite, so that the loss guard sees it.
    """
    low, high = x.aminmax()
    largest = torch.maximum(-low, high).float().clamp(min=SMALLEST)
    scale = ((torch.finfo(dtype).max / largest).view(torch.int32) & EXPONENT).view(torch.float32)
    return (x * scale.to(x.dtype)).to(dtype).contiguous(), scale.reciprocal()


def transposed(made: Cast) -> Cast:
    """Transpose a cast in memory: both factors of a product must lie along the dimension that is summed."""
    return made[0].t().contiguous(), made[1]


def multiply(a: Cast, b: Cast, dtype: torch.dtype, fast: bool = False) -> torch.Tensor:
    """[M, K], [N, K] -> a @ b.T, [M, N] in `dtype`. `fast`: sum with fewer bits on a Hopper GPU, as in inference."""
    return torch._scaled_mm(a[0], b[0].t(), scale_a=a[1], scale_b=b[1], out_dtype=dtype, use_fast_accum=fast)


class _Linear(torch.autograd.Function):
    """[M, K], [N, K] -> [M, N]. Of the input one byte per value is kept; the weight is cast again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        values = cast(x, VALUES)
        ctx.save_for_backward(*values, weight)
        ctx.dtype = x.dtype
        return multiply(values, cast(weight.to(x.dtype), VALUES), x.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:  # type: ignore[override]
        x, x_scale, weight = ctx.saved_tensors
        gradient, x_grad, weight_grad = cast(grad, GRADIENTS), None, None
        if ctx.needs_input_grad[0]:
            x_grad = multiply(gradient, transposed(cast(weight.to(ctx.dtype), VALUES)), ctx.dtype)
        if ctx.needs_input_grad[1]:
            weight_grad = multiply(transposed(gradient), transposed((x, x_scale)), ctx.dtype).to(weight.dtype)
        return x_grad, weight_grad
