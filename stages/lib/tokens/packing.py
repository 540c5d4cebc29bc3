"""Packing sequences into rows of one length: `best_fit` whole, `Concatenated` cut where a row ends.

A packing of documents has two classes. The first counts, from the documents' lengths alone, the rows of groups of
documents. The second lays out one group, when a row of it is asked for; it has exactly as many.
"""

import hashlib

import numpy as np

from stages.lib.tokens.permutation import permute
from stages.lib.tokens.segments import Segments, ranges


def best_fit(lengths, size, seed):
    """Rows of at most `size` tokens: a list of lists of sequence numbers, each number in one row.

    Best fit decreasing: the longest sequence first, into the row that it fills up best ("Fewer Truncations Improve
    Language Modeling", arXiv 2404.10830). Which of equal length lie together is drawn by `seed`.

    `lengths`: int array, each from 1 to `size`.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(lengths))
    order = order[np.argsort(-lengths[order], kind="stable")]
    rows, with_room = [], [[] for _ in range(size + 1)]  # [r]: the numbers of the rows with room for r more tokens
    some = 0  # bit r: there is a row with room for r
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


def best_fit_rows(counts, size):
    """How many rows `best_fit` makes of `counts[n]` sequences of each length n up to `size`.

    The same algorithm, but on all sequences of a length at once: it costs by the lengths that there are, not by the
    sequences.
    """
    rows, with_room = 0, [0] * (size + 1)  # [r]: how many rows have room for r more tokens
    some = 0  # bit r: there is a row with room for r
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


class ConcatenatedCounts:
    """Rows and targets of groups of documents, each laid end to end and cut in rows that share a token."""

    def __init__(self, groups, seq_len):
        self.seq_len, self.tokens = seq_len, np.zeros(groups, dtype=np.int64)

    def add(self, groups, lengths):
        """Count documents of some lengths to their groups; int64 arrays."""
        np.add.at(self.tokens, groups, lengths)

    def rows(self):
        """The rows of each group, int64 [groups]: a group of one token has one, which has no target."""
        return np.where(self.tokens > 0, np.maximum(1, -(-(self.tokens - 1) // self.seq_len)), 0)

    def targets(self):
        """The tokens that are targets, of each group: all but its first."""
        return np.maximum(self.tokens - 1, 0)


class Concatenated:
    """A group of documents, laid end to end in the order of a permutation that `key` names.

    Row k is the group's tokens [k * L, k * L + L], so neighbours share one token. The last row may be short.
    """

    def __init__(self, starts, lengths, seq_len, key):
        order = permute(np.arange(len(starts)), len(starts), key)
        self.seq_len, self.starts, self.ends = seq_len, starts[order], np.cumsum(lengths[order])
        self.begins = self.ends - lengths[order]
        self.tokens = int(self.ends[-1])

    def segments(self, rows):
        """The `Pieces` of some rows of the group."""
        begins = rows * self.seq_len
        ends = np.minimum(begins + self.seq_len + 1, self.tokens)
        first = np.searchsorted(self.ends, begins, side="right")
        numbers, documents = ranges(first, np.searchsorted(self.ends, ends, side="left") + 1 - first)
        begin = np.maximum(begins[numbers], self.begins[documents])
        counts = np.minimum(ends[numbers], self.ends[documents]) - begin
        some = counts > 0  # an empty document has no piece
        starts = self.starts[documents] + begin - self.begins[documents]
        return Segments(numbers[some], starts[some], counts[some], (begin - begins[numbers])[some])

    def targets_before(self, row):
        """How many targets the rows before number `row` have."""
        return min(row * self.seq_len, self.tokens - 1)


class BestFitCounts:
    """Rows and targets of groups of documents under `BestFit`: 4 bytes a group and token of a row."""

    def __init__(self, groups, seq_len):
        self.seq_len, self.full = seq_len, np.zeros(groups, dtype=np.int64)
        self.rest, self._targets = np.zeros((groups, seq_len + 2), dtype=np.uint32), np.zeros(groups, dtype=np.int64)

    def add(self, groups, lengths):
        """Count documents of some lengths to their groups; int64 arrays."""
        full, rest = cut(lengths, self.seq_len)
        np.add.at(self.full, groups, full)
        np.add.at(self._targets, groups, np.maximum(lengths - 1, 0))
        np.add.at(self.rest, (groups[rest > 0], rest[rest > 0]), np.uint32(1))

    def rows(self):
        """The rows of each group, int64 [groups]."""
        packed = [best_fit_rows(counts, self.seq_len + 1) for counts in self.rest]
        return self.full + np.array(packed, dtype=np.int64)

    def targets(self):
        """The tokens that are targets, of each group: all but each document's first."""
        return self._targets


class BestFit:
    """A group of documents, whole where they fit into a row of `seq_len` + 1 tokens.

    A longer one is cut in pieces that fill a row each, of which neighbours share a token, and a rest. The rows come in
    the order of a permutation that `key` names.
    """

    def __init__(self, starts, lengths, seq_len, key):
        full, rest = cut(lengths, seq_len)
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

    def segments(self, rows):
        """The `Pieces` of some rows of the group."""
        found = self.order[rows]
        numbers, members = ranges(self.first[found], self.sizes[found])
        counts = self.counts[members]
        before = np.cumsum(counts) - counts
        begins = np.flatnonzero(np.diff(numbers, prepend=-1))
        return Segments(numbers, self.starts[members], counts, before - before[begins][numbers], closed=True)

    def targets_before(self, row):
        """How many targets the rows before number `row` have."""
        return int(self._targets_before[row])


def cut(lengths, seq_len):
    """(pieces of `seq_len` + 1 tokens, tokens of the rest or 0 for none) of documents; neighbours share a token."""
    full = np.maximum(lengths - 1, 0) // seq_len
    rest = lengths - full * seq_len
    return full, np.where((rest > 1) | (lengths == 1), rest, 0)


PACKINGS = {"concat": (ConcatenatedCounts, Concatenated), "best_fit": (BestFitCounts, BestFit)}
"""What counts the rows of groups of documents, and what lays a group out; by `pretrain.packing`."""
