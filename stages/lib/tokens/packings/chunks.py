"""The packing `chunk`: a source's stream is cut every `seq_len` tokens, and the chunks are shuffled.

Chunk k is the stream's tokens [k * L, k * L + L], so neighbours share one token and each token but the first is a
target once per epoch. A tail shorter than L is not used. The chunks of an epoch come in the order of a permutation.
"""

import numpy as np

from stages.lib.tokens.corpus import Segments, TokenStream
from stages.lib.tokens.permutation import BLOCK, permute

CACHED = 3
"""Blocks of BLOCK positions whose chunks are kept, 128 kB each: two of a batch, and one of another thread."""


class Chunks:
    """A source's stream cut into chunks of `seq_len` + 1 tokens. `key` names their order. See `packing.Layout`."""

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
        made = self._blocks.get((epoch, number))
        if made is None:
            positions = np.arange(number * BLOCK, min(self.rows, number * BLOCK + BLOCK))
            made = permute(positions, self.rows, f"{self.key}/{epoch}")
            # rows are read ahead in one thread and counted in another: either may remove an entry of the other
            for oldest in list(self._blocks)[: max(0, 1 + len(self._blocks) - CACHED)]:
                self._blocks.pop(oldest, None)
            self._blocks[epoch, number] = made
        return made

    def segments(self, _epoch: int, chunks: np.ndarray) -> Segments:
        """Return the segments of some chunks: one each."""
        number, width = len(chunks), self.seq_len + 1
        places = np.zeros(number, dtype=np.int64)
        return Segments(np.arange(number), chunks * self.seq_len, np.full(number, width), places)

    def targets_before(self, _epoch: int, position: int) -> int:
        """Return the number of targets in the first `position` rows of an epoch."""
        return position * self.seq_len
