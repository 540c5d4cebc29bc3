"""Writing safetensors files tensor by tensor: the bytes that `safetensors.torch.save_file` writes, in bounded memory.

`save_file` needs all tensors of a file at once. Names and shapes are known before, and so are the file's header and the
place of each tensor in it. The format: https://huggingface.co/docs/safetensors.
"""

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.huggingface.rounding_writer import RoundingWriter
from stages.lib.huggingface.weight_files import INDEX, WEIGHTS

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
