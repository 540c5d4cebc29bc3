"""The safetensors of a Hugging Face directory, one file or several with an index: which tensor lies in which file."""

from pathlib import Path

import torch

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.huggingface import export

DTYPES = ("F64", "F32", "BF16", "F16")
BUFFER = ".rotary_emb.inv_freq"  # transformers before 4.31 saved the frequencies, which config.json gives
BLOCK = 4096  # rows of two matrices that are compared at a time


def places(directory):
    """{tensor: name of its file}, out of the files' own headers. Raises UserError where a file is missing or cut."""
    names = [export.WEIGHTS]
    if not (directory / export.WEIGHTS).exists():
        if not (directory / export.INDEX).exists():
            raise UserError(f"{directory} must hold {export.WEIGHTS} or {export.INDEX}, and has neither")
        names = _shards(directory / export.INDEX)
    found = {}
    for name in names:
        with opened(directory / name) as file:
            found |= dict.fromkeys(file.keys(), name)
    return {tensor: name for tensor, name in found.items() if not tensor.endswith(BUFFER)}


def _shards(path):
    """The file names that an index lists; they must be in its own directory."""
    index = files.read_json(path)
    listed = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise UserError(f"{path}: weight_map must map tensors to files")
    for name in listed.values():
        if Path(name).name != name:
            raise UserError(f"{path}: weight_map must name files beside it, got {name}")
    return sorted(set(listed.values()))


def check(directory, found, shapes):
    """Raise UserError unless the tensors of `found` (as `places` gives them) are those of `shapes` ({tensor: list})."""
    if missing := sorted(shapes.keys() - found):
        raise UserError(f"{directory} must hold {_listed(missing)} by its config.json, and does not")
    if extra := sorted(found.keys() - shapes):
        raise UserError(f"{directory} must hold nothing but a Llama of its config.json, found {_listed(extra)}")
    for tensor, name in found.items():
        with opened(directory / name) as file:
            described = file.get_slice(tensor)
            shape, dtype = list(described.get_shape()), described.get_dtype()
        where = f"{directory / name}: {tensor}"
        if shape != shapes[tensor]:
            raise UserError(f"{where} must have the shape {shapes[tensor]} by config.json, found {shape}")
        if dtype not in DTYPES:
            raise UserError(f"{where} must be one of {', '.join(DTYPES)}, found {dtype}")


def _listed(names):
    return names[0] + (f" and {len(names) - 1} other tensors" if len(names) > 1 else "")


def are_equal(directory, found, first, second):
    """Whether two matrices have the same shape and bits, read by blocks of rows."""
    with opened(directory / found[first]) as one, opened(directory / found[second]) as other:
        a, b = one.get_slice(first), other.get_slice(second)
        if (a.get_shape(), a.get_dtype()) != (b.get_shape(), b.get_dtype()):
            return False
        rows = range(0, a.get_shape()[0], BLOCK)
        return all(torch.equal(a[row : row + BLOCK], b[row : row + BLOCK]) for row in rows)


def opened(path):
    """A safetensors file, opened. Raises UserError where it is missing, or is none."""
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} must be a file of safetensors: {' '.join(str(error).split())}") from None
