"""Time that this rank itself needs: the forward passes of its blocks, in which no rank waits for another.

The rest of a step takes the same time on all ranks, since every collective ends on all of them together. So step times
cannot distinguish a slow GPU, or a node with busy cores, from the ranks that wait for it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from stages.lib.model.transformer import Transformer


class StragglerTimer:
    """Times the forward passes of a model's blocks in training, without synchronization with the device.

    The model must be sharded before. torch.compile must not compile the hooks: compile the blocks' forward, not the
    blocks.
    """

    def __init__(self, model: Transformer, device: torch.device) -> None:
        """Register hooks on the model's blocks."""
        self.on_gpu = device.type == "cuda"
        self._intervals: list[tuple[Any, Any]] = []
        self._begin: Any = None
        for block in model.base_model.layers:
            block.register_forward_pre_hook(self._before)  # after FSDP's hook, which waits for the block's weights
            block.register_forward_hook(self._after, prepend=True)  # before FSDP's

    def _before(self, block: nn.Module, *_: Any) -> None:
        self._begin = self._now() if block.training and not self._is_capturing() else None

    def _after(self, *_: Any) -> None:
        if self._begin is not None:
            self._intervals.append((self._begin, self._now()))

    def _is_capturing(self) -> bool:
        """Return true while a CUDA graph is made: events in it have no times. It has one rank, which waits for none."""
        return self.on_gpu and torch.cuda.is_current_stream_capturing()

    def _now(self) -> float | torch.cuda.Event:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def pop_intervals(self) -> list[tuple[Any, Any]]:
        """Return the intervals since the last call, for `seconds` once the device has reached their end."""
        intervals, self._intervals = self._intervals, []
        return intervals

    def seconds(self, intervals: list[tuple[Any, Any]]) -> float:
        """Return the sum of the intervals in seconds."""
        if self.on_gpu:
            return sum(begin.elapsed_time(end) for begin, end in intervals) / 1e3
        return sum(end - begin for begin, end in intervals)
