"""Export: FMS tensors to the safetensors that transformers reads, by the architecture's key table.

FMS keeps queries, keys and values in one matrix, gate and up in another, and rotates neighbours 2i and 2i + 1 of a
head; transformers keeps five matrices and rotates i and i + hd / 2, so the rows of queries and keys are permuted.
FMS's own `convert_to_hf` swaps gate and up and permutes in the wrong direction, without an error.

Files are written tensor by tensor: the bytes that `safetensors.torch.save_file` writes, in bounded memory. `save_file`
needs all tensors of a file at once. Names and shapes are known before, and so are the file's header and the place of
each tensor in it. The format: https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import torch

from stages.lib import files, space
from stages.lib.errors import UserError
from stages.lib.huggingface.weight_files import INDEX, WEIGHTS
from stages.lib.model import key_table
from stages.lib.model.key_table import KeyTable, LoraRecipe, Weight
from stages.lib.model.lora import MATRICES, adapted_weights, adapter_key
from stages.lib.model.model_recipe import ModelRecipe
from stages.lib.render.terminal import track

MEGABYTE = 1 << 20

Read = Callable[[Sequence[str]], Mapping[str, torch.Tensor]]
"""FMS keys -> {FMS key: tensor}."""


def hf_tensors(tensors: Mapping[str, torch.Tensor], weights: Iterable[Weight]) -> dict[str, torch.Tensor]:
    """The Hugging Face tensors of some weights, by their keys. `tensors`: {FMS key: tensor}."""
    made = {}
    for weight in weights:
        rows = tensors[weight.key].split([part.rows for part in weight.parts])
        for part, tensor in zip(weight.parts, rows, strict=True):
            made[part.name] = tensor if part.rotary_heads is None else pairs_to_halves(tensor, part.rotary_heads)
    return made


def pairs_to_halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a head from neighbours (0, 1), (2, 3), ... to halves (0, 2, ..., 1, 3, ...): [heads * hd, ...] both."""
    return weight.view(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def cut(tensors: Mapping[str, torch.Tensor], table: KeyTable) -> dict[str, torch.Tensor]:
    """The tensors, with embedding and head cut to the vocabulary: further rows are padding."""
    cut = dict(tensors)
    for weight in (table.embedding, table.head):
        if weight.key in tensors:
            rows, found = weight.shape[0], tensors[weight.key].shape[0]
            if found < rows:
                raise UserError(f"the model must have a row for each of {rows} tokens, found {found} rows")
            cut[weight.key] = tensors[weight.key][:rows]
    return cut


def write_weights(
    directory: Path, model_config: ModelRecipe, vocab_size: int, read: Read, dtype: str | None, shard_mb: int
) -> int:
    """Write safetensors of at most `shard_mb` MiB (a larger tensor has its own file), and an index if they are several.

    `read` is called for one layer at a time. `dtype`: None keeps that of each tensor, which are then read twice. Peak
    memory: one layer, or the embedding. Returns the number of parameters.
    """
    table = key_table.build(model_config, vocab_size)

    def tensors(groups: Iterable[list[Weight]]) -> Iterator[tuple[str, torch.Tensor]]:
        for group in groups:
            yield from hf_tensors(cut(read([weight.key for weight in group]), table), group).items()
            space.trim_memory()

    if dtype is None:
        dtypes = {name: tensor.dtype for name, tensor in tensors(table.groups)}
    else:
        dtypes = dict.fromkeys(table.shapes(), DTYPES[dtype])
    writer = ShardWriter(directory, table.shapes(), dtypes, shard_mb * MEGABYTE)
    space.require(directory, writer.total_size, "the exported model", num_files=len(writer.names))
    writer.write(tensors(track("weights written", table.groups)))
    return writer.parameters


def rounded_group(table: KeyTable, group: Sequence[Weight], read: Read, dtype: str) -> dict[str, torch.Tensor]:
    """Some of our own tensors as exported, {FMS key: tensor}: rounded to `dtype`, cut to the vocabulary."""
    tensors = cut(read([weight.key for weight in group]), table)
    return {key: tensor.to(DTYPES[dtype]) for key, tensor in tensors.items()}


def rounded_state(model_config: ModelRecipe, vocab_size: int, read: Read, dtype: str) -> dict[str, torch.Tensor]:
    """Our own model's float32 state dict with the weights as exported: rounded to `dtype`, cut to the vocabulary."""
    table = key_table.build(model_config, vocab_size)
    tensors: dict[str, torch.Tensor] = {}
    for group in table.groups:
        tensors |= {key: tensor.float() for key, tensor in rounded_group(table, group, read, dtype).items()}
    return {key: tensors[weight.key] for key, weight in table.by_key.items()}


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
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for part in tensor.reshape(-1).split(PART_BYTES // dtype.itemsize):
                buffer = self._free.pop()
                rounded = buffer[: part.numel() * dtype.itemsize]
                rounded.view(dtype).copy_(part)
                self._wait()
                future = self._pool.submit(_write_all, self._file.fileno(), memoryview(rounded.numpy().data), position)
                self._writing = future, buffer
                position += rounded.numel()
        finally:
            torch.set_num_threads(threads)

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


# LoRA adapters in peft's format lie in a folder of their own, not beside an export's config.json: transformers would
# load a directory that has an adapter_config.json as the base with the adapters, and never read the weights there.
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

ReadAdapters = Callable[[Sequence[str]], Mapping[str, torch.Tensor]]
"""Keys of adapters (lora.adapter_key) -> {key: tensor}."""


def adapter_config(table: KeyTable, recipe: LoraRecipe, base: str) -> dict[str, Any]:
    """The content of adapter_config.json. `table`, `base`: of the base model, its name or path."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": recipe.rank,
        "lora_alpha": int(recipe.alpha) if recipe.alpha.is_integer() else recipe.alpha,
        "lora_dropout": recipe.dropout,
        "target_modules": recipe.targets_of(table),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
    }


def peft_tensors(table: KeyTable, recipe: LoraRecipe, read: ReadAdapters) -> dict[str, torch.Tensor]:
    """{peft's key: tensor} of all adapters. The rows of lora_B are those of transformers' matrix."""
    tensors = {}
    for weight in adapted_weights(table, recipe):
        for part in weight.parts:
            if part.projection in recipe.targets:
                keys = [adapter_key(weight, part, matrix) for matrix in MATRICES]
                a, b = (tensor.contiguous() for tensor in map(read(keys).__getitem__, keys))
                b = b if part.rotary_heads is None else pairs_to_halves(b, part.rotary_heads)
                for matrix, tensor in (("lora_A", a), ("lora_B", b)):
                    tensors[f"base_model.model.{part.module}.{matrix}.weight"] = tensor
    return tensors


def write_adapters(folder: Path, table: KeyTable, recipe: LoraRecipe, read: ReadAdapters, base: str) -> None:
    """Write the adapters into a new folder."""
    from safetensors.torch import save_file

    folder.mkdir()
    save_file(peft_tensors(table, recipe, read), folder / ADAPTER_WEIGHTS, {"format": "pt"})
    files.write_json(folder / ADAPTER_CONFIG, adapter_config(table, recipe, base))
