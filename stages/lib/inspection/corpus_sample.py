"""A sample of the documents of a corpus: runs of neighbours from its shards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stages.lib import manifest
from stages.lib.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow

    from stages.lib.tokens.corpus import Corpus

RUNS, RUN_DOCUMENTS, RUN_TOKENS = 3, 1000, 1 << 20  # runs per split, and the size of each


def open_shard(corpus: Corpus, shard: Mapping[str, Any]) -> pyarrow.ipc.RecordBatchFileReader:
    """Return Arrow's reader of a shard, memory-mapped. Raises UserError if it is not as the manifest describes it."""
    import pyarrow

    from stages.lib.tokens.shards import schema_of

    path = corpus.manifest.directory / shard["path"]
    manifest.check_size(path, shard["bytes"], corpus.manifest.path)
    dtype = corpus.manifest.identity["dtype"]
    with _arrow_errors(path):
        reader = pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))
    if not reader.schema.equals(schema_of(dtype)):
        raise UserError(f"{path} must be an Arrow file of lists of {dtype} named tokens, got another schema")
    return reader


@contextlib.contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    """Raise Arrow's errors on a damaged shard as a UserError that names it."""
    import pyarrow

    try:
        yield
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} must be an Arrow file: {str(error).partition(chr(10))[0]}") from None


def runs_of(corpus: Corpus, shards: Sequence[Mapping[str, Any]]) -> list[list[np.ndarray]]:
    """Return the ids of runs of neighbouring documents at the beginning, middle and end of a split."""
    shards = [shard for shard in shards if shard["documents"]]
    documents, tokens = (sum(shard[key] for shard in shards) for key in ("documents", "tokens"))
    if documents <= RUNS * RUN_DOCUMENTS and tokens <= RUNS * RUN_TOKENS:
        return [list(_run(corpus, shards, 0, documents))]
    each = max(1, min(RUN_DOCUMENTS, documents // RUNS, RUN_TOKENS * documents // tokens))
    starts = dict.fromkeys((0, (documents - each) // 2, documents - each))
    return [list(_run(corpus, shards, start, each)) for start in starts]


def _run(corpus: Corpus, shards: Sequence[Mapping[str, Any]], start: int, count: int) -> Iterator[np.ndarray]:
    """Yield the ids of `count` documents of a split from number `start` on."""
    for shard in shards:
        if start >= shard["documents"]:
            start -= shard["documents"]
            continue
        reader = open_shard(corpus, shard)
        for number in range(reader.num_record_batches):
            with _arrow_errors(corpus.manifest.directory / shard["path"]):
                batch = reader.get_batch(number)
                batch.validate()
            column = batch.column(0)
            offsets, values = column.offsets.to_numpy(), column.values.to_numpy()
            for at in range(start, len(column)):
                if count == 0:
                    return
                count -= 1
                yield values[offsets[at] : offsets[at + 1]]
            start = max(0, start - len(column))
