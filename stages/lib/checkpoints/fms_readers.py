"""The tensors of a checkpoint that ibm-fms or fms-fsdp wrote: one reader per format of fms_files.py.

A tensor is read when it is needed: safetensors and DCP by key, files of torch.save from a map of the file into memory.
No code of a pickle runs: torch.load is called with `weights_only=True`, .metadata is read by dcp_metadata.py, and
entries that are not tensors are left out.
"""

from __future__ import annotations

import functools
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stages.lib.checkpoints import dcp, fms_files
from stages.lib.errors import UserError
from stages.lib.huggingface import weight_files

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
    """{key: tensor} of the model of a checkpoint that `fms_files.find` finds.

    Raises UserError if it is not valid, or a tensor stands in two files.
    """
    found = fms_files.find(path)
    assert found is not None
    known, files = found
    stored: dict[str, StoredTensor] = {}
    for tensor in READERS[known.name](path, files):
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
"""{name of a format of fms_files.py: function that returns its tensors}"""
