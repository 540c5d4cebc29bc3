"""The packings: how a source's stream of tokens becomes rows of `seq_len` + 1 tokens.

    chunk       the stream is cut every `seq_len` tokens, and the chunks are shuffled
    concat      the documents of a group are laid end to end and cut into rows that share a token
    best_fit    documents stay whole, several per row: see best_fit.py

To add a packing, write a `Layout` (for packed documents: a GroupCounts and a Group of document_rows.py) and enter it in
PACKINGS.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from stages.lib.errors import UserError
from stages.lib.tokens.best_fit import BestFitCounts, BestFitGroup
from stages.lib.tokens.corpus import Segments, TokenStream, ranges
from stages.lib.tokens.document_rows import DocumentRows, Group, GroupCounts
from stages.lib.tokens.permutation import BLOCK, permute

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
            # rows are read ahead in one thread and counted in another: either may remove an entry of the other
            for oldest in list(self._blocks)[: max(0, 1 + len(self._blocks) - CACHED)]:
                self._blocks.pop(oldest, None)
            self._blocks[epoch, number] = block
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
