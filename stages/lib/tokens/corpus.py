"""Reading a corpus: a source's tokens as one stream over its shards, without Arrow in between.

The corpus manifest says at which byte of a shard the tokens of each record batch begin, so any piece of text is one
`pread`. Before the first, every shard's size and Arrow frame are looked at, by many threads, since a shared file system
answers slowly but many at once; 10,000 shards on a local disk take a tenth of a second.
"""

import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.tokens.segments import ranges

MAGIC = b"ARROW1"
THREADS = 32
"""Shards that are looked at side by side."""


class Corpus:
    """A corpus by its manifest.

    `digest`, `tokenizer` (digest, vocabulary, bos, eos, bos_added) and `sources` are the manifest's.
    """

    def __init__(self, path):
        self.manifest = manifest.read(path)
        self.digest = self.manifest.digest
        self.tokenizer = self.manifest.identity["tokenizer"]
        self.sources = self.manifest.identity["sources"]

    def stream(self, source, split="train"):
        """The stream of tokens of a source. Raises UserError naming a shard that is missing, cut or no Arrow file."""
        shards = self.sources[source][split]["shards"]
        with ThreadPoolExecutor(min(THREADS, len(shards) or 1)) as pool:
            for _ in pool.map(self._check, shards, chunksize=1 + len(shards) // THREADS):
                pass  # the first that is wrong is raised here
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // (4 * len(self.sources))  # half, for two splits each
        return Stream(self.manifest.directory, shards, self.manifest.identity["dtype"], files)

    def digest_of(self, source):
        """What the training text of a source is known by, 32 hexadecimal digits: its shards' contents, in order."""
        contents = [shard["sha256"] for shard in self.sources[source]["train"]["shards"]]
        return manifest.digest_of([self.manifest.identity["dtype"], contents])[:32]

    def bytes_per_target(self, source):
        """Bytes of text a target in the validation split of a source: a token that is no BOS. 0 where there is none."""
        split = self.sources[source]["validation"]
        targets = split["tokens"] - self.tokenizer["bos_added"] * split["documents"]
        return split["text_bytes"] / max(1, targets)

    def _check(self, shard):
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
            raise UserError(f"{path} must be an Arrow file, and does not begin and end like one")


class Stream:
    """Tokens 0..len-1 of one split of a source, batch after batch of shard after shard.

    Shards are opened when first read. At most `files` are open at a time (all streams of a corpus together: half of
    what `ulimit -n` allows); then the one that was opened first is closed.
    """

    def __init__(self, directory, shards, dtype, files=64):
        self.files = max(1, files)
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.paths = [os.path.join(directory, shard["path"]) for shard in shards]
        self.batches = [(number, batch) for number, shard in enumerate(shards) for batch in shard["batches"]]
        self.starts = np.zeros(len(self.batches) + 1, dtype=np.int64)  # the first token of each batch, and the end
        np.cumsum([batch["tokens"] for _, batch in self.batches], out=self.starts[1:])
        self._values_at = np.array([batch["values_at"] for _, batch in self.batches], dtype=np.int64)
        self._shards = np.array([number for number, _ in self.batches], dtype=np.int64)
        self._files = {}
        self._lock = threading.Lock()

    def __len__(self):
        """The number of tokens."""
        return int(self.starts[-1])

    def read(self, start, count):
        """Tokens [start, start + count), at most up to the end, as an array of the shards' dtype."""
        count = max(0, min(count, len(self) - start))
        tokens = np.empty(count, self.dtype)
        if count:
            self.gather(np.array([start]), np.array([count]), np.zeros(1, np.int64), tokens)
        return tokens

    def gather(self, starts, counts, places, tokens):
        """Read many pieces: tokens [starts[i], starts[i] + counts[i]) to `tokens[places[i] :]`.

        int64 arrays [pieces], each count at least 1; `tokens` is a contiguous array of the shards' dtype, of any shape.
        """
        starts, counts, places = self._within_batches(starts, counts, places)
        batches = np.searchsorted(self.starts, starts, side="right") - 1
        width = self.dtype.itemsize
        positions = self._values_at[batches] + (starts - self.starts[batches]) * width
        if tokens.ndim == 2 and (counts == tokens.shape[1]).all():
            rows = list(tokens)  # ready-made buffers
            buffers = [rows[row] for row in (places // tokens.shape[1]).tolist()]
        else:
            view, begins, ends = (
                memoryview(tokens.reshape(-1).view(np.uint8)),
                places * width,
                (places + counts) * width,
            )
            buffers = [view[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        self.pread(self._shards[batches], positions, counts * width, buffers)

    def _within_batches(self, starts, counts, places):
        """The same pieces, those cut in two or more that go over the end of a batch."""
        firsts, lasts = (np.searchsorted(self.starts, at, side="right") - 1 for at in (starts, starts + counts - 1))
        if np.array_equal(firsts, lasts):
            return starts, counts, places
        piece, batches = ranges(firsts, lasts - firsts + 1)
        begins = np.maximum(starts[piece], self.starts[batches])
        ends = np.minimum((starts + counts)[piece], self.starts[batches + 1])
        some = ends > begins  # a batch may be empty
        return begins[some], (ends - begins)[some], (places[piece] + begins - starts[piece])[some]

    def pread(self, shards, positions, sizes, buffers):
        """Fill buffers (contiguous arrays) of some bytes with what is from a position of a shard on; int64 arrays.

        Raises UserError naming a shard that ends too early. Threads may call it side by side.
        """
        for first in range(0, len(buffers), self.files):
            some, at = slice(first, first + self.files), positions[first : first + self.files].tolist()
            with self._lock:  # else another thread closes a shard, and its descriptor becomes that of another file
                descriptors = self._open(shards[some])
                # one call of C for all: a loop in Python would take as long as the reads
                done = list(map(os.preadv, descriptors, zip(buffers[some]), at))
                if sum(done) != sizes[some].sum():  # a call reads 2 GiB at most
                    for piece in zip(shards[some].tolist(), descriptors, at, buffers[some], done, strict=True):
                        self._read_rest(*piece)

    def _read_rest(self, shard, descriptor, position, buffer, done):
        view = memoryview(buffer).cast("B")
        while done < len(view):
            more = os.preadv(descriptor, (view[done:],), position + done)
            if not more:
                raise UserError(f"{self.paths[shard]} ends before its tokens do: it was cut while it was read")
            done += more

    def _open(self, shards):
        """The descriptors of at most `files` shards, opened where they are not."""
        needed = dict.fromkeys(shards.tolist())
        for shard in needed.keys() - self._files.keys():
            if len(self._files) >= self.files:
                os.close(self._files.pop(next(held for held in self._files if held not in needed)))
            try:
                self._files[shard] = os.open(self.paths[shard], os.O_RDONLY)
            except OSError as error:
                raise UserError(f"{self.paths[shard]} cannot be read: {error.strerror}") from None
            # pieces are read at random: without this the kernel reads 4 MB ahead of each
            os.posix_fadvise(self._files[shard], 0, 0, os.POSIX_FADV_RANDOM)
        return [self._files[shard] for shard in shards.tolist()]

    def close(self):
        """Close the shards that were opened."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
