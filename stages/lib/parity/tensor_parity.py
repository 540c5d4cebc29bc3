"""Parity of an export's tensors with the checkpoint's: names, shapes and, read one layer at a time, all bits.

One changed value of a large matrix moves no output by a measurable amount, so outputs alone do not show it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stages.lib.huggingface import weight_files
from stages.lib.huggingface.export import Read, hf_tensors, rounded_group
from stages.lib.model import key_table
from stages.lib.model.key_table import KeyTable, Weight
from stages.lib.model.model_recipe import ModelRecipe
from stages.lib.parity.parity import ParityError, config_of, stored_weights

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Export:
    """An export and the checkpoint that it was made of."""

    directory: Path
    model_config: ModelRecipe
    vocab_size: int
    dtype: str
    read: Read

    @functools.cached_property
    def table(self) -> KeyTable:
        """The key table of the exported model."""
        return key_table.build(self.model_config, self.vocab_size)

    @functools.cached_property
    def _file_of(self) -> dict[str, str]:
        return weight_files.file_of_tensors(self.directory)

    def compared(self, group: Sequence[Weight], label: str) -> tuple[Tensors, Tensors]:
        """Read weights of both sides in the export's dtype: ({FMS key: tensor}, {Hugging Face key: tensor}).

        Raises ParityError naming the first tensor with other bits.
        """
        ours = rounded_group(self.table, group, self.read, self.dtype)
        expected = hf_tensors(ours, group)
        theirs = weight_files.read_tensors(self.directory, self._file_of, expected)
        for name, tensor in expected.items():
            compare_bits(f"{label}: {name}", tensor, theirs[name])
        return ours, theirs


def compare_bits(label: str, expected: torch.Tensor, found: torch.Tensor) -> None:
    """Raise ParityError unless two tensors of one shape have the same dtype and bits."""
    if found.dtype != expected.dtype:
        raise ParityError(f"{label} must have the dtype {expected.dtype}, found {found.dtype}")
    integer = torch.int16 if expected.dtype.itemsize == 2 else torch.int32  # a NaN is equal to itself
    ours, theirs = expected.contiguous().view(integer), found.contiguous().view(integer)
    if not torch.equal(ours, theirs):
        different = (ours != theirs).nonzero()
        raise ParityError(
            f"{label} must have the trained bits; {len(different)} of {ours.numel()} values differ, the first at "
            f"{different[0].tolist()}"
        )


def empty_exported(directory: Path, num_layers: int | None = None) -> Any:
    """The export as transformers builds it, without weights (on the meta device); `num_layers`: its first ones only."""
    from transformers import AutoModelForCausalLM

    config = config_of(directory)
    if num_layers is not None:
        config.num_hidden_layers = num_layers
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, module in list(model.named_modules()):
        if next(module.buffers(recurse=False), None) is not None:  # RoPE's frequencies, which no file holds
            model.set_submodule(name, type(module)(config))
    return model.eval()


def compare_names(export: Export) -> None:
    """Raise ParityError unless the export's tensors are those that transformers expects, by name and shape.

    transformers itself only warns about a missing weight, and fills it with random numbers.
    """
    empty = empty_exported(export.directory)
    expected = {name: list(tensor.shape) for name, tensor in stored_weights(empty).items()}
    found = export.table.shapes()
    if empty.config.tie_word_embeddings:
        (head,) = export.table.head.part_shapes()
        expected.pop(head)
    compare_with_library("transformers", expected, found)


def compare_with_library(library: str, expected: Mapping[str, list[int]], found: Mapping[str, list[int]]) -> None:
    """Raise ParityError naming the first tensor that a library expects in another shape than the export has it."""
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise ParityError(
                f"{library} must expect {name} in the shape {found.get(name)}, and expects {expected.get(name)}"
            )
