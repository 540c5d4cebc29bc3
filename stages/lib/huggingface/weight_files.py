"""The safetensors files of a Hugging Face directory, one or several with an index, and the tensors in them."""

from pathlib import Path
from typing import Any

import torch

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.huggingface import export

DTYPES = ("F64", "F32", "BF16", "F16")
BUFFER = ".rotary_emb.inv_freq"  # transformers before 4.31 saved the frequencies, which follow from config.json
BLOCK = 4096  # rows that are compared at a time


def file_of_tensors(directory: Path) -> dict[str, str]:
    """{tensor: name of its file}, from the files' headers. Raises UserError if a file is missing or truncated."""
    names = [export.WEIGHTS]
    if not (directory / export.WEIGHTS).exists():
        if not (directory / export.INDEX).exists():
            raise UserError(f"{directory} must hold {export.WEIGHTS} or {export.INDEX}, found neither")
        names = _shards(directory / export.INDEX)
    found: dict[str, str] = {}
    for name in names:
        with opened(directory / name) as file:
            found |= dict.fromkeys(file.keys(), name)
    return {tensor: name for tensor, name in found.items() if not tensor.endswith(BUFFER)}


def _shards(path: Path) -> list[str]:
    """The file names of an index; they must be in its directory."""
    index = files.read_json(path)
    listed = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise UserError(f"{path}: weight_map must map tensors to files")
    for name in listed.values():
        if Path(name).name != name:
            raise UserError(f"{path}: weight_map must name files beside it, got {name}")
    return sorted(set(listed.values()))


def check(directory: Path, file_of: dict[str, str], shapes: dict[str, list[int]]) -> None:
    """Raise UserError unless the tensors of `file_of` are those of `shapes`, in floating point."""
    if missing := sorted(shapes.keys() - file_of):
        raise UserError(f"{directory} must hold {_listed(missing)} by its config.json, and does not")
    if extra := sorted(file_of.keys() - shapes):
        raise UserError(f"{directory} must hold only the tensors of its config.json's model, found {_listed(extra)}")
    for tensor, name in file_of.items():
        with opened(directory / name) as file:
            described = file.get_slice(tensor)
            shape, dtype = list(described.get_shape()), described.get_dtype()
        where = f"{directory / name}: {tensor}"
        if shape != shapes[tensor]:
            raise UserError(f"{where} must have the shape {shapes[tensor]} by config.json, found {shape}")
        if dtype not in DTYPES:
            raise UserError(f"{where} must be one of {', '.join(DTYPES)}, found {dtype}")


def _listed(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} other tensors" if len(names) > 1 else "")


def are_equal(directory: Path, file_of: dict[str, str], first: str, second: str) -> bool:
    """Compare two matrices in shape, dtype and bits; they are read in blocks of rows."""
    with opened(directory / file_of[first]) as one, opened(directory / file_of[second]) as other:
        a, b = one.get_slice(first), other.get_slice(second)
        if (a.get_shape(), a.get_dtype()) != (b.get_shape(), b.get_dtype()):
            return False
        rows = range(0, a.get_shape()[0], BLOCK)
        return all(torch.equal(a[row : row + BLOCK], b[row : row + BLOCK]) for row in rows)


def opened(path: Path) -> Any:
    """An open safetensors file. Raises UserError if it is missing or not valid."""
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} must be a safetensors file: {' '.join(str(error).split())}") from None
