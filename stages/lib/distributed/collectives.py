"""Collectives of Python objects, agreement of all ranks on an error, a gather without waiting, and local shards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from stages.lib.errors import UserError


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


class CollectiveError(UserError):
    """A UserError that every rank raises at the same place."""

    on_all_ranks = True


def is_first_rank() -> bool:
    """Return True on the rank that writes what all ranks have."""
    return dist.get_rank() == 0


def broadcast_object(value: Any) -> Any:
    """Return the first rank's `value` on every rank; a shared file system may show each rank something else."""
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def all_gather_object(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Return the `value` of every rank, in the order of ranks, on every rank."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group=group)
    return values


def first_rank_first(work: Callable[[], Any]) -> Any:
    """Call `work` on the first rank, then on the others, which find what it left in a cache; a UserError is of all."""
    with raise_on_all_ranks():
        result = work() if is_first_rank() else None
    with raise_on_all_ranks():
        return result if is_first_rank() else work()


@contextlib.contextmanager
def raise_on_all_ranks(group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Turn a UserError of any rank in this block into a CollectiveError on all ranks.

    No rank leaves the block before all ranks have reached its end.
    """
    failed = None
    try:
        yield
    except UserError as error:
        failed = error
    for message in all_gather_object(None if failed is None else str(failed), group):
        if message is not None:
            raise CollectiveError(message)


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_rows(parameter: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return this rank's rows of a parameter, and the global index of the first of them.

    Raises AssertionError if the parameter is sharded along another dimension.
    """
    if not isinstance(parameter, DTensor):
        return parameter, 0
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    if shape[1:] != parameter.shape[1:]:
        raise AssertionError(f"parameters must be sharded by rows only, found {parameter.placements}")
    return parameter.to_local(), offset[0]
