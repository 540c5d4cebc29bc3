"""The forward and backward pass of a micro-batch as one CUDA graph, on one rank without FSDP.

The host launches a graph once, instead of thousands of kernels: it pays where the GPU waits for the host, for small
models and micro-batches. See "Whole-network capture" in torch's notes on CUDA semantics.

A graph needs weights that stay where they are. FSDP's mixed precision gathers and casts weights to memory that it frees
after each block, at addresses that change; so each layer casts its float32 weights to bfloat16 when it uses them. The
same values are cast to the same bits in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from stages.lib.model.transformer import Transformer, Trunk


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
        return functional.embedding(tokens, self.weight.bfloat16())


CASTING: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: CastLinear,
    nn.RMSNorm: CastRMSNorm,
    nn.Embedding: HalfEmbedding,
}
"""{class: the same with casts}. A Float8Linear casts its weight anyway; the loss casts the head's."""


def cast_weights(model: Transformer) -> None:
    """Let a dense model of float32 weights compute in bfloat16."""
    for module in model.modules():
        if type(module) in CASTING:
            module.__class__ = CASTING[type(module)]


Take = Callable[[Sequence[torch.Tensor], torch.Tensor], torch.Tensor]
"""Runs both passes of a micro-batch: (tensors of the micro-batch, units of the global batch) -> figures."""

WARM_UP = 3
"""Micro-batches before the capture: torch compiles, chooses kernels and allocates workspaces in them."""


class MicroBatchGraph:
    """Runs micro-batches of one shape: the first ones as they are, the next one is captured, and then replayed.

    Gradients are accumulated in `parameters`' `grad`, which keep their memory: `zero_gradients` takes the place of the
    optimizer's zero_grad.
    """

    def __init__(self, take: Take, model: Transformer) -> None:
        self.take, self.parameters = take, list(model.parameters())
        self.stream = torch.cuda.Stream()
        self.graph: Any = None
        self._inputs: list[torch.Tensor] = []
        self._figures: torch.Tensor | None = None
        self._num_run = 0
        keep_rotation(model.base_model)
        allocate_gradients(model)

    def __call__(self, micro_batch: Sequence[torch.Tensor], count: torch.Tensor) -> torch.Tensor:
        """Run a micro-batch; return its figures, which the next call overwrites."""
        inputs = [*micro_batch, count]
        if self._num_run < WARM_UP:
            self._num_run += 1
            return self._outside(inputs)
        if self.graph is None:
            self._capture(inputs)
        torch._foreach_copy_(self._inputs, inputs)
        self.graph.replay()
        assert self._figures is not None
        return self._figures

    def zero_gradients(self) -> None:
        """Set all gradients to zero where they are."""
        torch._foreach_zero_([parameter.grad for parameter in self.parameters])  # type: ignore[misc]

    def _outside(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Run a micro-batch without a graph, on the stream of the capture: autograd remembers streams."""
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            figures = self.take(inputs[:-1], inputs[-1])
        current.wait_stream(self.stream)
        return figures

    def _capture(self, inputs: Sequence[torch.Tensor]) -> None:
        self._inputs = [tensor.clone() for tensor in inputs]
        self.graph = torch.cuda.CUDAGraph()
        # thread_local: other threads copy batches and checkpoints meanwhile
        with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
            self._figures = self.take(self._inputs[:-1], self._inputs[-1])


def allocate_gradients(model: Transformer) -> None:
    """Set all gradients to zero before the first pass, so that a graph adds to them."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


def keep_rotation(trunk: Trunk) -> None:
    """Let a trunk keep its rotary tables of every length, not of the last alone: a graph reads those of its capture."""
    compute, known = trunk.rotation, {}

    def rotation(positions: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        length = len(positions)  # in training they are 0, 1, 2, ...
        if length not in known:
            known[length] = compute(positions, device)
        return known[length]

    trunk.rotation = rotation  # type: ignore[method-assign]
