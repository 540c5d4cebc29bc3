"""Functions of whole matrices, out of parameters that are sharded by rows: each matrix is computed by one rank.

The rank is the owner of the matrix. Owners receive the rows of their matrices, compute at the same time, and send every
rank its rows of the results. Replicas share the work, too: a matrix is gathered within the owner's replica, and its
result goes to all replicas, which therefore have the same bits. The result depends neither on the number of ranks nor
on the sharding, since a function sees a matrix as it is without sharding.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from stages.lib.distributed.collectives import local_rows

OWNED_BYTES = 64 << 20
"""Matrices that a rank owns in one round, in bytes: more only if one matrix is larger."""

RECEIVED_BYTES = 512 << 20
"""Results that a rank receives in one round, in bytes. It bounds the memory of many replicas, which receive all."""

Owned = list[tuple["Matrix", int]]
"""Matrices with the rank that owns each."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Matrix:
    """Neighbouring rows of a parameter that form a matrix: [rows, columns], from row `first` of the parameter."""

    parameter: torch.Tensor
    first: int
    rows: int

    @property
    def columns(self) -> int:
        """The number of columns."""
        return self.parameter.shape[1]

    def rows_of(self, shard: int, num_shards: int) -> tuple[int, int]:
        """Return the rows of the parameter, [begin, end), that a shard has of this matrix: those of torch.chunk."""
        size = -(-len(self.parameter) // num_shards)
        last = self.first + self.rows
        return min(max(shard * size, self.first), last), min(max((shard + 1) * size, self.first), last)


def assign(matrices: Sequence[Matrix], costs: Sequence[float], num_ranks: int) -> Owned:
    """Return the matrices with their owners, the most expensive first: each goes to the rank with the least work."""
    loads = [(0.0, rank) for rank in range(num_ranks)]
    owned = []
    for number in sorted(range(len(matrices)), key=lambda number: -costs[number]):
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + costs[number], rank))
        owned.append((matrices[number], rank))
    return owned


def rounds_of(owned: Owned, num_shards: int, itemsize: int) -> list[Owned]:
    """Return the matrices in rounds, in their order, so that none needs much memory. All ranks get the same rounds."""
    rounds: list[Owned] = []
    by_rank: dict[int, int] = {}
    for matrix, rank in owned:
        size = matrix.rows * matrix.columns * itemsize
        is_full = sum(by_rank.values()) + size > RECEIVED_BYTES * num_shards
        if not rounds or is_full or (by_rank.get(rank, 0) and by_rank[rank] + size > OWNED_BYTES):
            rounds.append([])
            by_rank = {}
        rounds[-1].append((matrix, rank))
        by_rank[rank] = by_rank.get(rank, 0) + size
    return rounds


def device_of(parameter: torch.Tensor) -> torch.device:
    """Return the device that computes for a parameter, which itself lies on the CPU with cpu_offload."""
    return torch.device(parameter.device_mesh.device_type) if isinstance(parameter, DTensor) else parameter.device


def ranks_of(mesh: DeviceMesh) -> list[list[int]]:
    """Return the ranks of each replica, in the order of their shards."""
    ranks: list[list[int]] = mesh.mesh.reshape(-1, mesh.shape[-1]).tolist()
    return ranks


class RowExchange:
    """Computes functions of matrices whose parameters are all sharded alike, or all whole on every rank."""

    def __init__(
        self, matrices: Sequence[Matrix], dtype: torch.dtype, cost: Callable[[int, int], float], more_columns: int = 0
    ) -> None:
        """`dtype`: that of the matrices which the function gets and returns; `cost`: of rows and columns.

        `more_columns`: those that the function gets and returns beside the matrix's own.
        """
        parameter = matrices[0].parameter
        self.dtype, self.device, self.more_columns = dtype, device_of(parameter), more_columns
        self.replicas = [[dist.get_rank()]]
        if isinstance(parameter, DTensor):
            self.replicas = ranks_of(parameter.device_mesh)
            assert sum(map(len, self.replicas)) == dist.get_world_size()
        self.num_shards, self.num_ranks = len(self.replicas[0]), sum(map(len, self.replicas))
        (self.replica,) = (ranks for ranks in self.replicas if dist.get_rank() in ranks)
        self.shard = self.replica.index(dist.get_rank())
        costs = [cost(matrix.rows, matrix.columns) for matrix in matrices]
        self.rounds = rounds_of(assign(matrices, costs, self.num_ranks), self.num_shards, dtype.itemsize)
        for matrix in matrices:
            local, first = local_rows(matrix.parameter)
            whole = Matrix(parameter=matrix.parameter, first=0, rows=len(matrix.parameter))
            begin, end = whole.rows_of(self.shard, self.num_shards)
            if len(local) != end - begin or (len(local) and first != begin):
                raise AssertionError(f"a shard must have the rows of torch.chunk, {begin} to {end}, found {first}")

    def local(self, matrix: Matrix, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's rows of a matrix, [its rows, columns]: a view of `tensor`, sharded as the parameter."""
        begin, end = matrix.rows_of(self.shard, self.num_shards)
        rows, first = local_rows(tensor)
        return rows[begin - first : end - first] if end > begin else rows[:0]

    def map(
        self,
        rows_of: Callable[[Matrix], torch.Tensor],
        function: Callable[[torch.Tensor], torch.Tensor],
    ) -> Iterator[tuple[Matrix, torch.Tensor]]:
        """Yield (matrix, this rank's rows of function(matrix)) of all matrices; all ranks call it together.

        `rows_of`: this rank's rows of a matrix, [its rows, columns + more_columns]. `function`: keeps the shape.
        """
        for members in self.rounds:
            if self.num_ranks == 1:
                yield from ((matrix, function(self._ready(rows_of(matrix)))) for matrix, _ in members)
            else:
                results = [function(whole) for whole in self._gather(members, rows_of)]
                yield from self._scatter(members, results)

    def _ready(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.to(self.device, self.dtype)

    def _gather(self, members: Owned, rows_of: Callable[[Matrix], torch.Tensor]) -> list[torch.Tensor]:
        """Return the matrices that this rank owns, whole."""
        sent: list[list[torch.Tensor]] = [[] for _ in range(self.num_ranks)]
        for matrix, owner in members:
            if owner in self.replica:
                sent[owner].append(self._ready(rows_of(matrix)))
        own = [matrix for matrix, owner in members if owner == dist.get_rank()]
        sizes: list[list[int]] = [[] for _ in range(self.num_ranks)]
        for shard, rank in enumerate(self.replica):
            sizes[rank] = [self._numel(matrix, shard) for matrix in own]
        received = self._all_to_all(sent, sizes)
        by_matrix = zip(*(received[rank] for rank in self.replica), strict=True)
        return [torch.cat(parts).view(-1, self._width(matrix)) for matrix, parts in zip(own, by_matrix, strict=True)]

    def _scatter(self, members: Owned, results: list[torch.Tensor]) -> Iterator[tuple[Matrix, torch.Tensor]]:
        """Yield this rank's rows of the results, which lie on the owners."""
        own = [matrix for matrix, owner in members if owner == dist.get_rank()]
        sent: list[list[torch.Tensor]] = [[] for _ in range(self.num_ranks)]
        for ranks in self.replicas:
            for shard, rank in enumerate(ranks):
                sent[rank] = [self._rows(result, matrix, shard) for matrix, result in zip(own, results, strict=True)]
        sizes: list[list[int]] = [[] for _ in range(self.num_ranks)]
        for matrix, owner in members:
            sizes[owner].append(self._numel(matrix, self.shard))
        received = [iter(parts) for parts in self._all_to_all(sent, sizes)]
        for matrix, owner in members:
            yield matrix, next(received[owner]).view(-1, self._width(matrix))

    def _width(self, matrix: Matrix) -> int:
        return matrix.columns + self.more_columns

    def _numel(self, matrix: Matrix, shard: int) -> int:
        begin, end = matrix.rows_of(shard, self.num_shards)
        return (end - begin) * self._width(matrix)

    def _rows(self, result: torch.Tensor, matrix: Matrix, shard: int) -> torch.Tensor:
        begin, end = matrix.rows_of(shard, self.num_shards)
        return result[begin - matrix.first : end - matrix.first]

    def _all_to_all(self, sent: list[list[torch.Tensor]], sizes: list[list[int]]) -> list[list[torch.Tensor]]:
        """Send tensors to each rank; return those from each rank, flat, of the numbers of elements `sizes`."""
        empty = torch.empty(0, dtype=self.dtype, device=self.device)  # a rank may send nothing
        buffer = torch.cat([empty, *(tensor.flatten() for tensors in sent for tensor in tensors)])
        received = torch.empty(sum(map(sum, sizes)), dtype=self.dtype, device=self.device)
        sent_sizes = [sum(tensor.numel() for tensor in tensors) for tensors in sent]
        dist.all_to_all_single(received, buffer, list(map(sum, sizes)), sent_sizes)
        parts = iter(received.split([size for row in sizes for size in row]))
        return [[next(parts) for _ in row] for row in sizes]
