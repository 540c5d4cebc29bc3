"""Reading a corpus: a source's tokens as one stream over its shards, without Arrow in between.

The corpus manifest says at which byte of a shard the tokens of each record batch begin, so a window is one `pread`.
"""

import os

import numpy as np

from stages.lib import manifest
from stages.lib.errors import UserError

MAGIC = b"ARROW1"


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
        for shard in shards:
            self._check(shard)
        return Stream(self.manifest.directory, shards, self.manifest.identity["dtype"])

    def bytes_per_token(self, source):
        """Bytes of text a token in the validation split of a source."""
        split = self.sources[source]["validation"]
        return split["text_bytes"] / split["tokens"]

    def _check(self, shard):
        path = self.manifest.directory / shard["path"]
        manifest.check_size(path, shard["bytes"], self.manifest.path)
        with open(path, "rb") as file:
            head = file.read(len(MAGIC))
            file.seek(-len(MAGIC), os.SEEK_END)
            if head != MAGIC or file.read() != MAGIC:
                raise UserError(f"{path} must be an Arrow file, and does not begin and end like one")


class Stream:
    """Tokens 0..len-1 of one split of a source, shard after shard. Shards are opened when first read."""

    def __init__(self, directory, shards, dtype):
        self.dtype = np.dtype(dtype).newbyteorder("<")
        pieces = [(directory / shard["path"], batch) for shard in shards for batch in shard["batches"]]
        self._paths = [path for path, _ in pieces]
        self._at = [batch["values_at"] for _, batch in pieces]
        self._starts = np.concatenate([[0], np.cumsum([batch["tokens"] for _, batch in pieces], dtype=np.int64)])
        self._files = {}

    def __len__(self):
        """The number of tokens."""
        return int(self._starts[-1])

    def read(self, start, count):
        """Tokens [start, start + count), at most up to the end, as an array of the shards' dtype."""
        parts = []
        piece = int(np.searchsorted(self._starts, start, side="right")) - 1
        end = min(start + count, len(self))
        while start < end:
            upto = min(end, int(self._starts[piece + 1]))
            parts.append(self._pread(piece, start - int(self._starts[piece]), upto - start))
            start, piece = upto, piece + 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0, self.dtype)])

    def _pread(self, piece, start, count):
        size = self.dtype.itemsize
        data = os.pread(self._open(self._paths[piece]), count * size, self._at[piece] + start * size)
        if len(data) != count * size:
            raise UserError(f"{self._paths[piece]} ends before its tokens do: it was cut while it was read")
        return np.frombuffer(data, self.dtype)

    def _open(self, path):
        if path not in self._files:
            self._files[path] = os.open(path, os.O_RDONLY)
            # windows are read at random: without this the kernel reads 4 MB ahead of each
            os.posix_fadvise(self._files[path], 0, 0, os.POSIX_FADV_RANDOM)
        return self._files[path]

    def close(self):
        """Close the shards that were opened."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
