"""The packing `best_fit`: sequences that fit stay whole in a row, and only longer documents are cut.

"Fewer Truncations Improve Language Modeling", arXiv 2404.10830.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from stages.lib.tokens.corpus import Segments, ranges
from stages.lib.tokens.permutation import permute


def best_fit(lengths: Sequence[int] | np.ndarray, size: int, seed: int) -> list[list[int]]:
    """Pack sequences into rows of at most `size` tokens: lists of sequence numbers, each number in one row.

    Best fit decreasing: the longest sequence first, into the row with the least room that still holds it. `seed` draws
    the order of sequences of equal length. `lengths`: each from 1 to `size`.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(lengths))
    order = order[np.argsort(-lengths[order], kind="stable")]
    rows: list[list[int]] = []
    with_room: list[list[int]] = [[] for _ in range(size + 1)]  # [r]: the rows with room for r more tokens
    some = 0  # bit r: some row has room for r
    for sequence in order.tolist():
        length = int(lengths[sequence])
        fitting = some >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = with_room[room].pop()
            if not with_room[room]:
                some &= ~(1 << room)
        else:
            room, row = size, len(rows)
            rows.append([])
        rows[row].append(sequence)
        with_room[room - length].append(row)
        some |= 1 << (room - length)
    return rows


def best_fit_rows(counts: np.ndarray, size: int) -> int:
    """Return the number of rows that `best_fit` makes of `counts[n]` sequences of each length n up to `size`.

    The same algorithm on all sequences of a length at once: its cost grows with the number of different lengths.
    """
    rows, with_room = 0, [0] * (size + 1)  # [r]: number of rows with room for r more tokens
    some = 0  # bit r: some row has room for r
    for length in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[length])
        while left:
            fitting = some >> length
            room = length + (fitting & -fitting).bit_length() - 1 if fitting else size
            fits = room // length  # in one row: the fullest that has room is filled up before the next
            if not fitting:
                fresh = -(-left // fits)
                rows += fresh
                with_room[size] += fresh
            filled, taken = (with_room[room], fits) if left >= with_room[room] * fits else (left // fits, fits)
            if not filled:
                filled, taken = 1, left
            left -= filled * taken
            with_room[room] -= filled
            with_room[room - taken * length] += filled
            some |= 1 << (room - taken * length)
            some = some | 1 << room if with_room[room] else some & ~(1 << room)
    return rows


class BestFitCounts:
    """Rows and targets of groups of documents, from the documents' lengths alone. See `document_rows.GroupCounts`.

    It takes 4 * (`seq_len` + 2) bytes per group.
    """

    def __init__(self, groups: int, seq_len: int) -> None:
        self.seq_len, self.full = seq_len, np.zeros(groups, dtype=np.int64)
        self.rest, self._targets = np.zeros((groups, seq_len + 2), dtype=np.uint32), np.zeros(groups, dtype=np.int64)

    def add(self, groups: np.ndarray, lengths: np.ndarray) -> None:
        """Count documents of some lengths to their groups; int64 arrays [documents]."""
        full, rest = _cut(lengths, self.seq_len)
        np.add.at(self.full, groups, full)
        np.add.at(self._targets, groups, np.maximum(lengths - 1, 0))
        np.add.at(self.rest, (groups[rest > 0], rest[rest > 0]), np.uint32(1))

    def rows(self) -> np.ndarray:
        """Return the rows of each group, int64 [groups]."""
        packed = [best_fit_rows(counts, self.seq_len + 1) for counts in self.rest]
        return self.full + np.array(packed, dtype=np.int64)

    def targets(self) -> np.ndarray:
        """Return the targets of each group, int64 [groups]: all tokens but each document's first."""
        return self._targets


class BestFitGroup:
    """A group of documents, each whole if it fits into a row of `seq_len` + 1 tokens.

    A longer document is cut into segments that fill a row each, of which neighbours share a token, and a rest. The rows
    come in the order of a permutation that `key` names. `starts`, `lengths`: tokens of the stream, int64 arrays
    [documents]. See `document_rows.Group`.
    """

    def __init__(self, starts: np.ndarray, lengths: np.ndarray, seq_len: int, key: str) -> None:
        full, rest = _cut(lengths, seq_len)
        documents, numbers = ranges(np.zeros_like(full), full)
        kept = np.flatnonzero(rest)
        seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little")
        rows = best_fit(rest[kept], seq_len + 1, seed)
        members = kept[np.array([number for row in rows for number in row], dtype=np.int64)]
        self.starts = np.concatenate([starts[documents] + numbers * seq_len, (starts + full * seq_len)[members]])
        self.counts = np.concatenate([np.full(len(documents), seq_len + 1), rest[members]])
        sizes = np.concatenate([np.ones(len(documents), np.int64), np.array([len(row) for row in rows], np.int64)])
        self.order = permute(np.arange(len(sizes)), len(sizes), key)
        self.first, self.sizes = np.cumsum(sizes) - sizes, sizes
        targets = np.concatenate([[0], np.cumsum(self.counts - 1)])
        of_row = (targets[self.first + sizes] - targets[self.first])[self.order]
        self._targets_before = np.concatenate([[0], np.cumsum(of_row)])

    def segments(self, rows: np.ndarray) -> Segments:
        """Return the segments of some rows of the group."""
        found = self.order[rows]
        numbers, members = ranges(self.first[found], self.sizes[found])
        counts = self.counts[members]
        before = np.cumsum(counts) - counts
        begins = np.flatnonzero(np.diff(numbers, prepend=-1))
        return Segments(numbers, self.starts[members], counts, before - before[begins][numbers], closed=True)

    def targets_before(self, row: int) -> int:
        """Return the number of targets in the rows before number `row`."""
        return int(self._targets_before[row])


def _cut(lengths: np.ndarray, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """(segments of `seq_len` + 1 tokens, tokens of the rest or 0) of each document; neighbours share a token."""
    full = np.maximum(lengths - 1, 0) // seq_len
    rest = lengths - full * seq_len
    return full, np.where((rest > 1) | (lengths == 1), rest, 0)
