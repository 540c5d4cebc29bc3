"""Shards: Arrow IPC files of token ids, uncompressed, with the byte positions of their buffers.

One column `tokens: large_list<uint16|uint32>`, a document a row. The positions let a reader take a window with one
`pread`.
"""

import os

import numpy as np
import pyarrow as pa

from stages.lib import files

BATCH_TOKENS = 1 << 26
"""Tokens a record batch at most: bounds the writer's memory, and is large enough that its header costs nothing."""


def dtype_of(vocabulary):
    """The name of the smallest dtype that holds every id."""
    return "uint16" if vocabulary <= 1 << 16 else "uint32"


def write(path, documents, dtype):
    """Write documents (integer arrays) to a shard, whole or not at all; returns what the manifest says of it.

    {"bytes", "sha256", "tokens", "documents", "batches": [{"documents", "tokens", "offsets_at", "values_at"}]}
    """
    schema = pa.schema([pa.field("tokens", pa.large_list(pa.from_numpy_dtype(dtype)), nullable=False)])
    with files.atomic(path) as file:
        hashing = files.HashingWriter(file)
        with pa.ipc.new_file(pa.PythonFile(hashing, mode="w"), schema) as writer:
            for batch in _batches(documents):
                writer.write_batch(_record_batch(batch, dtype, schema))
    batches = _positions(path)
    return {
        "bytes": os.path.getsize(path),
        "sha256": hashing.hash.hexdigest(),
        "tokens": sum(batch["tokens"] for batch in batches),
        "documents": sum(batch["documents"] for batch in batches),
        "batches": batches,
    }


def _batches(documents):
    batch, tokens = [], 0
    for document in documents:
        if batch and tokens + len(document) > BATCH_TOKENS:
            yield batch
            batch, tokens = [], 0
        batch.append(document)
        tokens += len(document)
    if batch:
        yield batch


def _record_batch(documents, dtype, schema):
    offsets = np.zeros(len(documents) + 1, dtype=np.int64)
    np.cumsum([len(document) for document in documents], out=offsets[1:])
    values = np.concatenate(documents).astype(dtype, copy=False)
    column = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values), type=schema.field("tokens").type)
    return pa.record_batch([column], schema=schema)


def _positions(path):
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
