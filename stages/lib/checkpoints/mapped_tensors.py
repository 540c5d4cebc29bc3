"""A checkpoint's tensors, mapped into memory from its files.

DCP's own reader copies every tensor twice: into a tensor of the record, and from there into the one that it fills. A
tensor here lies in the file's pages, which are read when it is used, and are given back with it. DCP keeps each part of
a tensor as one record of torch.save, a zip archive within the file of a rank.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.utils import _create_file_view


def read(
    directory: Path, key: str, tensor: TensorStorageMetadata, places: Mapping[MetadataIndex, _StorageInfo]
) -> torch.Tensor:
    """Return a tensor of a checkpoint. `tensor`, `places`: of its metadata.

    One that lies in a single part is mapped; parts are joined in memory of their own. A place that parts which overlap
    leave empty is NaN, not what was in memory before. Raises an exception of any class for a record that is not valid.
    """
    dtype = tensor.properties.dtype
    parts = []
    for chunk in sorted(tensor.chunks, key=lambda chunk: chunk.offsets):
        part = map_record(directory, places[MetadataIndex(key, chunk.offsets)])
        if part.dtype != dtype or part.shape != chunk.sizes:
            raise ValueError(
                f"a part of {key} must be of {dtype} and {list(chunk.sizes)}, found {part.dtype} and {list(part.shape)}"
            )
        parts.append((chunk, part))
    if _are_rows([chunk for chunk, _ in parts], tensor.size):
        return torch.cat([part for _, part in parts]) if len(parts) > 1 else parts[0][1]
    whole = _blank(tensor.size, dtype)
    for chunk, part in parts:
        whole[tuple(slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True))] = part
    return whole


def _are_rows(chunks: Iterable[ChunkStorageMetadata], size: torch.Size) -> bool:
    """Return True if the chunks are consecutive rows of a whole tensor, or all of it."""
    end = 0
    for chunk in chunks:
        if chunk.sizes[1:] != size[1:] or any(chunk.offsets[1:]) or chunk.offsets[:1] not in ((), (end,)):
            return False
        end += chunk.sizes[0] if size else 1
    return end == (size[0] if size else 1)


def _blank(size: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    return torch.full(size, math.nan, dtype=dtype) if dtype.is_floating_point else torch.zeros(size, dtype=dtype)


def map_record(directory: Path, place: _StorageInfo) -> torch.Tensor:
    """Return the tensor of a record in a file of the checkpoint; raise an exception of any class if it is not valid."""
    with open(directory / place.relative_path, "rb") as file:
        record: Any = _create_file_view(file, place.offset, place.length)
        described = torch.load(record, map_location="meta", weights_only=True)  # reads no data
        if type(described) is not torch.Tensor or described.layout != torch.strided:
            raise ValueError(f"a record of {place.relative_path} must be a dense tensor")
        storage = described.untyped_storage()
        if not storage.nbytes():
            return torch.empty(described.shape, dtype=described.dtype)
        start = place.offset + storage._checkpoint_offset  # where torch.load(map_location="meta") keeps it
        if start + storage.nbytes() > place.offset + place.length:
            raise ValueError(f"a record of {place.relative_path} ends within its data")
        before = start % mmap.ALLOCATIONGRANULARITY
        pages = mmap.mmap(
            file.fileno(), before + storage.nbytes(), access=mmap.ACCESS_COPY, offset=start - before
        )  # a copy of each page that is written to: the file stays as it is
    pages.madvise(mmap.MADV_WILLNEED)
    count = storage.nbytes() // described.itemsize
    flat = torch.frombuffer(pages, dtype=described.dtype, count=count, offset=before)
    return flat.as_strided(described.shape, described.stride(), described.storage_offset())
