"""A corpus by its manifest, and the token streams of its sources.

The manifest gives the byte at which the tokens of each record batch of a shard begin, so any segment of a stream is one
`pread`. Before the first read, the size and the Arrow magic of every shard are checked by many threads, since a shared
file system has a high latency but serves many requests at once; 10,000 shards on a local disk take a tenth of a second.
"""

import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.tokens.token_stream import TokenStream

MAGIC = b"ARROW1"
THREADS = 32
"""Shards that are checked at the same time."""

BYTES_OF_IDS = "bytes_of_ids.npy"
"""Bytes of text per token id, int64 [vocab_size]; `bytes_scale` in the record has a factor per source."""


class Corpus:
    """A corpus by its manifest.

    `digest`, `tokenizer` (digest, vocab_size, bos, eos, bos_added) and `sources` are the manifest's.
    """

    def __init__(self, path: Path | str) -> None:
        self.manifest = manifest.read(path, "index")
        self.digest = self.manifest.digest
        self.tokenizer: dict[str, Any] = self.manifest.identity["tokenizer"]
        self.sources: dict[str, Any] = self.manifest.identity["sources"]

    def stream(self, source: str, split: str = "train") -> TokenStream:
        """Return the token stream of a source.

        Raises UserError naming a shard that is missing, truncated or not an Arrow file.
        """
        shards = self.sources[source][split]["shards"]
        with ThreadPoolExecutor(min(THREADS, len(shards) or 1)) as pool:
            for _ in pool.map(self._check, shards, chunksize=1 + len(shards) // THREADS):
                pass  # the first error is raised here
        max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // (
            4 * len(self.sources)
        )  # half, for two splits each
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

    def _check(self, shard: dict[str, Any]) -> None:
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
            raise UserError(f"{path} must be an Arrow file, and does not begin and end with {MAGIC.decode()}")
