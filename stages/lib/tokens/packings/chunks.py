"""The packing `chunk`: a source's stream is cut every `seq_len` tokens, and the chunks are shuffled.

Chunk k is the stream's tokens [k * L, k * L + L], so neighbours share one token and each token but the first is a
target once per epoch. A tail shorter than L is not used. The chunks of an epoch come in the order of a permutation.
"""

import functools

import numpy as np

from stages.lib.tokens.packings.segments import Segments
from stages.lib.tokens.permutation import permute
from stages.lib.tokens.token_stream import TokenStream

AHEAD = 1024  # positions whose chunks are computed together


class Chunks:
    """A source's stream cut into chunks of `seq_len` + 1 tokens. `key` names their order. See `packing.Layout`."""

    packs_documents = False
    row_name = "chunk"

    def __init__(self, stream: TokenStream, seq_len: int, key: str) -> None:
        self.stream, self.seq_len, self.key = stream, seq_len, key
        self.rows = (len(stream) - 1) // seq_len
        self.targets = self.rows * seq_len

    def rows_at(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        """Return the chunk at each position of an epoch."""
        first, key = int(positions.min()) // AHEAD, f"{self.key}/{epoch}"
        if int(positions.max()) // AHEAD > first + 1:
            return permute(positions, self.rows, key)
        chunks = np.concatenate([_chunks_ahead(self.rows, key, first), _chunks_ahead(self.rows, key, first + 1)])
        return chunks[positions - first * AHEAD]

    def segments(self, _epoch: int, chunks: np.ndarray) -> Segments:
        """Return the segments of some chunks: one each."""
        numbers, width = np.arange(len(chunks)), self.seq_len + 1
        return Segments(numbers, chunks * self.seq_len, np.full_like(chunks, width), np.zeros_like(chunks))

    def targets_before(self, _epoch: int, position: int) -> int:
        """Return the number of targets in the first `position` rows of an epoch."""
        return position * self.seq_len


@functools.lru_cache(maxsize=64)
def _chunks_ahead(rows: int, key: str, number: int) -> np.ndarray:
    """Chunks at AHEAD positions: the permutation of a few positions costs almost as much as that of many."""
    return permute(np.arange(number * AHEAD, min(rows, number * AHEAD + AHEAD)), rows, key)
