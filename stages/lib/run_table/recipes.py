"""The recipe of each run as flat keys, and the keys in which runs differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stages.lib.manifest import Manifest
from stages.lib.report.results import Results

DIGITS = 12  # of a corpus' digest that are shown if its name is not known

Recipe = dict[str, Any]
"""{dotted key: value}; a list is JSON"""


def recipes_of(results: Results, expected: Mapping[str, Any]) -> dict[str, tuple[str, Recipe]]:
    """Return {run: (stage, recipe)} of each run's newest model.

    Beside the identity of its recipe it has `steps`, `corpus` and `initial`. `expected`: the data of --expect, whose
    `defaults` fill the keys that manifests leave out: without them a key that is missing has no value.
    """
    newest = {name: made for (name, _), made in results.models.items()}  # sorted by step: the last one stays
    defaults, runs = expected.get("defaults", {}), expected.get("runs", {})
    return {
        name: (made.stage, defaults.get(made.stage, {}) | _recipe(made, runs.get(name, {})))
        for name, made in newest.items()
    }


def _recipe(made: Manifest, run: Mapping[str, Any]) -> Recipe:
    steps = made.record.get("horizon", {}).get("steps") or made.identity["step"]
    corpus = run.get("corpus") or made.identity.get("corpus", "")[:DIGITS]
    more = {"steps": steps, "corpus": corpus, "initial": _name_of_model(made.record.get("initial"))}
    return flat(made.identity["recipe"]) | more


def _name_of_model(place: str | None) -> str | None:
    """Return the run and step of a milestone's manifest in short, or the sweep; another path as it is."""
    path = Path(place or "")
    if path.name == "best.json" and path.parents[1].name == "sweeps":
        return f"best of {path.parent.name}"
    return f"{path.parents[1].name} {path.stem.lstrip('0')}" if path.parent.name == "models" else place


def flat(data: Mapping[str, Any], prefix: str = "") -> Recipe:
    """Return nested mappings as {dotted key: value}, with lists as JSON."""
    found: Recipe = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, list) else value
    return found


def differing(recipes: Iterable[Recipe]) -> list[str]:
    """Return the keys in which recipes differ, sorted; `seed` last.

    What a run takes from its initial model, `initial.KEY`, is compared only with other runs that have one.
    """
    several = list(recipes)
    found = []
    for key in sorted({key for recipe in several for key in recipe}, key=lambda key: (key == "seed", key)):
        having = [recipe for recipe in several if key in recipe or not key.startswith("initial.")]
        if len({recipe.get(key) for recipe in having}) > 1:
            found.append(key)
    return found
