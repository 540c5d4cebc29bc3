"""Checkpoints of ibm-fms and fms-fsdp as tensors of our models, which have FMS's keys and order of rows.

Such a checkpoint does not hold its model's config, so the caller gives it, and it is compared with the tensors' shapes.
No tensor depends on rope_theta, rope_scaling, rms_norm_eps, max_position_embeddings and num_attention_heads (of
num_key_value_heads only the ratio to it): these are as given.

A tensor is read when it is needed: safetensors and DCP by key, files of torch.save from a map of the file into memory.
No code of a pickle runs: torch.load is called with `weights_only=True`, .metadata is read by dcp_metadata.py, and
entries that are not tensors are left out.
"""

from __future__ import annotations

import functools
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stages.lib.checkpoints import dcp, model_files
from stages.lib.errors import UserError
from stages.lib.huggingface import load_hf, weight_files
from stages.lib.model import key_table
from stages.lib.model.key_table import KeyTable, Weight
from stages.lib.model.model_recipe import ModelRecipe

MODEL_STATE = "model_state"
"""fms-fsdp's name of the model, beside that of the optimizer."""

MAPPED_BYTES = 1 << 29
"""Read from one map of a file before the next; mapping 700 tensors takes 0.5 s."""

SAFETENSORS_DTYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor of a checkpoint."""

    key: str
    path: Path
    shape: list[int]
    dtype: str
    read: Callable[[], torch.Tensor]


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """{key: tensor} of the model of a checkpoint that `model_files.find_fms` finds.

    Raises UserError if it is not valid, or a tensor stands in two files.
    """
    found = model_files.find_fms(path)
    assert found is not None
    name, files = found
    stored: dict[str, StoredTensor] = {}
    for tensor in READERS[name](path, files):
        if tensor.key in stored:
            names = f"{stored[tensor.key].path.name} and {tensor.path.name}"
            raise UserError(f"{path} must hold {tensor.key} once, found it in {names}")
        stored[tensor.key] = tensor
    return stored


def _of_safetensors(_: Path, files: list[Path]) -> Iterable[StoredTensor]:
    for path in files:
        with weight_files.opened(path) as file:
            for key in sorted(file.keys()):
                described = file.get_slice(key)
                yield StoredTensor(
                    key=key,
                    path=path,
                    shape=list(described.get_shape()),
                    dtype=SAFETENSORS_DTYPES.get(described.get_dtype(), described.get_dtype()),
                    read=functools.partial(_tensor_of, path, key),
                )


def _tensor_of(path: Path, key: str) -> torch.Tensor:
    with weight_files.opened(path) as file:
        return file.get_tensor(key)


def _of_dcp(path: Path, _: list[Path]) -> Iterable[StoredTensor]:
    described, read = dcp.open_foreign(path)
    prefix = f"{MODEL_STATE}."
    for key in [key for key in described if key.startswith(prefix)] or described:
        shape, dtype = described[key]
        yield StoredTensor(
            key=key.removeprefix(prefix),
            path=path,
            shape=shape,
            dtype=_name(dtype),
            read=functools.partial(read, key),
        )


def _of_torch(_: Path, files: list[Path]) -> Iterable[StoredTensor]:
    for path in files:
        mapped = _MappedFile(path)
        for key, tensor in mapped.state_dict.items():
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
                raise UserError(f"{path} must hold a dense tensor as {key!s:.100}, found a {type(tensor).__name__}")
            yield StoredTensor(
                key=str(key),
                path=path,
                shape=list(tensor.shape),
                dtype=_name(tensor.dtype),
                read=functools.partial(mapped.read, key),
            )


class _MappedFile:
    """A file of torch.save, mapped again now and then: the pages that were read stay in memory as long as its map."""

    def __init__(self, path: Path) -> None:
        self.path, self.state_dict, self.bytes_read = path, _state_dict(path), 0

    def read(self, key: Any) -> torch.Tensor:
        if self.bytes_read > MAPPED_BYTES:
            self.state_dict, self.bytes_read = _state_dict(self.path), 0
        tensor = self.state_dict[key].detach()
        self.bytes_read += tensor.nbytes
        return tensor


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _state_dict(path: Path) -> Mapping[Any, Any]:
    """The state dict of a file of torch.save, mapped into memory."""
    if not zipfile.is_zipfile(path):
        raise UserError(
            f"{path} is not a whole file of torch.save (a zip archive): it is truncated, or another kind of file"
        )
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a pickle that is not valid may raise any error
        raise UserError(f"{path} could not be read as tensors: {_reason(error)}") from None
    if isinstance(content, dict) and isinstance(content.get(MODEL_STATE), dict):
        content = content[MODEL_STATE]
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold a state dict, found a {type(content).__name__}")
    return content


def _reason(error: Exception) -> str:
    """The cause in an error of torch.load, without torch's advice to run the code of the pickle."""
    text = str(error)
    if named := re.search(r"GLOBAL (\S+)", text):
        return f"its pickle names {named[1]}, which is neither a tensor nor a plain value"
    if found := re.search(r"WeightsUnpickler error:\s*(.+)", text):
        text = f"its pickle is not valid: {found[1]}"
    sentences = re.split(r"(?<=[.!?])\s+|\n+", text)
    kept = [sentence for sentence in sentences if "weights_only" not in sentence and "trust" not in sentence.lower()]
    return kept[0].rstrip(".") if kept and kept[0] else f"torch raised {type(error).__name__}"


READERS: dict[str, Callable[[Path, list[Path]], Iterable[StoredTensor]]] = {
    "dcp": _of_dcp,
    "safetensors": _of_safetensors,
    "torch": _of_torch,
}
"""{name of a format of model_files.py: function that returns its tensors}"""


WRAPPERS = {"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""torch.compile, DDP, FSDP and activation checkpointing."""

RENAMED = (
    (r"^shared\.emb\.", "base_model.embedding."),  # ibm-fms before 1.4 had no `base_model`
    (r"^shared\.head\.", "head."),
    (r"^(layers|dec_norm)\.", r"base_model.\1."),
    (r"\.attn\.(query|key|value)\.", r".attn.in_proj.\1."),  # before 0.0.6
)

UNFUSED = {
    ".attn.in_proj.qkv_fused.": (".attn.in_proj.query.", ".attn.in_proj.key.", ".attn.in_proj.value."),
    ".ff_sub_layer.wg1_fused.": (".ff_sub_layer.wg.", ".ff_sub_layer.w1."),
}
"""{fused: its parts, from the top row down}"""


def of_experts(weight: Weight) -> list[int] | None:
    """Return the shape in which ibm-fms stores the experts of a layer, apart from each other: [E, rows, columns].

    None for a weight of no experts.
    """
    if ".cond_ffn." not in weight.key:
        return None
    num_experts = len(weight.parts) // (2 if weight.key.endswith(".w13") else 1)
    rows, columns = weight.shape
    return [num_experts, rows // num_experts, columns]


def stored_shapes(weight: Weight, names: Iterable[str]) -> dict[str, list[int]]:
    """Return {name: shape} of the tensors that make a weight, from the top row down.

    `names`: the current names that a checkpoint has. A weight of which it has nothing counts as fused.
    """
    for fused, parts in UNFUSED.items():
        unfused = [weight.key.replace(fused, part) for part in parts]
        if fused in weight.key and not set(names).isdisjoint(unfused):
            return dict(zip(unfused, weight.part_shapes().values(), strict=True))
    return {weight.key: weight.shape}


DTYPES = tuple(SAFETENSORS_DTYPES.values())
EMBEDDING, HEAD = "base_model.embedding.weight", "head.weight"

Stored = Mapping[str, StoredTensor]
"""{current name, see _by_current_name: tensor}"""


@dataclass(frozen=True, kw_only=True)
class FMSModel:
    """A checkpoint whose tensors fit a config."""

    vocab_size: int

    parts: dict[str, list[StoredTensor]]
    """{key of our state dict: its tensors, from the top row down}."""

    def read(self, keys: Sequence[str]) -> dict[str, torch.Tensor]:
        """{key: CPU tensor} in the dtype of the checkpoint; a tied `head.weight` is the embedding.

        Raises UserError if a value is NaN or infinite.
        """
        return {key: self._join(key) for key in keys}

    def _join(self, key: str) -> torch.Tensor:
        tensors = [load_hf.finite(part.read(), f"{part.path}: {part.key}") for part in self.parts[key]]
        tensors = [tensor.flatten(0, 1) if tensor.dim() == 3 else tensor for tensor in tensors]  # experts
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def open_checkpoint(path: Path, model_config: ModelRecipe, where: str) -> FMSModel:
    """The model of a checkpoint that `model_files.find_fms` finds.

    `where`: what stands before a key of the config in messages. Raises UserError if the checkpoint is not valid, or its
    tensors are not those of the config.
    """
    stored = _by_current_name(path, model_config.tie_word_embeddings)
    _check_config(path, model_config, stored, where)
    vocab_size = stored[EMBEDDING].shape[0]
    table = key_table.build(model_config, vocab_size)
    shapes = {weight.key: stored_shapes(weight, stored) for weight in table.weights}
    _check_names(path, {name for named in shapes.values() for name in named}, stored, table)
    for named in shapes.values():
        for name, shape in named.items():
            _check_tensor(stored[name], shape, table.by_key.get(name))
    parts = {key: [stored[name] for name in named] for key, named in shapes.items()}
    if table.tied:
        _check_tied(path, stored, where)
        parts[HEAD] = parts[EMBEDDING]
    return FMSModel(vocab_size=vocab_size, parts=parts)


def _by_current_name(path: Path, tied: bool) -> dict[str, StoredTensor]:
    """Return the tensors by their names in ibm-fms 1.4 and later, with `fused_weights` on or off."""
    stored: dict[str, StoredTensor] = {}
    for key, tensor in stored_tensors(path).items():
        name = ".".join(part for part in key.split(".") if part not in WRAPPERS)
        for old, new in RENAMED:
            name = re.sub(old, new, name)
        if name in stored:
            raise UserError(f"{path} must hold {name} once, found it as {stored[name].key} and as {key}")
        stored[name] = tensor
    if tied and EMBEDDING not in stored and HEAD in stored:  # safetensors stores one name of a tensor with two
        stored[EMBEDDING] = stored[HEAD]
    if EMBEDDING not in stored:
        raise UserError(f"{path} lacks {EMBEDDING}, which a {model_files.KIND} has")
    return stored


def _check_config(path: Path, config: ModelRecipe, stored: Stored, where: str) -> None:
    """Raise UserError naming the key of the config that differs from the tensors."""
    for key, found in _shape_of(stored).items():
        if found != getattr(config, key):
            raise UserError(f"{where}{key} is {getattr(config, key)}, but {found} in {path}")
    rows, expected = _key_rows(stored, config), config.kv_heads * config.head_size
    if rows not in (0, expected):
        raise UserError(
            f"{where}num_key_value_heads and num_attention_heads must give keys of {rows} rows as in {path}, got "
            f"{config.kv_heads} and {config.num_attention_heads}, which give {expected}"
        )
    if not config.tie_word_embeddings and HEAD not in stored:
        raise UserError(f"{where}tie_word_embeddings must be true for {path}, which has no {HEAD}; got false")


def _shape_of(stored: Stored) -> dict[str, int]:
    """The keys of the config that follow from the tensors."""
    numbers = {int(found[1]) for name in stored if (found := re.match(r"base_model\.layers\.(\d+)\.", name))}
    shape = {"hidden_size": _size(stored, EMBEDDING, 1)}
    if numbers == set(range(len(numbers))):  # else a layer is missing, and is named as such
        shape["num_hidden_layers"] = len(numbers)
    if inner := _size(stored, "base_model.layers.0.ff_sub_layer.w2.weight", 1):
        shape["intermediate_size"] = inner
    return shape


def _key_rows(stored: Stored, config: ModelRecipe) -> int:
    """The rows of the first layer's keys; 0 if it has none."""
    attention = "base_model.layers.0.attn.in_proj"
    fused = _size(stored, f"{attention}.qkv_fused.weight", 0)
    if not fused:
        return _size(stored, f"{attention}.key.weight", 0)
    return (fused - config.num_attention_heads * config.head_size) // 2


def _size(stored: Stored, name: str, dimension: int) -> int:
    """A dimension of a matrix; 0 if it is missing."""
    if name not in stored:
        return 0
    tensor = stored[name]
    if len(tensor.shape) != 2:
        raise UserError(f"{tensor.path}: {tensor.key} must be a matrix, found the shape {tensor.shape}")
    return tensor.shape[dimension]


def _check_names(path: Path, names: set[str], stored: Stored, table: KeyTable) -> None:
    if missing := sorted(names - stored.keys()):
        raise UserError(f"{path} lacks {weight_files.listed(missing)}, which its config requires")
    if extra := sorted(stored.keys() - names - ({HEAD} if table.tied else set())):
        listed = weight_files.listed([stored[name].key for name in extra])
        raise UserError(f"{path} must hold only the tensors of its config's model, found {listed}")


def _check_tensor(tensor: StoredTensor, shape: list[int], weight: Weight | None) -> None:
    where = f"{tensor.path}: {tensor.key}"
    if tensor.shape not in (shape, None if weight is None else of_experts(weight)):
        raise UserError(f"{where} must have the shape {shape} by its config, found {tensor.shape}")
    if tensor.dtype not in DTYPES:
        raise UserError(f"{where} must be one of {', '.join(DTYPES)}, found {tensor.dtype}")


def _check_tied(path: Path, stored: Stored, where: str) -> None:
    if HEAD not in stored:
        return
    head, embedding = stored[HEAD], stored[EMBEDDING]
    if head is not embedding and not torch.equal(head.read(), embedding.read()):
        raise UserError(f"{where}tie_word_embeddings must be false for {path}, whose {HEAD} is not its embedding")
