"""A corpus by its manifest, the token streams of its sources, and its validation documents as text.

The manifest gives the byte at which the tokens of each record batch of a shard begin, so any segment of a stream is one
`pread`. Before the first read, the size and the Arrow magic of every shard are checked by many threads, since a shared
file system has a high latency but serves many requests at once; 10,000 shards on a local disk take a tenth of a second.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stages.lib import files, manifest
from stages.lib.errors import UserError
from stages.lib.manifest import CorpusManifest
from stages.lib.manifest_types import CorpusTokenizer, Shard, SplitName
from stages.lib.sources.entries import VALIDATION, Document
from stages.lib.tokens import bos_eos
from stages.lib.tokens.bos_eos import Encode

MAGIC = b"ARROW1"
THREADS = 32
"""Shards that are checked at the same time."""

BYTES_OF_IDS = "bytes_of_ids.npy"
"""Bytes of text per token id, int64 [vocab_size]; `bytes_scale` in the record has a factor per source."""


class Corpus:
    """A corpus by its manifest; `digest`, `tokenizer` and `sources` are the manifest's."""

    def __init__(self, path: Path | str) -> None:
        self.manifest = manifest.read(path, "index")
        self.digest = self.manifest.digest
        self.tokenizer: CorpusTokenizer = self.manifest.identity["tokenizer"]
        self.sources = self.manifest.identity["sources"]

    def stream(self, source: str, split: SplitName = "train") -> TokenStream:
        """Return the token stream of a source.

        Raises UserError naming a shard that is missing, truncated or not an Arrow file.
        """
        shards = self.sources[source][split]["shards"]
        with ThreadPoolExecutor(min(THREADS, len(shards) or 1)) as pool:
            for _ in pool.map(self._check, shards, chunksize=1 + len(shards) // THREADS):
                pass  # the first error is raised here
        # half of what may be open, for two splits of each source
        max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // (4 * len(self.sources))
        return TokenStream(self.manifest.directory, shards, self.manifest.identity["dtype"], max_files)

    def digest_of(self, source: str) -> str:
        """Return the digest of a source's training text, 32 hexadecimal digits: its shards' contents, in order."""
        contents = [shard["sha256"] for shard in self.sources[source]["train"]["shards"]]
        return manifest.digest_of([self.manifest.identity["dtype"], contents])[:32]

    def bytes_of_ids(self, source: str) -> np.ndarray:
        """Return the bytes of validation text that each token id of a source stands for, float64 [vocab_size].

        Raises UserError if the file is missing or changed.
        """
        files = self.manifest.record.get("files", {})
        if BYTES_OF_IDS not in files:
            raise UserError(f"{self.manifest.path} lists no {BYTES_OF_IDS}; make it with stages.index, or -R index")
        path = self.manifest.directory / BYTES_OF_IDS
        manifest.check_content(path, files[BYTES_OF_IDS], self.manifest.path)
        return np.load(path, allow_pickle=False) * self.manifest.record["bytes_scale"][source]

    def _check(self, shard: Shard) -> None:
        path = os.path.join(self.manifest.directory, shard["path"])
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise UserError(
                f"{path} is missing, but {self.manifest.path} lists it ({error.strerror}); delete {self.manifest.path} "
                "and run the workflow again"
            ) from None
        try:
            size = os.fstat(descriptor).st_size
            manifest.check_found_size(path, size, shard["bytes"], self.manifest.path)
            head, tail = (os.pread(descriptor, len(MAGIC), at) for at in (0, max(0, size - len(MAGIC))))
        finally:
            os.close(descriptor)
        if head != MAGIC or tail != MAGIC:
            raise UserError(f"{path} must be an Arrow file: it does not begin and end with {MAGIC.decode()}")


@dataclass(frozen=True)
class Segments:
    """Segments of some rows, row after row and in each from left to right; int64 arrays [segments].

    `rows`: index of the row among the requested rows. `starts`, `counts`: tokens of the stream, each count at least 1.
    `places`: the column at which a segment begins. `closed`: whether the token after a segment is no target.
    """

    rows: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    places: np.ndarray
    closed: bool = False


def ranges(firsts: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All numbers of some ranges: (index of the range, the number), int64 arrays [sum of counts]."""
    of_range = np.repeat(np.arange(len(counts)), counts)
    before = np.cumsum(counts) - counts
    return of_range, np.arange(len(of_range)) - before[of_range] + firsts[of_range]


SIZE = 1 << 18
"""Bytes of a scratch: it stays in the CPU cache between the read and the widening. A longer row is alone."""

ALIGNMENT = 64  # bytes: the kernel copies a row faster to the begin of a cache line


class RowScratch:
    """Rows of `width` tokens, used again for each read.

    `rows`: array [rows, width] of `dtype`. `vectors`: an argument of `os.preadv` per row, made once: to make it takes
    0.1 us, as long as to copy 512 tokens.
    """

    def __init__(self, width: int, dtype: np.dtype) -> None:
        self.width = width
        stride = -(-width * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        number = max(1, SIZE // stride)
        memory = np.empty(number * stride + ALIGNMENT, np.uint8)
        begin = -memory.ctypes.data % ALIGNMENT
        padded = memory[begin : begin + number * stride].view(dtype).reshape(number, -1)
        self.rows = padded[:, :width]
        self.vectors = [(memoryview(row),) for row in self.rows]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.vectors)


class TokenStream:
    """Tokens 0..len-1 of one split of a source, batch after batch of shard after shard.

    Shards are opened when first read. At most `max_files` are open at a time (all streams of a corpus together: half of
    what `ulimit -n` allows); beyond that, the shard that was opened first is closed.
    """

    def __init__(
        self, directory: Path, shards: Sequence[Shard], dtype: np.typing.DTypeLike, max_files: int = 64
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
        self._scratch: RowScratch | None = None

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
        view = memoryview(tokens.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        slices = map(slice, (places * width).tolist(), ((places + counts) * width).tolist())
        buffers = list(map(view.__getitem__, slices))
        self.pread(self._shards[batches], positions, counts * width, buffers)

    def gather_rows(self, starts: np.ndarray, rows: np.ndarray, tokens: np.ndarray) -> None:
        """Read tokens [starts[i], starts[i] + width) to `tokens[rows[i]]`, widened to its dtype.

        int64 arrays [segments], `rows` ascending; `tokens`: an array [rows, width].
        """
        width = tokens.shape[1]
        batches: np.ndarray = np.searchsorted(self.starts, starts, side="right") - 1  # type: ignore[assignment]
        cut = starts + width > self.starts[batches + 1]
        if cut.any():
            found = np.empty((np.count_nonzero(cut), width), self.dtype)
            places = np.arange(0, found.size, width)
            self.gather(starts[cut], np.full_like(places, width), places, found)
            tokens[rows[cut]] = found
            starts, rows, batches = starts[~cut], rows[~cut], batches[~cut]
        positions = self._values_at[batches] + (starts - self.starts[batches]) * self.dtype.itemsize
        numbers, at = self._shards[batches].tolist(), positions.tolist()
        consecutive = len(rows) > 0 and rows[-1] - rows[0] == len(rows) - 1
        with self._lock:
            if self._scratch is None or self._scratch.width != width:
                self._scratch = RowScratch(width, self.dtype)
            step = min(len(self._scratch), self.max_files)
            for first in range(0, len(numbers), step):
                end = min(first + step, len(numbers))
                read = self._scratch.rows[: end - first]
                self._fill(numbers[first:end], at[first:end], read.nbytes, self._scratch.vectors[: end - first])
                if consecutive:
                    tokens[int(rows[first]) : int(rows[first]) + end - first] = read
                else:
                    tokens[rows[first:end]] = read

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
        numbers, at, vectors = shards.tolist(), positions.tolist(), list(zip(buffers))
        # segments at a time: their shards must be open together
        step = len(vectors) if len(set(numbers)) <= self.max_files else self.max_files
        for first in range(0, len(vectors), max(1, step)):
            some = slice(first, first + step)
            with self._lock:
                self._fill(numbers[some], at[some], int(sizes[some].sum()), vectors[some])

    def _fill(self, shards: list[int], positions: list[int], size: int, vectors: Sequence[tuple[Any]]) -> None:
        """Fill a buffer per position, `size` bytes together, of at most `max_files` shards.

        The caller holds the lock: another thread might close a shard, and a new file get its descriptor.
        """
        descriptors = self._open(shards)
        # one C call for all: a loop in Python would take as long as the reads
        done = list(map(os.preadv, descriptors, vectors, positions))
        if sum(done) != size:  # a call reads at most 2 GiB
            for each in zip(shards, descriptors, positions, vectors, done, strict=True):
                self._read_rest(*each)

    def _read_rest(self, shard: int, descriptor: int, position: int, vector: tuple[Any], done: int) -> None:
        view = memoryview(vector[0]).cast("B")
        while done < len(view):
            more = os.preadv(descriptor, (view[done:],), position + done)
            if not more:
                raise UserError(f"{self.paths[shard]} ends before its last token: it was truncated while it was read")
            done += more

    def _open(self, shards: list[int]) -> list[int]:
        """Return the descriptors of at most `max_files` shards, opening those that are closed."""
        try:
            return list(map(self._files.__getitem__, shards))
        except KeyError:
            needed = set(shards)
        for shard in needed - self._files.keys():
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


def validation_documents(corpus: CorpusManifest, source: str) -> Iterator[tuple[str, str]]:
    """Yield (id, text) of a source's validation documents, in the order of its validation shards.

    Raises UserError if a file is missing or changed since the manifest was written.
    """
    for described in corpus.identity["sources"][source]["validation"]["texts"]:
        path = corpus.directory / described["path"]
        manifest.check_size(path, described["bytes"], corpus.path)
        if files.sha256_file(path) != described["sha256"]:
            raise UserError(f"{path} changed since {corpus.path} was written; delete both and run the workflow again")
        with open(path, encoding="utf-8", newline="\n") as lines:
            for line in lines:
                document = json.loads(line)
                yield document["id"], document["text"]


COMPARED = 8
"""Documents of each source whose text is encoded again."""


def compared_documents(corpus: Corpus, encode: Encode) -> Iterator[tuple[str, str, str, bool]]:
    """Yield (source, id, text, True if `encode` gives the tokens of the shards) of each source's first documents.

    Pre-tokenized sources are left out: their ids need not be those of their text. A source ends with the first document
    that differs, whose length in the shards is not known.
    """
    tokenizer = corpus.tokenizer
    for source in sorted(corpus.sources):
        if "ids" in corpus.sources[source]:
            continue
        stream, at = corpus.stream(source, VALIDATION), 0
        for name, text in itertools.islice(validation_documents(corpus.manifest, source), COMPARED):
            (ids,) = bos_eos.ids_of([Document(name, text, VALIDATION)], encode, np.int64)
            expected = [*[tokenizer["bos"]] * tokenizer["bos_added"], *ids.tolist(), tokenizer["eos"]]
            is_same = at + len(expected) <= len(stream) and stream.read(at, len(expected)).tolist() == expected
            yield source, name, text, is_same
            if not is_same:
                break
            at += len(expected)
        stream.close()
