"""The safetensors files of a Hugging Face directory, one or several with an index, and the tensors in them."""

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stages.lib import files, manifest
from stages.lib.errors import UserError

CONFIG = "config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = ("F64", "F32", "BF16", "F16")
BUFFER = ".rotary_emb.inv_freq"  # transformers before 4.31 saved the frequencies, which follow from config.json
BLOCK = 4096  # rows that are compared at a time


def file_of_tensors(directory: Path) -> dict[str, str]:
    """{tensor: name of its file}, from the files' headers. Imports no torch.

    Raises UserError if a file is missing or truncated, or a tensor stands in two.
    """
    found: dict[str, str] = {}
    for name in _files(directory):
        with opened(directory / name, "numpy") as file:
            for tensor in sorted(file.keys()):
                if tensor in found:
                    raise UserError(f"{directory} must hold {tensor} once, found it in {found[tensor]} and {name}")
                found[tensor] = name
    return {tensor: name for tensor, name in found.items() if not tensor.endswith(BUFFER)}


def _files(directory: Path) -> list[str]:
    if (directory / WEIGHTS).exists():
        return [WEIGHTS]
    path = directory / INDEX
    if not path.exists():
        raise UserError(f"{directory} must hold {WEIGHTS} or {INDEX}, found neither")
    index = files.read_json(path)
    listed = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise UserError(f"{path}: weight_map must map tensors to files")
    for name in listed.values():
        if Path(name).name != name:
            raise UserError(f"{path}: weight_map must name files beside it, got {name}")
    return sorted(set(listed.values()))


def names_of(directory: Path, tied: bool) -> set[str]:
    """Return the names of config.json and of the files with a tensor of the model. Imports no torch.

    `tied`: the head, which some store nevertheless, is not one of the model's. Raises UserError as `file_of_tensors`.
    """
    file_of = file_of_tensors(directory)
    if tied:
        file_of.pop("lm_head.weight", None)
    return {CONFIG, *file_of.values()}


def digest(paths: Mapping[str, Path], sha256: Callable[[Path], str] = files.sha256_file) -> str:
    """Return the sha256 over the names and the hashes of files, {name: path}, which are all read for it."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # sha256 releases the GIL
        hashes = list(pool.map(sha256, paths.values()))
    return manifest.digest_of(dict(zip(paths, hashes, strict=True)))


def check(directory: Path, file_of: dict[str, str], shapes: dict[str, list[int]]) -> None:
    """Raise UserError unless the tensors of `file_of` are those of `shapes`, in floating point."""
    if missing := sorted(shapes.keys() - file_of):
        raise UserError(f"{directory} lacks {listed(missing)}, which its config.json requires")
    if extra := sorted(file_of.keys() - shapes):
        raise UserError(f"{directory} must hold only the tensors of its config.json's model, found {listed(extra)}")
    for tensor, name in file_of.items():
        with opened(directory / name) as file:
            described = file.get_slice(tensor)
            shape, dtype = list(described.get_shape()), described.get_dtype()
        where = f"{directory / name}: {tensor}"
        if shape != shapes[tensor]:
            raise UserError(f"{where} must have the shape {shapes[tensor]} by config.json, found {shape}")
        if dtype not in DTYPES:
            raise UserError(f"{where} must be one of {', '.join(DTYPES)}, found {dtype}")


def listed(names: list[str]) -> str:
    """Return the first of some names of tensors, with the number of the others."""
    return names[0] + (f" and {len(names) - 1} other tensors" if len(names) > 1 else "")


def are_equal(directory: Path, file_of: dict[str, str], first: str, second: str) -> bool:
    """Compare two matrices in shape, dtype and bits; they are read in blocks of rows."""
    import torch

    with opened(directory / file_of[first]) as one, opened(directory / file_of[second]) as other:
        a, b = one.get_slice(first), other.get_slice(second)
        if (a.get_shape(), a.get_dtype()) != (b.get_shape(), b.get_dtype()):
            return False
        rows = range(0, a.get_shape()[0], BLOCK)
        return all(torch.equal(a[row : row + BLOCK], b[row : row + BLOCK]) for row in rows)


def opened(path: Path, framework: str = "pt") -> Any:
    """An open safetensors file with tensors of `framework`. Raises UserError if it is missing or not valid."""
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework=framework)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} must be a safetensors file: {' '.join(str(error).split())}") from None


def read_tensors(directory: Path, file_of: Mapping[str, str], tensors: Iterable[str]) -> dict[str, Any]:
    """{tensor: torch tensor in its file's dtype}, for some tensors. `file_of`: from `file_of_tensors`."""
    found: dict[str, Any] = {}
    names = list(tensors)
    for name in sorted({file_of[tensor] for tensor in names}):
        with opened(directory / name) as file:
            found |= {tensor: file.get_tensor(tensor) for tensor in names if file_of[tensor] == name}
    return found
