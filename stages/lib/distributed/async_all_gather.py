"""Asynchronous all-gather of a few numbers per rank; the result is read one call later."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


class AsyncAllGather:
    """Gathers a row of numbers from every rank without blocking, in a gloo process group of its own: no GPU waits.

    All ranks must call `wait` and `start` at the same places; the result is then the same on all of them.
    """

    def __init__(self, width: int) -> None:
        """`width`: numbers per rank. Collective: every rank must construct it."""
        self.group = dist.new_group(backend="gloo")
        self.width = width
        self._work: dist.Work | None = None
        self._rows: list[torch.Tensor] = []

    def start(self, values: Sequence[float]) -> None:
        """Start to gather `values` ([width]); `wait` returns the result."""
        row = torch.tensor(values, dtype=torch.float64)
        self._rows = [torch.empty(self.width, dtype=torch.float64) for _ in range(dist.get_world_size())]
        self._work = dist.all_gather(self._rows, row, group=self.group, async_op=True)

    def wait(self) -> torch.Tensor | None:
        """Return the rows of the last `start`, float64 [world size, width]; None if there is no pending one."""
        if self._work is None:
            return None
        self._work.wait()
        self._work = None
        return torch.stack(self._rows)
