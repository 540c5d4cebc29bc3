"""The grid: keys of a training and the values to try, and the cells that they make."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from stages.lib.errors import UserError

KEYS = (
    *("sharding", "shard_degree", "cpu_offload", "activation_checkpointing.mode", "activation_checkpointing.ratio"),
    *("micro_batch_size", "compile", "deterministic", "dtype", "float8", "cuda_graphs"),
    *("optimizer.name", "optimizer.state_dtype"),
)
"""Keys that change the speed or the memory of a step, but neither its samples nor the model."""

Cell = dict[str, Any]
"""{dotted key: value}"""


def parse(words: Sequence[str]) -> dict[str, list[Any]]:
    """Return {key: values} of `KEY=VALUE,VALUE,...` words. Raises UserError."""
    import yaml

    grid: dict[str, list[Any]] = {}
    for word in words:
        key, equals, values = word.partition("=")
        if key not in KEYS:
            raise UserError(f"--grid must have keys among {', '.join(KEYS)}, got {key!r}")
        if key in grid:
            raise UserError(f"--grid must name each key once, got {key} again")
        if not equals or "" in values.split(","):
            raise UserError(f"--grid must be KEY=VALUE,VALUE,..., got {word!r}")
        try:
            grid[key] = [yaml.safe_load(value) for value in values.split(",")]
        except yaml.YAMLError:
            raise UserError(f"--grid {key} must have numbers, words, true or false as values, got {values!r}") from None
    return grid


def cells(grid: Mapping[str, Sequence[Any]]) -> list[Cell]:
    """Return all combinations; the last key changes first."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def applied(recipe: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    """Return the keys of a recipe with those of a cell in their place."""
    result = dict(recipe)
    for key, value in cell.items():
        group, dot, name = key.rpartition(".")
        if dot:
            own = result.get(group)
            if not isinstance(own, dict | None):
                raise UserError(f"{group} of the run must be a mapping beside --grid {key}, got {own!r:.100}")
            result[group] = {**(own or {}), name: value}
        else:
            result[key] = value
    return result


def words_of(cell: Cell) -> str:
    """Return a cell in the form of --grid: `sharding=full micro_batch_size=2`."""
    return " ".join(f"{key}={shown(value)}" for key, value in cell.items())


def shown(value: Any) -> str:
    """Return a value as YAML writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
