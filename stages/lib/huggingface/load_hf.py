"""A Hugging Face model's safetensors as FMS tensors: the inverse of export.py.

Tensors are read one at a time, when they are needed, so that a model of 70B parameters needs the memory of its largest
matrix beside that of the ranks' own shards.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from stages.lib import files
from stages.lib.distributed.collectives import local_rows
from stages.lib.errors import UserError
from stages.lib.huggingface import config_json, weight_files
from stages.lib.huggingface.export import Read
from stages.lib.huggingface.weight_files import CONFIG
from stages.lib.model import key_table
from stages.lib.model.key_table import KeyTable, Part
from stages.lib.model.model_recipe import ModelRecipe


@dataclass(frozen=True, kw_only=True)
class HuggingFaceModel:
    """A Hugging Face directory with a model that we support."""

    directory: Path
    model_config: ModelRecipe
    vocab_size: int

    file_of: dict[str, str]
    """{Hugging Face key: name of the file with the tensor}."""

    def read(self, keys: Sequence[str]) -> dict[str, torch.Tensor]:
        """{FMS key: CPU tensor} in the dtype of the files; a tied `head.weight` is the embedding.

        Raises UserError if a value is NaN or infinite.
        """
        return {key: self._join(key) for key in keys}

    @functools.cached_property
    def _table(self) -> KeyTable:
        return key_table.build(self.model_config, self.vocab_size)

    def _join(self, key: str) -> torch.Tensor:
        tensors = [self._read(part) for part in self._table.by_key[key].parts]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

    def _read(self, part: Part) -> torch.Tensor:
        path = self.directory / self.file_of[part.name]
        with weight_files.opened(path) as file:
            tensor = finite(file.get_tensor(part.name), f"{path}: {part.name}")
        return tensor if part.rotary_heads is None else halves_to_pairs(tensor, part.rotary_heads)


def open_directory(path: Path | str) -> HuggingFaceModel:
    """The model of a Hugging Face directory. Raises UserError if we do not support it."""
    directory = Path(path)
    model_config, vocab_size = config_json.read_config(files.read_json(directory / CONFIG), directory / CONFIG)
    table = key_table.build(model_config, vocab_size)
    file_of = weight_files.file_of_tensors(directory)
    (head,), (embedding,) = table.head.part_shapes(), table.embedding.part_shapes()
    if table.tied and head in file_of:  # some store it nevertheless
        if not weight_files.are_equal(directory, file_of, head, embedding):
            raise UserError(f"{directory / CONFIG}: tie_word_embeddings must be false, since {head} is not {embedding}")
        del file_of[head]
    weight_files.check(directory, file_of, table.shapes())
    return HuggingFaceModel(directory=directory, model_config=model_config, vocab_size=vocab_size, file_of=file_of)


def finite(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return a tensor, of which messages speak as `name`. Raises UserError if a value is NaN or infinite."""
    if not all(torch.isfinite(extreme) for extreme in tensor.aminmax()):  # both are NaN if any value is
        raise UserError(f"{name} must have finite values, found NaN or infinity")
    return tensor


def halves_to_pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a head from halves (0, 2, ..., 1, 3, ...) to neighbours (0, 1), (2, 3), ...: [heads * hd, ...] both."""
    return weight.view(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


@torch.no_grad()
def load_into(parameters: Iterable[tuple[str, torch.Tensor]], read: Read) -> None:
    """Fill parameters, (key, tensor) sharded by rows (DTensor) or whole, in place; each rank copies its own rows.

    `read` is called for one key at a time, on every rank. Raises UserError if a tensor has another shape than the
    parameter.
    """
    for name, parameter in parameters:
        tensor = read([name])[name]
        if tensor.shape != parameter.shape:
            raise UserError(f"{name} must have the shape {list(parameter.shape)}, found {list(tensor.shape)}")
        local, first = local_rows(parameter)
        local.copy_(tensor[first : first + len(local)])
