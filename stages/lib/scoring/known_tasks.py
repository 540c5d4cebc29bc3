"""Check of the names of tasks, before a job scores with them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.scoring import harness, local_tasks

KEPT = "tasks.json"


def check(suites: Mapping[str, tuple[Sequence[str], str | None]], cache: Path) -> None:
    """Raise UserError for the first task that neither Caravan nor lm-evaluation-harness has.

    `suites`: {key of the suite: (tasks, include_path)}. The harness takes seconds to list its tasks, so the directory
    `cache` keeps the names that it knows.
    """
    try:
        version = importlib.metadata.version("lm_eval")
    except importlib.metadata.PackageNotFoundError:
        return  # evaluate runs elsewhere
    try:
        kept = json.loads((cache / KEPT).read_text(encoding="utf-8"))
        known = set(kept[version])
    except (OSError, ValueError, KeyError, TypeError):
        known = set()
    before = set(known)
    for where, (tasks, include_path) in suites.items():
        others = {f"{include_path}:{task}": task for task in tasks if task not in local_tasks.NAMES}
        if set(others) <= known:
            continue
        listed = ", ".join([*local_tasks.NAMES, *([f"of include_path {include_path}"] if include_path else [])])
        harness.task_manager([include_path] if include_path else [], list(others.values()), listed, f"{where}.tasks")
        known |= set(others)
    if known != before:
        with contextlib.suppress(UserError, OSError):  # a directory that cannot be written: listed again next time
            files.write_json(cache / KEPT, {version: sorted(known)})
