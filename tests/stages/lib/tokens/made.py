"""Corpora of documents of given lengths, whose every token but BOS and EOS occurs once, and samples over them."""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from stages.lib import manifest
from stages.lib.model.loss import IGNORED
from stages.lib.tokens.corpus import Corpus
from stages.lib.tokens.loader import Samples
from tests.stages.lib.tokens import shard_files

BOS, EOS, FIRST = 1, 2, 3
WORLD_SIZES = (1, 2, 3, 4, 6, 8, 12, 24)

# lengths of the documents of each shard: a document without any token, one of EOS alone, long ones, empty shards
lengths = st.lists(st.lists(st.integers(0, 40), max_size=12), min_size=1, max_size=4).filter(
    lambda made: any(length > 1 for shard in made for length in shard)
)


def write(directory, by_source):
    """A corpus whose every token but BOS and EOS occurs once, so that a test sees where each comes from."""
    described, made, next_token = {}, {}, FIRST
    for name, source in by_source.items():
        files, made[name] = [], []
        for number, of_shard in enumerate(source):
            written = []
            for length in of_shard:
                body = list(range(next_token, next_token + max(0, length - 2)))
                next_token += len(body)
                written.append([[], [EOS]][length] if length < 2 else [BOS, *body, EOS])
            path = f"{name}-{number}.arrow"
            arrays = [np.array(document, np.uint32) for document in written]
            files.append({"path": path, **shard_files.write(directory / path, arrays, "uint32")})
            made[name] += written
        described[name] = {"train": {"shards": files}}
    identity = {"tokenizer": {"eos": EOS}, "dtype": "uint32", "sources": described}
    manifest.write(directory / "manifest.json", "index", identity, {})
    return directory / "manifest.json", made


class Made:
    """Samples over documents of given lengths, in a temporary directory, and the documents."""

    def __init__(self, by_source, packing, seq_len=7, seed=0, weights=None):
        self.directory = tempfile.TemporaryDirectory()
        path, self.documents = write(Path(self.directory.name), by_source)
        weights = weights or dict.fromkeys(by_source, 1.0)
        self.samples = Samples(Corpus(path), weights, seq_len, seed, packing=packing)

    def __enter__(self):
        return self.samples, self.documents

    def __exit__(self, *_):
        for stream in self.samples.streams:
            stream.close()
        self.directory.cleanup()


def enough(made):
    """Return the lengths with a document that is longer than a chunk."""
    return [*made, [40]]


def trained(targets):
    """The number of times that each token was a target."""
    found = Counter(targets.reshape(-1).tolist())
    found.pop(IGNORED, None)
    return found
