"""Checkpoints of LoRA: the adapters, and the model that they were trained beside, which they do not hold.

commit.json has the adapters' recipe (`adapter`) and the digest of that model (`initial`). base.json in the run
directory has its name as it was given, and its path, relative to the run directory if the name is a relative path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stages.lib import files, recipe
from stages.lib.checkpoints import dcp, model_files
from stages.lib.checkpoints.commit import COMMIT
from stages.lib.errors import UserError
from stages.lib.huggingface.export import Read
from stages.lib.model.key_table import KeyTable, LoraRecipe
from stages.lib.model.lora import adapted_weights, adapter_shapes, merged

BASE = "base.json"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """The adapters of a checkpoint."""

    directory: Path
    recipe: LoraRecipe

    base: Path
    """The path of the model that they were trained beside."""

    base_name: str
    """The same as the user wrote it."""

    base_dtype: torch.dtype
    """The dtype in which the base was frozen."""

    read_base: Read
    """Reads the base by FMS keys, in the dtype of its files."""

    def tensors(self, keys: Sequence[str]) -> dict[str, torch.Tensor]:
        """{key: CPU tensor} of the adapters' matrices."""
        found = dcp.load_tensors(self.directory, [f"adapter.{key}" for key in keys])
        return {key: found[f"adapter.{key}"] for key in keys}

    def read_frozen(self, keys: Sequence[str]) -> dict[str, torch.Tensor]:
        """{FMS key: CPU tensor} of the base as it was frozen."""
        return {key: tensor.to(self.base_dtype) for key, tensor in self.read_base(keys).items()}

    def merged_reader(self, table: KeyTable) -> Read:
        """A function that reads the base with the adapters added: FMS keys -> {FMS key: CPU tensor}."""
        adapted = {weight.key: weight for weight in adapted_weights(table, self.recipe)}
        shapes = adapter_shapes(table, self.recipe)

        def read(keys: Sequence[str]) -> dict[str, torch.Tensor]:
            found = self.read_frozen(keys)
            for key in found.keys() & adapted.keys():
                stem = key.removesuffix("weight")
                matrices = self.tensors([name for name in shapes if name.startswith(stem)])
                found[key] = merged(adapted[key], found[key], matrices, self.recipe)
            return found

        return read


def record_base(run_directory: Path, given: Path, path: Path, config: Path | None) -> None:
    """Write base.json. `given`: the path as the user wrote it. `path`, `config`: the model, and its config.json."""
    directory = os.path.realpath(run_directory)

    def written(place: Path) -> str:
        return os.path.abspath(place) if given.is_absolute() else os.path.relpath(os.path.realpath(place), directory)

    content = {"name": str(given), "path": written(path), "config": None if config is None else written(config)}
    files.write_json(run_directory / BASE, content)


def find_base(
    directory: Path,
    commit: Mapping[str, Any],
    given: Path | None,
    find: Callable[[Path, Path | None], tuple[Path, Read]],
) -> Adapter:
    """The adapters of a checkpoint. `given`: path of their base, if it is another than base.json has.

    `find`: a function from the path of a model and of its config.json to (path of what is hashed, reader). Raises
    UserError if the base is missing, or is not the one that the adapters were trained beside.
    """
    described = dict(commit["adapter"])
    dtype = DTYPES[described.pop("base_dtype")]
    name, place, config = _recorded(directory) if given is None else (str(given), given, None)
    if not place.exists():
        raise UserError(
            f"{directory} holds adapters alone, and their base {place} does not exist; name it with --base, or correct "
            f"{BASE} in the run directory"
        )
    path, read = find(place, config)
    if model_files.digest_of(path, "--base", config=config) != commit["initial"]:
        raise UserError(f"{place} is not the base of the adapters in {directory}: its digest differs")
    return Adapter(
        directory=directory,
        recipe=recipe.load(LoraRecipe, described, f"{directory / COMMIT}: adapter"),
        base=path,
        base_name=name,
        base_dtype=dtype,
        read_base=read,
    )


def _recorded(directory: Path) -> tuple[str, Path, Path | None]:
    """Name and path of the base of a checkpoint's adapters, and the path of its config, from base.json."""
    run_directory = Path(os.path.realpath(directory)).parents[1]
    file = run_directory / BASE
    if not file.is_file():
        raise UserError(f"{directory} holds adapters alone, and {file} does not exist; name their base with --base")
    content = files.read_json_object(file)
    name, path, config = (content.get(key) for key in ("name", "path", "config"))
    if not isinstance(name, str) or not isinstance(path, str) or not isinstance(config, str | None):
        raise UserError(f"{file} must have the name and the path of a model, and the path of its config or null")
    return name, run_directory / path, None if config is None else run_directory / config


def check_keys(directory: Path, table: KeyTable, adapter: Adapter) -> None:
    """Raise UserError unless a checkpoint holds the adapters of its recipe, and no other."""
    found = {key.removeprefix("adapter.") for key in dcp.keys_of(directory) if key.startswith("adapter.")}
    expected = adapter_shapes(table, adapter.recipe).keys()
    if difference := sorted(found ^ expected):
        problem = "must hold" if difference[0] in expected else "must hold only the adapters of its recipe, found"
        raise UserError(f"{directory} {problem} {difference[0]}")
