"""Shards of given documents; corpora whose every token but BOS and EOS occurs once, and samples over them."""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from stages.lib import manifest
from stages.lib.model.loss import IGNORED
from stages.lib.tokens import shards
from stages.lib.tokens.corpus import Corpus
from stages.lib.tokens.loader import Samples

BOS, EOS, FIRST = 1, 2, 3
WORLD_SIZES = (1, 2, 3, 4, 6, 8, 12, 24)
BATCH_DOCUMENTS = 1 << 20

# lengths of the documents of each shard: a document without any token, one of EOS alone, long ones, empty shards
lengths = st.lists(st.lists(st.integers(0, 40), max_size=12), min_size=1, max_size=4).filter(
    lambda made: any(length > 1 for shard in made for length in shard)
)

# in which fms-fsdp's loader loses, repeats or ends: empty documents, and files of unequal length
EMPTY, UNEQUAL = [[0, 20, 1, 9, 0, 14, 7, 0], [5]], [[2000], [5], [], [3, 4], [900, 1]]


def write_shard(path, documents, dtype, batch_documents=None):
    """Write documents (arrays of ids) in their order; returns the entry of the shard in a corpus' manifest."""
    batch_documents = batch_documents or BATCH_DOCUMENTS
    kind = pa.large_list(pa.from_numpy_dtype(dtype))
    schema = pa.schema([pa.field("tokens", kind, nullable=False)])
    with pa.ipc.new_file(str(path), schema) as writer:
        for begin in range(0, len(documents), batch_documents):
            batch = [np.asarray(document).astype(dtype) for document in documents[begin : begin + batch_documents]]
            offsets = np.cumsum([0, *map(len, batch)], dtype=np.int64)
            column = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(batch)), type=kind)
            writer.write_batch(pa.record_batch([column], schema=schema))
    batches = shards.positions(path)
    counts = {key: sum(batch[key] for batch in batches) for key in ("tokens", "documents")}
    return {"path": path.name, **manifest.describe(path), **counts, "batches": batches}


def write_manifest(directory, by_source, dtype="uint16"):
    """Write the manifest of a corpus, of {source: shards}; returns its path."""
    sources = {name: {"train": {"shards": of_source}} for name, of_source in by_source.items()}
    identity = {"tokenizer": {"eos": EOS}, "dtype": dtype, "sources": sources}
    manifest.write(directory / "manifest.json", "index", identity, {})
    return directory / "manifest.json"


def write(directory, by_source):
    """A corpus whose every token but BOS and EOS occurs once, so that a test sees where each comes from."""
    files, made, next_token = {name: [] for name in by_source}, {name: [] for name in by_source}, FIRST
    for name, source in by_source.items():
        for number, of_shard in enumerate(source):
            written = []
            for length in of_shard:
                body = list(range(next_token, next_token + max(0, length - 2)))
                next_token += len(body)
                written.append([[], [EOS]][length] if length < 2 else [BOS, *body, EOS])
            files[name].append(write_shard(directory / f"{name}-{number}.arrow", written, "uint32"))
            made[name] += written
    return write_manifest(directory, files, "uint32"), made


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
