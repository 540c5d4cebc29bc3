"""Writing safetensors files tensor by tensor: the bytes that `safetensors.torch.save_file` writes, in bounded memory.

`save_file` needs all tensors of a file at once. Names and shapes are known before, and so are the file's header and the
place of each tensor in it. The format: https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import torch

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.huggingface.weight_files import INDEX, WEIGHTS

PART_BYTES = 1 << 23
"""Bytes that are rounded and written at once: both parts stay in the CPU's cache, and a call's cost is negligible."""


class RoundingWriter:
    """Writes to an open file in a thread of its own; as a context manager, it ends when all is written.

    `write`, and the end of the context, raise the OSError of an earlier write.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._pool = ThreadPoolExecutor(1)
        self._free = [torch.empty(PART_BYTES, dtype=torch.uint8) for _ in range(2)]
        self._writing: tuple[Future[None], torch.Tensor] | None = None

    def __enter__(self) -> RoundingWriter:
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until all is written; raise the OSError of the last write, unless another error ends the context."""
        self._pool.shutdown()  # waits: the file is closed next
        if error is None:
            self._wait()

    def write(self, position: int, tensor: torch.Tensor, dtype: torch.dtype) -> None:
        """Write a tensor's elements, rounded to `dtype`, from a byte of the file on."""
        with _one_thread():
            for part in tensor.reshape(-1).split(PART_BYTES // dtype.itemsize):
                buffer = self._free.pop()
                rounded = buffer[: part.numel() * dtype.itemsize]
                rounded.view(dtype).copy_(part)
                self._wait()
                future = self._pool.submit(_write_all, self._file.fileno(), memoryview(rounded.numpy()), position)
                self._writing = future, buffer
                position += rounded.numel()

    def _wait(self) -> None:
        """Wait until the last part is written, and take its buffer back."""
        if self._writing is not None:
            (future, buffer), self._writing = self._writing, None
            self._free.append(buffer)
            future.result()


def _write_all(descriptor: int, data: memoryview, position: int) -> None:
    begin, size = position, len(data)
    while len(data):
        written = os.pwrite(descriptor, data, position)
        data, position = data[written:], position + written
    # the disk begins to write now, not when the file is synced; pages that are not yet written stay in memory
    os.posix_fadvise(descriptor, begin, size, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
CODES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}


class ShardWriter:
    """Tensors in shards of at most `limit` bytes (a larger tensor has its own), with an index if they are several.

    `shapes`: {name: shape} in the order in which the tensors come. `dtypes`: {name: dtype that it is written in}.
    `total_size`, `parameters`: their sums.
    """

    def __init__(
        self, directory: Path, shapes: Mapping[str, Sequence[int]], dtypes: Mapping[str, torch.dtype], limit: int
    ) -> None:
        self.directory, self.shapes, self.dtypes = directory, shapes, dtypes
        self.parameters = sum(map(math.prod, shapes.values()))
        self.total_size = sum(map(self._bytes, shapes))
        self.shards = self._divided(limit)
        count = len(self.shards)
        names = [f"model-{number + 1:05d}-of-{count:05d}.safetensors" for number in range(count)]
        self.names = names if count > 1 else [WEIGHTS]

    def _divided(self, limit: int) -> list[list[str]]:
        """The names of the tensors of each shard."""
        shards: list[list[str]] = [[]]
        size = 0
        for name in self.shapes:
            bytes_ = self._bytes(name)
            if shards[-1] and size + bytes_ > limit:
                shards.append([])
                size = 0
            shards[-1].append(name)
            size += bytes_
        return shards

    def write(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Write all tensors, which come in the order of `shapes`, and the index."""
        for path, names in zip(map(self.directory.joinpath, self.names), self.shards, strict=True):
            header, offsets = self._header(names)
            with _in_one_sentence(path), open(path, "wb") as file, RoundingWriter(file) as rounding:
                file.write(header)
                file.truncate(len(header) + sum(map(self._bytes, names)))
                for name in names:
                    given, tensor = next(tensors)
                    assert (given, list(tensor.shape)) == (name, list(self.shapes[name]))
                    rounding.write(len(header) + offsets[name], tensor, self.dtypes[name])
        if len(self.names) > 1:
            where = {tensor: name for name, shard in zip(self.names, self.shards, strict=True) for tensor in shard}
            index = {"metadata": {"total_size": self.total_size}, "weight_map": dict(sorted(where.items()))}
            files.write_json(self.directory / INDEX, index)

    def _bytes(self, name: str) -> int:
        return math.prod(self.shapes[name]) * self.dtypes[name].itemsize

    def _header(self, names: Sequence[str]) -> tuple[bytes, dict[str, int]]:
        """A file's first bytes, and {tensor: its offset behind them}: wide dtypes first, which aligns all, by name."""
        offsets, at, described = {}, 0, {}
        for name in sorted(names, key=lambda name: (-self.dtypes[name].itemsize, name)):
            offsets[name], end = at, at + self._bytes(name)
            described[name] = {
                "dtype": CODES[self.dtypes[name]],
                "shape": [*self.shapes[name]],
                "data_offsets": [at, end],
            }
            at = end
        text = json.dumps({"__metadata__": {"format": "pt"}} | described, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text, offsets


@contextlib.contextmanager
def _in_one_sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {os.strerror(error.errno or 0)}") from None
