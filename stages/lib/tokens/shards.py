"""Shards: Arrow IPC files of token ids, uncompressed, with the byte positions of their buffers.

One column `tokens: large_list<uint16|uint32>`, a document a row. The positions let a reader take a window with one
`pread`.
"""

import os

import numpy as np
import pyarrow as pa

from stages.lib import files

SHARD_BYTES = 1 << 27
"""Bytes of token ids that a shard holds at most, but for one document that alone has more: it bounds the memory of the
writer, to three times as much. A shard is one record batch, whose header costs nothing at this size."""

DOCUMENTS = 1 << 16  # that are put in order at once: each is an object meanwhile


def dtype_of(vocab_size):
    """The name of the smallest dtype that holds every id."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def schema_of(dtype):
    """The Arrow schema of a shard with ids of a dtype."""
    ids = pa.large_list(pa.from_numpy_dtype(dtype))
    return pa.schema([pa.field("tokens", ids, nullable=False)])


class Writer:
    """Writes the documents of one side of a split into shards `directory`/`name`-00000.arrow, -00001 ...

    `seed`: a list of whole numbers by which the documents of a shard are shuffled; None leaves them in order.
    `finish` writes what is left, at least one shard, and returns what the manifest says of each:
    {"path" (the file's name), "bytes", "sha256", "tokens", "documents", "text_bytes", "batches": [{"documents",
    "tokens", "offsets_at", "values_at"}]}
    """

    def __init__(self, directory, name, dtype, seed=None):
        self.directory, self.name, self.dtype, self.seed = directory, name, np.dtype(dtype), seed
        self.written = []
        self._begin()

    def _begin(self):
        self.values, self.lengths, self.held, self.text_bytes = [], [], 0, 0

    def add(self, values, lengths, text_bytes):
        """Documents one after the other: their ids [tokens] of the dtype; the length of each in ids, and in bytes."""
        text_bytes = np.asarray(text_bytes)
        limit = SHARD_BYTES // self.dtype.itemsize
        ends = np.cumsum(lengths, dtype=np.int64)
        begin = 0
        while begin < len(lengths):
            before = ends[begin - 1] if begin else 0
            end = int(np.searchsorted(ends, before + limit - self.held, side="right"))
            if end <= begin:
                if self.held:
                    self._flush()
                    continue
                end = begin + 1  # it is longer than a shard, and gets one of its own
            self.values.append(values[before : ends[end - 1]])
            self.lengths.append(lengths[begin:end])
            self.held += int(ends[end - 1] - before)
            self.text_bytes += int(text_bytes[begin:end].sum())
            begin = end

    def finish(self):
        """Write what is left; returns the description of all shards."""
        if self.held or not self.written:
            self._flush()
        return self.written

    def _flush(self):
        number = len(self.written)
        path = self.directory / f"{self.name}-{number:05d}.arrow"
        values = self.values[0] if len(self.values) == 1 else np.concatenate(self.values or [np.empty(0, self.dtype)])
        offsets = np.zeros(1 + sum(map(len, self.lengths)), dtype=np.int64)
        if self.lengths:
            np.cumsum(np.concatenate(self.lengths), out=offsets[1:])
        text_bytes = self.text_bytes
        self._begin()
        if self.seed is not None and len(offsets) > 2:
            seed = self.seed if number == 0 else [*self.seed, number]
            order = np.random.Generator(np.random.PCG64(seed)).permutation(len(offsets) - 1)
            values, offsets = _ordered(values, offsets, order)
        self.written.append({"path": path.name, **_write(path, values, offsets), "text_bytes": text_bytes})


def _ordered(values, offsets, order):
    """The ids and offsets of documents in an order. (Arrow's `take` copies id by id, and needs ten times as long.)"""
    ordered = np.empty_like(values)
    bounds = np.concatenate([[0], np.cumsum(np.diff(offsets)[order])])
    for begin in range(0, len(order), DOCUMENTS):
        chosen = order[begin : begin + DOCUMENTS]
        segments = [values[first:end] for first, end in zip(offsets[chosen], offsets[chosen + 1], strict=True)]
        np.concatenate(segments, out=ordered[bounds[begin] : bounds[begin + len(chosen)]])
    return ordered, bounds


def _write(path, values, offsets):
    """Write a shard, whole or not at all; returns what is known of it."""
    schema = schema_of(values.dtype)
    with files.atomic(path) as file:
        hashing = files.HashingWriter(file)
        with pa.ipc.new_file(pa.PythonFile(hashing, mode="w"), schema) as writer:
            if len(offsets) > 1:
                column = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values), type=schema.field(0).type)
                writer.write_batch(pa.record_batch([column], schema=schema))
    batches = positions(path)
    return {
        "bytes": os.path.getsize(path),
        "sha256": hashing.hash.hexdigest(),
        "tokens": sum(batch["tokens"] for batch in batches),
        "documents": sum(batch["documents"] for batch in batches),
        "batches": batches,
    }


def positions(path):
    """Where the buffers of each batch begin, in bytes from the file's begin."""
    with pa.memory_map(os.fspath(path)) as mapped:
        base = mapped.read_buffer(1).address  # an empty buffer has no address
        mapped.seek(0)
        reader = pa.ipc.open_file(mapped)
        batches = []
        for number in range(reader.num_record_batches):
            column = reader.get_batch(number).column(0)
            _, offsets, _, values = column.buffers()
            batches.append(
                {
                    "documents": len(column),
                    "tokens": len(column.values),
                    "offsets_at": offsets.address - base,
                    "values_at": values.address - base,
                }
            )
        return batches
