"""The last line of a workflow that made everything: what it is, and where to look."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def last_line(targets: Sequence[str], files: Sequence[str], summary: str, page: str) -> str:
    """Return what was made. `files`: those that the targets name."""
    names = ", ".join(targets)
    if {"all", "report"} & {*targets} and Path(summary).exists():
        return f"{names} made: scores and problems of all runs are in {summary}, the report is {page}"
    others = [path for path in files if path not in targets]
    if not others:
        return f"{names} made"
    more = f", and {len(others) - 1} more" if len(others) > 1 else ""
    return f"{names} made: {others[-1]}{more}"
