"""How long this rank itself worked: the forward passes of its blocks, in which no rank waits for another.

All else of a step takes equally long on all ranks, since every collective ends on all of them together. So whole steps
cannot tell a slow GPU, or a node whose cores somebody else uses, from those that wait for it.
"""

import time

import torch


class StragglerTimer:
    """Times the blocks of a Llama that was sharded before, in training. Nothing in it waits for the device.

    With torch.compile, hooks must stay outside of what is compiled: the blocks' forward, not the blocks.
    """

    def __init__(self, model, device):
        self.on_gpu = device.type == "cuda"
        self._pairs, self._began = [], None
        for block in model.base_model.layers:
            block.register_forward_pre_hook(self._begin)  # behind FSDP's, which waits for the block's weights
            block.register_forward_hook(self._end, prepend=True)  # before FSDP's

    def _begin(self, block, *_):
        self._began = self._now() if block.training else None

    def _end(self, *_):
        if self._began is not None:
            self._pairs.append((self._began, self._now()))

    def _now(self):
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def marks(self):
        """What was measured since the last call, for `seconds` when the device has come so far."""
        pairs, self._pairs = self._pairs, []
        return pairs

    def seconds(self, marks):
        """How long the blocks took, all together."""
        if self.on_gpu:
            return sum(began.elapsed_time(ended) for began, ended in marks) / 1e3
        return sum(ended - began for began, ended in marks)
