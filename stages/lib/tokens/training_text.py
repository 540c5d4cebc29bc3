"""The training documents of a part of a corpus, as text: their ids, decoded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stages.lib import manifest
from stages.lib.manifest import Manifest
from stages.lib.sources.entries import TRAIN
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tokens.pretokenized import SEGMENT_IDS, text_of


def documents(part: Manifest, tokenizer: Tokenizer) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of the documents in a part's training shards, in their order, in bounded memory.

    Raises UserError if a shard is missing or changed since the manifest was written.
    """
    number = 0
    for batch in _batches(part):
        alone = len(batch) == 1  # perhaps longer than a batch: decoded in segments
        texts = [text_of(batch[0], tokenizer.decode)] if alone else tokenizer.decode_batch(batch)
        yield from enumerate(texts, number)
        number += len(texts)


def _batches(part: Manifest) -> Iterator[list[np.ndarray]]:
    """Yield lists of documents' ids, each of about SEGMENT_IDS; a longer document is alone."""
    held: list[np.ndarray] = []
    size = 0
    for ids in _ids(part):
        if held and size + len(ids) > SEGMENT_IDS:
            yield held
            held, size = [], 0
        held.append(ids)
        size += len(ids)
    if held:
        yield held


def _ids(part: Manifest) -> Iterator[np.ndarray]:
    import pyarrow as pa

    for shard in part.identity[TRAIN]["shards"]:
        path = part.directory / shard["path"]
        manifest.check_content(path, shard, part.path)
        with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as reader:
            for number in range(reader.num_record_batches):
                column = reader.get_batch(number).column(0)
                bounds, values = column.offsets.to_numpy(), column.values.to_numpy()
                for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
                    yield values[begin:end]
