"""The packings: how a source's stream of tokens becomes rows of `seq_len` + 1 tokens.

    chunk       the stream is cut every `seq_len` tokens, and the chunks are shuffled
    concat      the documents of a group are laid end to end and cut into rows that share a token
    best_fit    sequences that fit stay whole in a row, several per row, and only longer documents are cut
                ("Fewer Truncations Improve Language Modeling", arXiv 2404.10830)

To add a packing, write a `Layout` (for packed documents: a GroupCounts and a Group of document_rows.py) and enter it in
PACKINGS.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from stages.lib.errors import UserError
from stages.lib.tokens.corpus import Segments, TokenStream, ranges
from stages.lib.tokens.data_order import BLOCK, permute
from stages.lib.tokens.document_rows import DocumentRows, Group, GroupCounts, cache


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


CACHED = 3
"""Blocks of BLOCK positions whose chunks are kept, 128 kB each: two of a batch, and one of another thread."""


class Chunks:
    """A source's stream cut into chunks of `seq_len` + 1 tokens. `key` names their order. See `Layout`.

    Chunk k is the stream's tokens [k * L, k * L + L], so neighbours share one token and each token but the first is a
    target once per epoch. A tail shorter than L is not used. The chunks of an epoch come in the order of a permutation.
    """

    packs_documents = False
    row_name = "chunk"

    def __init__(self, stream: TokenStream, seq_len: int, key: str) -> None:
        self.stream, self.seq_len, self.key = stream, seq_len, key
        self.rows = (len(stream) - 1) // seq_len
        self.targets = self.rows * seq_len
        self._blocks: dict[tuple[int, int], np.ndarray] = {}  # {(epoch, block): chunks at its positions}

    def rows_at(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        """Return the chunk at each position of an epoch."""
        first, last = int(positions.min()) // BLOCK, int(positions.max()) // BLOCK
        if first == last:
            return self._block(epoch, first)[positions - first * BLOCK]
        if last > first + 1:
            return permute(positions, self.rows, f"{self.key}/{epoch}")
        chunks = np.concatenate([self._block(epoch, first), self._block(epoch, last)])
        return chunks[positions - first * BLOCK]

    def _block(self, epoch: int, number: int) -> np.ndarray:
        """Chunks at the positions of a block: the permutation of a few positions costs almost as much as of many."""
        block = self._blocks.get((epoch, number))
        if block is None:
            positions = np.arange(number * BLOCK, min(self.rows, number * BLOCK + BLOCK))
            block = permute(positions, self.rows, f"{self.key}/{epoch}")
            cache(self._blocks, (epoch, number), block, CACHED)
        return block

    def segments(self, _epoch: int, chunks: np.ndarray) -> Segments:
        """Return the segments of some chunks: one each."""
        number, width = len(chunks), self.seq_len + 1
        places = np.zeros(number, dtype=np.int64)
        return Segments(np.arange(number), chunks * self.seq_len, np.full(number, width), places)

    def targets_before(self, _epoch: int, position: int) -> int:
        """Return the number of targets in the first `position` rows of an epoch."""
        return position * self.seq_len


class ConcatCounts:
    """Rows and targets of groups of documents, from the documents' lengths alone. See `document_rows.GroupCounts`."""

    def __init__(self, groups: int, seq_len: int) -> None:
        self.seq_len, self.tokens = seq_len, np.zeros(groups, dtype=np.int64)

    def add(self, groups: np.ndarray, lengths: np.ndarray) -> None:
        """Count documents of some lengths to their groups; int64 arrays [documents]."""
        np.add.at(self.tokens, groups, lengths)

    def rows(self) -> np.ndarray:
        """Return the rows of each group, int64 [groups]: a group of one token has one row, without a target."""
        return np.where(self.tokens > 0, np.maximum(1, -(-(self.tokens - 1) // self.seq_len)), 0)

    def targets(self) -> np.ndarray:
        """Return the targets of each group, int64 [groups]: all tokens but its first."""
        return np.maximum(self.tokens - 1, 0)


class ConcatGroup:
    """A group of documents, laid end to end in the order of a permutation that `key` names.

    Row k is the group's tokens [k * L, k * L + L], so neighbours share one token. The last row may be short.
    `starts`, `lengths`: tokens of the stream, int64 arrays [documents]. See `document_rows.Group`.
    """

    def __init__(self, starts: np.ndarray, lengths: np.ndarray, seq_len: int, key: str) -> None:
        order = permute(np.arange(len(starts)), len(starts), key)
        self.seq_len, self.starts, self.ends = seq_len, starts[order], np.cumsum(lengths[order])
        self.begins = self.ends - lengths[order]
        self.tokens = int(self.ends[-1])

    def segments(self, rows: np.ndarray) -> Segments:
        """Return the segments of some rows of the group."""
        begins = rows * self.seq_len
        ends = np.minimum(begins + self.seq_len + 1, self.tokens)
        first: np.ndarray = np.searchsorted(self.ends, begins, side="right")  # type: ignore[assignment]
        numbers, documents = ranges(first, np.searchsorted(self.ends, ends, side="left") + 1 - first)
        begin = np.maximum(begins[numbers], self.begins[documents])
        counts = np.minimum(ends[numbers], self.ends[documents]) - begin
        some = counts > 0  # an empty document has no segment
        starts = self.starts[documents] + begin - self.begins[documents]
        return Segments(numbers[some], starts[some], counts[some], (begin - begins[numbers])[some])

    def targets_before(self, row: int) -> int:
        """Return the number of targets in the rows before number `row`."""
        return min(row * self.seq_len, self.tokens - 1)


CHUNK = "chunk"


class Layout(Protocol):
    """The rows of a source. `rows`, `targets`: number of rows, and of tokens that are targets, per epoch.

    `packs_documents`: rows are made of documents; they may be short, and are then filled up with EOS. `row_name`: the
    word for a row in messages.
    """

    rows: int
    targets: int
    packs_documents: bool
    row_name: str

    def rows_at(self, epoch: int, positions: np.ndarray, /) -> np.ndarray:
        """Return the row at each position of an epoch; int64 arrays."""

    def segments(self, epoch: int, rows: np.ndarray, /) -> Segments:
        """Return the segments of some rows of an epoch."""

    def targets_before(self, epoch: int, position: int, /) -> int:
        """Return the number of targets in the first `position` rows of an epoch."""


def _lay_out_chunks(source: str, stream: TokenStream, seq_len: int, key: str) -> Layout:
    if len(stream) <= seq_len:
        raise UserError(
            f"pretrain.seq_len must be less than the tokens of each source: {source} has {len(stream)}, got {seq_len}"
        )
    return Chunks(stream, seq_len, key)


def _lay_out_documents(
    counts_type: Callable[[int, int], GroupCounts], group_type: Callable[[np.ndarray, np.ndarray, int, str], Group]
) -> Callable[[str, TokenStream, int, str], Layout]:
    def lay_out(source: str, stream: TokenStream, seq_len: int, key: str) -> Layout:
        layout = DocumentRows(stream, seq_len, key, counts_type, group_type)
        if layout.targets < 1:
            raise UserError(f"source {source} has no document of at least two tokens")
        return layout

    return lay_out


PACKINGS: dict[str, Callable[[str, TokenStream, int, str], Layout]] = {
    CHUNK: _lay_out_chunks,
    "concat": _lay_out_documents(ConcatCounts, ConcatGroup),
    "best_fit": _lay_out_documents(BestFitCounts, BestFitGroup),
}
"""{value of `pretrain.packing`: function of (source, stream, seq_len, key) that returns the Layout of a source}.

`key` (text) names the order. They raise UserError if the source is too short.
"""
