"""Export: FMS tensors to the safetensors that transformers reads, by the architecture's key table.

FMS keeps queries, keys and values in one matrix, gate and up in another, and rotates neighbours 2i and 2i + 1 of a
head; transformers keeps five matrices and rotates i and i + hd / 2, so the rows of queries and keys are permuted.
FMS's own `convert_to_hf` swaps gate and up and permutes in the wrong direction, without an error.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.huggingface.weight_files import INDEX, WEIGHTS
from stages.lib.model.keys import KeyTable, Weight, keys_of
from stages.lib.model.llama_config import ModelRecipe

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
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
    """Rows of a head from neighbours (0, 1), (2, 3), ... to halves (0, 2, ..., 1, 3, ...): [heads * hd, D] both."""
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _cut(tensors: Mapping[str, torch.Tensor], table: KeyTable) -> dict[str, torch.Tensor]:
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

    `read` is called for one layer at a time. `dtype`: None keeps that of each tensor. Peak memory: one shard and one
    layer. Returns the number of parameters.
    """
    writer = _ShardWriter(directory, shard_mb * MEGABYTE, None if dtype is None else DTYPES[dtype])
    table = model_config.key_table(vocab_size)
    for group in table.groups:
        writer.add(hf_tensors(_cut(read(keys_of(group)), table), group))
    writer.finish()
    return writer.parameters


class _ShardWriter:
    def __init__(self, directory: Path, limit: int, dtype: torch.dtype | None) -> None:
        self.directory, self.limit, self.dtype = directory, limit, dtype
        self.shards: list[list[str]] = []  # the names of the tensors of each shard written
        self.tensors: dict[str, torch.Tensor] = {}
        self.size = self.total_size = self.parameters = 0

    def add(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for name, given in tensors.items():
            tensor = (
                given.to(self.dtype or given.dtype).contiguous().clone()
            )  # a view would keep its whole matrix in memory
            if self.tensors and self.size + tensor.nbytes > self.limit:
                self._flush()
            self.tensors[name] = tensor
            self.size += tensor.nbytes
            self.total_size += tensor.nbytes
            self.parameters += tensor.numel()

    def _flush(self) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        path = self.directory / f"shard-{len(self.shards)}"
        try:
            save_file(self.tensors, path, metadata={"format": "pt"})
        except SafetensorError as error:  # in place of an OSError
            raise UserError(f"{path} cannot be written: {' '.join(str(error).split())}") from None
        self.shards.append(list(self.tensors))
        self.tensors, self.size = {}, 0

    def finish(self) -> None:
        """Write the last shard, rename the shards as transformers expects them, and write the index."""
        self._flush()
        count = len(self.shards)
        names = [f"model-{number + 1:05d}-of-{count:05d}.safetensors" for number in range(count)]
        if count == 1:
            names = [WEIGHTS]
        for number, name in enumerate(names):
            (self.directory / f"shard-{number}").rename(self.directory / name)
        if count > 1:
            where = {tensor: name for name, shard in zip(names, self.shards, strict=True) for tensor in shard}
            index = {"metadata": {"total_size": self.total_size}, "weight_map": dict(sorted(where.items()))}
            files.write_json(self.directory / INDEX, index)


def rounded_state(model_config: ModelRecipe, vocab_size: int, read: Read, dtype: str) -> dict[str, torch.Tensor]:
    """Our own model's float32 state dict with the weights as exported: rounded to `dtype`, cut to the vocabulary."""
    table = model_config.key_table(vocab_size)
    tensors = {key: tensor.to(DTYPES[dtype]).float() for key, tensor in read(keys_of(table.weights)).items()}
    tensors = _cut(tensors, table)
    return {key: tensors[weight.key] for key, weight in table.by_key.items()}
