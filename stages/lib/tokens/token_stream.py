"""A source's tokens as one stream over its shards, read with `pread` and without Arrow."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stages.lib.errors import UserError
from stages.lib.tokens.packings.segments import ranges


class TokenStream:
    """Tokens 0..len-1 of one split of a source, batch after batch of shard after shard.

    Shards are opened when first read. At most `max_files` are open at a time (all streams of a corpus together: half of
    what `ulimit -n` allows); beyond that, the shard that was opened first is closed.
    """

    def __init__(
        self, directory: Path, shards: Sequence[dict[str, Any]], dtype: np.typing.DTypeLike, max_files: int = 64
    ) -> None:
        self.max_files = max(1, max_files)
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.paths = [os.path.join(directory, shard["path"]) for shard in shards]
        self.batches = [(number, batch) for number, shard in enumerate(shards) for batch in shard["batches"]]
        self.starts = np.zeros(len(self.batches) + 1, dtype=np.int64)  # the first token of each batch, and the end
        np.cumsum([batch["tokens"] for _, batch in self.batches], out=self.starts[1:])
        self._values_at = np.array([batch["values_at"] for _, batch in self.batches], dtype=np.int64)
        self._shards = np.array([number for number, _ in self.batches], dtype=np.int64)
        self._files: dict[int, int] = {}  # {shard: descriptor}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of tokens."""
        return int(self.starts[-1])

    def read(self, start: int, count: int) -> np.ndarray:
        """Read tokens [start, start + count), at most up to the end, as an array of the shards' dtype."""
        count = max(0, min(count, len(self) - start))
        tokens = np.empty(count, self.dtype)
        if count:
            self.gather(np.array([start]), np.array([count]), np.zeros(1, np.int64), tokens)
        return tokens

    def gather(self, starts: np.ndarray, counts: np.ndarray, places: np.ndarray, tokens: np.ndarray) -> None:
        """Read many segments: tokens [starts[i], starts[i] + counts[i]) to `tokens[places[i] :]`.

        int64 arrays [segments], each count at least 1; `tokens` is a contiguous array of the shards' dtype, of any
        shape.
        """
        batches: np.ndarray = np.searchsorted(self.starts, starts, side="right") - 1  # type: ignore[assignment]
        if (starts + counts > self.starts[batches + 1]).any():
            starts, counts, places, batches = self._cut(starts, counts, places, batches)
        width = self.dtype.itemsize
        positions = self._values_at[batches] + (starts - self.starts[batches]) * width
        if tokens.ndim == 2 and (counts == tokens.shape[1]).all():
            rows = list(tokens)  # ready-made buffers
            buffers: list[Any] = list(map(rows.__getitem__, (places // tokens.shape[1]).tolist()))
        else:
            view = memoryview(tokens.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
            slices = map(slice, (places * width).tolist(), ((places + counts) * width).tolist())
            buffers = list(map(view.__getitem__, slices))
        self.pread(self._shards[batches], positions, counts * width, buffers)

    def _cut(
        self, starts: np.ndarray, counts: np.ndarray, places: np.ndarray, firsts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Cut the segments that cross the end of a batch; return (starts, counts, places, batches) of all.

        `firsts`: the batch in which each segment begins.
        """
        lasts: np.ndarray = np.searchsorted(self.starts, starts + counts - 1, side="right") - 1  # type: ignore[assignment]
        segment, batches = ranges(firsts, lasts - firsts + 1)
        begins = np.maximum(starts[segment], self.starts[batches])
        ends = np.minimum((starts + counts)[segment], self.starts[batches + 1])
        some = ends > begins  # a batch may be empty
        return begins[some], (ends - begins)[some], (places[segment] + begins - starts[segment])[some], batches[some]

    def pread(self, shards: np.ndarray, positions: np.ndarray, sizes: np.ndarray, buffers: Sequence[Any]) -> None:
        """Fill buffers (contiguous arrays of `sizes` bytes) from byte `positions` of shards; int64 arrays.

        Raises UserError naming a shard that ends too early. Thread-safe.
        """
        numbers, at = shards.tolist(), positions.tolist()
        # segments at a time: their shards must be open together
        step = len(buffers) if len(set(numbers)) <= self.max_files else self.max_files
        for first in range(0, len(buffers), max(1, step)):
            some = slice(first, first + step)
            with self._lock:  # without it, another thread may close a shard, and a new file gets its descriptor
                descriptors = self._open(numbers[some])
                # one C call for all: a loop in Python would take as long as the reads
                done = list(map(os.preadv, descriptors, zip(buffers[some]), at[some]))
                if sum(done) != sizes[some].sum():  # a call reads at most 2 GiB
                    for each in zip(numbers[some], descriptors, at[some], buffers[some], done, strict=True):
                        self._read_rest(*each)

    def _read_rest(self, shard: int, descriptor: int, position: int, buffer: Any, done: int) -> None:
        view = memoryview(buffer).cast("B")
        while done < len(view):
            more = os.preadv(descriptor, (view[done:],), position + done)
            if not more:
                raise UserError(f"{self.paths[shard]} ends before its last token: it was truncated while it was read")
            done += more

    def _open(self, shards: list[int]) -> list[int]:
        """Return the descriptors of at most `max_files` shards, opening those that are closed."""
        needed = dict.fromkeys(shards)
        for shard in needed.keys() - self._files.keys():
            if len(self._files) >= self.max_files:
                os.close(self._files.pop(next(held for held in self._files if held not in needed)))
            try:
                self._files[shard] = os.open(self.paths[shard], os.O_RDONLY)
            except OSError as error:
                raise UserError(f"{self.paths[shard]} cannot be read: {error.strerror}") from None
            # segments are read at random: without this the kernel reads 4 MB ahead of each
            os.posix_fadvise(self._files[shard], 0, 0, os.POSIX_FADV_RANDOM)
        return list(map(self._files.__getitem__, shards))

    def close(self) -> None:
        """Close the open shards."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
