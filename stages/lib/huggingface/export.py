"""Export: FMS tensors to the safetensors that transformers reads, by the architecture's key table.

FMS keeps queries, keys and values in one matrix, gate and up in another, and rotates neighbours 2i and 2i + 1 of a
head; transformers keeps five matrices and rotates i and i + hd / 2, so the rows of queries and keys are permuted.
FMS's own `convert_to_hf` swaps gate and up and permutes in the wrong direction, without an error.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from stages.lib import memory, space
from stages.lib.errors import UserError
from stages.lib.huggingface.shard_writer import DTYPES, ShardWriter
from stages.lib.model import key_table
from stages.lib.model.keys import KeyTable, Weight, keys_of
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
            yield from hf_tensors(cut(read(keys_of(group)), table), group).items()
            memory.trim()

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
    return {key: tensor.to(DTYPES[dtype]) for key, tensor in cut(read(keys_of(list(group))), table).items()}


def rounded_state(model_config: ModelRecipe, vocab_size: int, read: Read, dtype: str) -> dict[str, torch.Tensor]:
    """Our own model's float32 state dict with the weights as exported: rounded to `dtype`, cut to the vocabulary."""
    table = key_table.build(model_config, vocab_size)
    tensors = {}
    for group in table.groups:
        tensors |= {key: tensor.float() for key, tensor in rounded_group(table, group, read, dtype).items()}
    return {key: tensors[weight.key] for key, weight in table.by_key.items()}
