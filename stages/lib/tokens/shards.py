"""Shards: Arrow IPC files of token ids, uncompressed, with the byte positions of their buffers.

One column `tokens: large_list<uint16|uint32>`, one row per document. The positions let a reader take any range
of tokens with one `pread`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stages.lib import files
from stages.lib.manifest_types import Batch, Shard

SHARD_BYTES = 1 << 27
"""Maximum bytes of token ids in a shard, unless one document alone has more. It bounds the writer's memory to three
times as much. A shard is one record batch, whose header costs nothing at this size."""

ORDERED_DOCUMENTS = 1 << 16  # documents that are put in order at once: each is an object meanwhile


def dtype_of(vocab_size: int) -> str:
    """Return the name of the smallest dtype that holds every id."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def schema_of(dtype: np.typing.DTypeLike) -> pa.Schema:
    """Return the Arrow schema of a shard with ids of a dtype."""
    ids = pa.large_list(pa.from_numpy_dtype(dtype))
    return pa.schema([pa.field("tokens", ids, nullable=False)])


class Writer:
    """Writes the documents of one split into shards `directory`/`name`-00000.arrow, -00001 ...

    `seed`: integers that seed the shuffling of the documents of a shard; None keeps their order. `finish` writes the
    remaining documents, at least one shard, and returns the manifest's entry of each, with the file's name as path.
    """

    def __init__(
        self, directory: Path, name: str, dtype: np.typing.DTypeLike, seed: Sequence[int] | None = None
    ) -> None:
        self.directory, self.name, self.dtype, self.seed = directory, name, np.dtype(dtype), seed
        self.written: list[Shard] = []
        self._begin()

    def _begin(self) -> None:
        self.values: list[np.ndarray] = []
        self.lengths: list[np.ndarray] = []
        self.num_tokens = self.text_bytes = 0

    def add(self, values: np.ndarray, lengths: np.ndarray, text_bytes: Sequence[int]) -> None:
        """Add documents: their ids end to end [tokens] of the dtype; the length of each in ids, and in bytes."""
        num_bytes = np.asarray(text_bytes)
        limit = SHARD_BYTES // self.dtype.itemsize
        ends = np.cumsum(lengths, dtype=np.int64)
        begin = 0
        while begin < len(lengths):
            before = ends[begin - 1] if begin else 0
            end = int(np.searchsorted(ends, before + limit - self.num_tokens, side="right"))
            if end <= begin:
                if self.num_tokens:
                    self._flush()
                    continue
                end = begin + 1  # a document longer than a shard gets a shard of its own
            self.values.append(values[before : ends[end - 1]])
            self.lengths.append(lengths[begin:end])
            self.num_tokens += int(ends[end - 1] - before)
            self.text_bytes += int(num_bytes[begin:end].sum())
            begin = end

    def finish(self) -> list[Shard]:
        """Write the remaining documents; return the manifest's entries of all shards."""
        if self.num_tokens or not self.written:
            self._flush()
        return self.written

    def _flush(self) -> None:
        number = len(self.written)
        path = self.directory / f"{self.name}-{number:05d}.arrow"
        arrays, text_bytes = self.values, self.text_bytes
        lengths = np.concatenate(self.lengths or [np.empty(0, np.int64)])
        bounds = np.cumsum([0, *map(len, self.lengths)])
        self._begin()
        if self.seed is not None and len(lengths) > 1:
            seed = self.seed if number == 0 else [*self.seed, number]
            order = np.random.Generator(np.random.PCG64(seed)).permutation(len(lengths))
            values = _ordered(arrays, lengths, bounds, order)
            lengths = lengths[order]
        else:
            values = arrays[0] if len(arrays) == 1 else np.concatenate(arrays or [np.empty(0, self.dtype)])
        offsets = np.zeros(1 + len(lengths), np.int64)
        np.cumsum(lengths, out=offsets[1:])
        self.written.append(_write(path, values, offsets, text_bytes))


def _ordered(arrays: list[np.ndarray], lengths: np.ndarray, bounds: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the ids of documents end to end in an order. (Arrow's `take` copies id by id, ten times as slowly.)

    `arrays`: array i holds the documents bounds[i] to bounds[i + 1], of these lengths; `order`: a permutation of all.
    """
    ordered = np.empty(int(lengths.sum()), arrays[0].dtype)
    ends = np.cumsum(lengths)
    begin_of_array = np.concatenate([[0], ends])[bounds]
    at = 0
    for begin in range(0, len(order), ORDERED_DOCUMENTS):
        chosen = order[begin : begin + ORDERED_DOCUMENTS]
        numbers: Any = np.searchsorted(bounds, chosen, side="right") - 1
        last = ends[chosen] - begin_of_array[numbers]
        places = zip(numbers, last - lengths[chosen], last, strict=True)
        documents = [arrays[number][start:end] for number, start, end in places]
        following = at + int(lengths[chosen].sum())
        np.concatenate(documents, out=ordered[at:following])
        at = following
    return ordered


def _write(path: Path, values: np.ndarray, offsets: np.ndarray, text_bytes: int) -> Shard:
    """Write a shard atomically; return its entry in the manifest."""
    schema = schema_of(values.dtype)
    with files.atomic(path) as file:
        hashing = files.HashingWriter(file)
        with pa.ipc.new_file(pa.PythonFile(hashing, mode="w"), schema) as writer:
            if len(offsets) > 1:
                parts = _arrow(offsets), _arrow(values)
                column = pa.LargeListArray.from_arrays(*parts, type=schema.field(0).type)
                writer.write_batch(pa.record_batch([column], schema=schema))
    batches = positions(path)
    return {
        "path": path.name,
        "bytes": os.path.getsize(path),
        "sha256": hashing.hash.hexdigest(),
        "tokens": sum(batch["tokens"] for batch in batches),
        "documents": sum(batch["documents"] for batch in batches),
        "batches": batches,
        "text_bytes": text_bytes,
    }


def _arrow(array: np.ndarray) -> pa.Array:
    """Return an array as Arrow's, without a copy. (`pa.array` imports pandas first, which takes half a second.)"""
    return pa.Array.from_buffers(pa.from_numpy_dtype(array.dtype), len(array), [None, pa.py_buffer(array)])


def positions(path: Path | str) -> list[Batch]:
    """Return the byte positions in the file of the buffers of each batch, and its numbers of documents and tokens."""
    with pa.memory_map(os.fspath(path)) as mapped:
        base = mapped.read_buffer(1).address  # an empty buffer has no address
        mapped.seek(0)
        reader = pa.ipc.open_file(mapped)
        batches: list[Batch] = []
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
