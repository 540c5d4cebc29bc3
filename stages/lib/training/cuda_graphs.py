"""The forward and backward pass of a micro-batch as one CUDA graph, on one rank without FSDP.

The host launches a graph once, instead of thousands of kernels: it pays where the GPU waits for the host, for small
models and micro-batches. See "Whole-network capture" in torch's notes on CUDA semantics.

A graph needs weights that stay where they are, which FSDP does not give: see `parallelize`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from stages.lib.model.transformer import Transformer, Trunk


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
