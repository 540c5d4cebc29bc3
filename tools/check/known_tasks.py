"""Check of the names of tasks, before a job scores with them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path

from stages.lib import files
from stages.lib.scoring import harness
from stages.lib.scoring.tasks import local_tasks

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
    known = {name for name in files.read_cache(cache / KEPT) if name.startswith(f"{version}:")}
    before = set(known)
    for where, (tasks, include_path) in suites.items():
        others = {f"{version}:{include_path}:{task}": task for task in tasks if task not in local_tasks.NAMES}
        if set(others) <= known:
            continue
        listed = ", ".join([*local_tasks.NAMES, *([f"of include_path {include_path}"] if include_path else [])])
        harness.task_manager([include_path] if include_path else [], list(others.values()), listed, f"{where}.tasks")
        known |= set(others)
    if known != before:
        files.write_cache(cache / KEPT, dict.fromkeys(sorted(known), True))
