"""The options of `summarize` for all results that exist, while trainings run or after a failed job."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

FOLDER = "so_far"
PATTERNS = {
    "models": "runs/*/models/*.json",
    "exports": "runs/*/export/*/manifest.json",
    "evaluations": "runs/*/eval/*/*.json",
    "baselines": "baselines/*/*/*.json",
    "contamination": "contamination/*/*.json",
    "ladders": "ladders/*.json",
    "corpora": "tokens/*/manifest.json",
    "lists": "sources/*/list.json",
}
OUTPUTS = {"scores": "scores.csv", "figures": "figures", "output": "summary.json"}


def add_found(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """Return `argv` with the manifests below its --results, and outputs in DIR/so_far; `argv` itself without one.

    Options that `argv` has too take precedence. Exits with the parser's error if DIR is not a directory.
    """
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--results", type=Path)
    results = own.parse_known_args(argv)[0].results
    if results is None:
        return list(argv)
    if not results.is_dir():
        parser.error(f"--results must be a directory, got {results}")
    found: list[str] = []
    for name, pattern in PATTERNS.items():
        paths = sorted(str(path) for path in results.glob(pattern) if not path.name.startswith("."))
        found += [f"--{name}", *paths] if paths else []
    found += ["--plan", str(results / "plan.json")]
    for name, file in OUTPUTS.items():
        found += [f"--{name}", str(results / FOLDER / file)]
    return [*found, *argv]
