"""The packing `concat`: the documents of a group are laid end to end and cut into rows that share a token."""

import numpy as np

from stages.lib.tokens.corpus import Segments, ranges
from stages.lib.tokens.permutation import permute


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
