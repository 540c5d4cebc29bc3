"""Shards as tests need them: of given documents, in record batches of any size."""

import numpy as np
import pyarrow as pa

from stages.lib import manifest
from stages.lib.tokens import shards

BATCH_DOCUMENTS = 1 << 20


def write(path, documents, dtype, batch_documents=None):
    """Write documents (arrays of ids) in their order; returns what a manifest says of the shard."""
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
    return {**manifest.describe(path), **counts, "batches": batches}
