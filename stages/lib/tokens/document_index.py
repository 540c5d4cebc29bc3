"""Document boundaries in a token stream, from the offsets that Arrow keeps beside the tokens.

A record batch of n documents has n + 1 offsets of 8 bytes; the corpus manifest gives their position. For sources of up
to IN_MEMORY documents they are held in memory, 8 bytes each. In larger sources, documents are looked up one by one,
with a read of 16 bytes each, so no process holds an index that grows with the corpus.
"""

from collections.abc import Iterator

import numpy as np

from stages.lib.errors import UserError
from stages.lib.tokens.token_stream import TokenStream

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
