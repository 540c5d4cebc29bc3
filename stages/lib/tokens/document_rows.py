"""The rows of a source whose documents are packed: each document whole, once per epoch.

    document -> group: a permutation of all documents, cut into groups of 65,536
    (group, epoch) -> rows: the group's documents in another order each epoch, packed
    epoch -> order of the groups: a permutation keyed by seed, source and epoch

So a row is found without packing the rows before it: the number of rows of a group follows from the lengths of its
documents alone, and is the same in every epoch. Rows are counted once at the start, in the order in which the documents
lie in the shards, since the permutation can be inverted: document -> group needs no table. Counting takes 0.08 us per
document, and 0.11 us for `best_fit`: one second for 10 million documents, two minutes for a billion. It keeps 24 bytes
per group, and for `best_fit` 4 * seq_len while it counts. Laying out a group takes 10 ms, and 70 ms for `best_fit`; the
last four groups of a source are cached, about 2 MB each.

`concat` lays the documents of a group end to end. Rows come in order, so the segments of a document follow each other.
All but the last row of a group are full.

`best_fit` cuts only documents of more than `seq_len` + 1 tokens. Free room in its rows (about 0.3%) is filled up with
EOS and is no target. The first token of a document is no target either: no token of the document precedes it. The rows
of a group come in a random order, so the segments of a document may come in any order.
"""

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol

import numpy as np

from stages.lib.errors import UserError
from stages.lib.tokens.corpus import Segments, TokenStream
from stages.lib.tokens.data_order import permute, positions_of

IN_MEMORY = 1 << 24
"""Documents of a source whose boundaries are held in memory: 128 MiB."""

WIDTH = 8  # bytes of an offset
AT_ONCE = 1 << 20  # documents whose offsets are read at once


class DocumentIndex:
    """Boundaries of documents 0..len-1 of a stream, in its order."""

    def __init__(self, stream: TokenStream) -> None:
        self.stream = stream
        self._firsts = np.zeros(len(stream.batches) + 1, dtype=np.int64)
        np.cumsum([batch["documents"] for _, batch in stream.batches], out=self._firsts[1:])
        self._offsets_at = np.array([batch["offsets_at"] for _, batch in stream.batches], dtype=np.int64)
        self._shards = np.array([shard for shard, _ in stream.batches], dtype=np.int64)
        self._bounds: np.ndarray | None = None

    def __len__(self) -> int:
        """Return the number of documents."""
        return int(self._firsts[-1])

    def all(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first document, bounds) over all documents in order, some at a time.

        bounds: int64 [documents + 1], the stream's token at which each begins, and the end of the last. Raises
        UserError naming a shard whose offsets are not valid.
        """
        for number, (shard, batch) in enumerate(self.stream.batches):
            begin = int(self.stream.starts[number])
            for first in range(0, batch["documents"], AT_ONCE):
                count = min(AT_ONCE, batch["documents"] - first)
                offsets = self._read(np.array([number]), np.array([first]), count + 1)[0]
                ends_right = first + count < batch["documents"] or offsets[-1] == batch["tokens"]
                if (offsets[0] != 0 and first == 0) or not ends_right or (np.diff(offsets) < 0).any():
                    raise UserError(
                        f"{self.stream.paths[shard]} must have offsets that rise from 0 to its number of tokens"
                    )
                yield int(self._firsts[number]) + first, offsets + begin

    def places(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (first token in the stream, number of tokens) of some documents; int64 arrays."""
        if len(self) <= IN_MEMORY:
            if self._bounds is None:
                self._bounds = np.concatenate([[0], *(bounds[1:] for _, bounds in self.all())]).astype(np.int64)
            return self._bounds[documents], self._bounds[documents + 1] - self._bounds[documents]
        batches: np.ndarray = np.searchsorted(self._firsts, documents, side="right") - 1  # type: ignore[assignment]
        offsets = self._read(batches, documents - self._firsts[batches], 2)
        starts, counts = self.stream.starts[batches] + offsets[:, 0], offsets[:, 1] - offsets[:, 0]
        wrong = np.flatnonzero((counts < 0) | (starts + counts > self.stream.starts[batches + 1]) | (offsets[:, 0] < 0))
        if len(wrong):
            shard = self._shards[batches[wrong[0]]]
            raise UserError(f"{self.stream.paths[shard]} must have offsets that rise from 0 to its number of tokens")
        return starts, counts

    def _read(self, batches: np.ndarray, firsts: np.ndarray, count: int) -> np.ndarray:
        """Read `count` offsets from number `firsts` on of each of some batches: int64 [batches, count]."""
        offsets = np.empty((len(batches), count), dtype="<i8")
        positions = self._offsets_at[batches] + firsts * WIDTH
        sizes = np.full(len(batches), count * WIDTH)
        self.stream.pread(self._shards[batches], positions, sizes, list(offsets))
        return offsets


GROUP = 1 << 16
"""Documents that are packed together. More take longer to lay out, fewer fill rows less well."""

CACHED = 4  # groups that are laid out, and epochs whose order is computed


class GroupCounts(Protocol):
    """Counts rows and targets of groups of documents. Made of (number of groups, seq_len)."""

    def add(self, groups: np.ndarray, lengths: np.ndarray) -> None:
        """Count documents of some lengths to their groups; int64 arrays [documents]."""

    def rows(self) -> np.ndarray:
        """Return the rows of each group, int64 [groups]."""

    def targets(self) -> np.ndarray:
        """Return the targets of each group, int64 [groups]."""


class Group(Protocol):
    """A group of documents laid out in as many rows as GroupCounts counted.

    Made of (first token of each document in the stream, lengths, seq_len, key of its order).
    """

    def segments(self, rows: np.ndarray) -> Segments:
        """Return the segments of some rows of the group."""

    def targets_before(self, row: int) -> int:
        """Return the number of targets in the rows before number `row`."""


class DocumentRows:
    """The rows of a source's packed documents. `key` (text) names their order. See `packing.Layout`."""

    packs_documents = True
    row_name = "row"

    def __init__(
        self,
        stream: TokenStream,
        seq_len: int,
        key: str,
        counts_type: Callable[[int, int], GroupCounts],
        group_type: Callable[[np.ndarray, np.ndarray, int, str], Group],
    ) -> None:
        self.documents, self.seq_len, self.key = DocumentIndex(stream), seq_len, key
        self._group_type = group_type
        counts = counts_type(-(-len(self.documents) // GROUP), seq_len)
        for first, bounds in self.documents.all():
            documents = np.arange(first, first + len(bounds) - 1)
            places = positions_of(documents, len(self.documents), f"{key}/groups")
            counts.add(places // GROUP, np.diff(bounds))
        self._group_rows, self._group_targets = counts.rows(), counts.targets()
        self.rows, self.targets = int(self._group_rows.sum()), int(self._group_targets.sum())
        self._orders: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._groups: dict[tuple[int, int], Group] = {}

    def rows_at(self, _epoch: int, positions: np.ndarray) -> np.ndarray:
        """Return the row at each position of an epoch: rows are numbered in the order of the epoch."""
        return positions

    def segments(self, epoch: int, rows: np.ndarray) -> Segments:
        """Return the segments of some rows of an epoch."""
        order, ends = self._order(epoch)
        numbers = np.searchsorted(ends, rows, side="right")  # in the epoch's order of the groups
        parts = []
        for number in np.unique(numbers).tolist():
            chosen = np.flatnonzero(numbers == number)
            group = int(order[number])
            found = self._group(epoch, group).segments(rows[chosen] - ends[number] + self._group_rows[group])
            parts.append((chosen[found.rows], found.starts, found.counts, found.places))
        numbers, starts, counts, places = map(np.concatenate, zip(*parts, strict=True))
        return Segments(numbers, starts, counts, places, found.closed)

    def targets_before(self, epoch: int, position: int) -> int:
        """Return the number of targets in the first `position` rows of an epoch."""
        order, ends = self._order(epoch)
        number = int(np.searchsorted(ends, position, side="right"))
        before = int(self._group_targets[order[:number]].sum())
        if number == len(order):
            return before
        group = int(order[number])
        row = position - int(ends[number]) + int(self._group_rows[group])
        return before + (self._group(epoch, group).targets_before(row) if row else 0)

    def _order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """(the groups in the order of an epoch, number of rows up to the end of each)."""
        made = self._orders.get(epoch)
        if made is None:
            order = permute(np.arange(len(self._group_rows)), len(self._group_rows), f"{self.key}/{epoch}")
            made = order, np.cumsum(self._group_rows[order])
            cache(self._orders, epoch, made, CACHED)
        return made

    def _group(self, epoch: int, group: int) -> Group:
        made = self._groups.get((epoch, group))
        if made is None:
            total = len(self.documents)
            places = np.arange(group * GROUP, min(total, group * GROUP + GROUP))
            documents = permute(places, total, f"{self.key}/groups")
            made = self._group_type(*self.documents.places(documents), self.seq_len, f"{self.key}/{epoch}/{group}")
            cache(self._groups, (epoch, group), made, CACHED)
        return made


def cache(cached: dict[Any, Any], key: Hashable, value: object, most: int) -> None:
    """Add an entry to a dict of at most `most`, of which the oldest go."""
    # rows are read ahead in one thread and counted in another: either may remove an entry of the other
    for oldest in list(cached)[: max(0, 1 + len(cached) - most)]:
        cached.pop(oldest, None)
    cached[key] = value
