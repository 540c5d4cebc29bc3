"""The directory of the results: its name in the config, and the checks before jobs write there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stages.lib.errors import UserError

DEFAULT = "results"
CODE = ("workflow", "stages", "tools", "config", "profiles", "tests", "benchmarks", "docs", ".git", ".venv")
"""Folders of the checkout in which no results may lie."""

WILDCARDS = "{}<>"
"""Characters that Snakemake takes for wildcards and path variables."""


def directory_of(config: Mapping[str, Any], home: Path) -> str:
    """Return the directory of the results of a checked config: `results` by default.

    Raises UserError if it cannot be one. `home`: the checkout.
    """
    given = config.get("results", DEFAULT)
    if not given or not given.isprintable() or set(given) & set(WILDCARDS) or given.startswith("~"):
        raise UserError(
            "results must be a path of printable characters, without { } < > and without ~ at its beginning, "
            f"got {given!a:.200}"
        )
    directory = os.path.normpath(given)
    place = Path(os.path.abspath(directory))
    if place in (Path.cwd(), *Path.cwd().parents, home, *home.parents):
        raise UserError(f"results must be a directory of its own, and {given} holds the working directory or the code")
    if place.is_relative_to(home) and place.relative_to(home).parts[0] in CODE:
        raise UserError(f"results must be a directory outside Caravan's code, got {given}")
    if ".snakemake" in place.parts:
        raise UserError(f"results must be a directory outside Snakemake's own, got {given}")
    if os.path.lexists(place) and not place.is_dir():
        raise UserError(f"results must be a directory, and {given} is a file")
    return directory


def check_below_storage(directory: str) -> None:
    """Raise UserError if a directory is not below the prefix of a default storage provider."""
    if os.path.isabs(directory) or directory.startswith(".."):
        raise UserError(f"results must be a path below the default storage prefix, got {directory}")


def check_writable(directory: Path) -> None:
    """Raise UserError if a directory, or the place where it will be made, cannot be written."""
    place = next(path for path in (directory.absolute(), *directory.absolute().parents) if os.path.lexists(path))
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise UserError(f"{directory} must be a directory that can be written, and {place} cannot be written")


def sentence_of_others(directory: str, runs: Iterable[str], stale: Iterable[str], again: bool) -> str | None:
    """Return a sentence if a directory has results of another config that this one would replace; None if not.

    `runs`: names of the config's runs. `stale`: those whose milestones were made by another recipe. `again`: they are
    planned again.
    """
    gone = sorted(_runs_of_summary(Path(directory, "summary.json")) - {*runs})
    found = [f"scores of {_names(gone)}, which the config does not have"] if gone else []
    if again and (other := sorted(stale)):
        found.append(f"models of {_names(other)} by another recipe")
    if not found:
        return None
    return f"{directory} has {' and '.join(found)}: to keep them, set `results` in the config to another directory"


def _runs_of_summary(path: Path) -> set[str]:
    """Return the names of the runs whose scores a summary has; none if it cannot be read."""
    try:
        inputs = json.loads(path.read_bytes())["identity"]["inputs"]
        return {parts[1] for parts in (name.split("/") for name in inputs) if parts[0] == "runs"}
    except (OSError, ValueError, LookupError, TypeError):
        return set()


def _names(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} others"
