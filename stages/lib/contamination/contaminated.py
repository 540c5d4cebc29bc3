"""The contaminated items of a suite in a corpus, by the manifest of stages.find_contamination."""

from __future__ import annotations

from typing import Any

from stages.lib import manifest
from stages.lib.contamination.items import read_lines
from stages.lib.manifest import Manifest

FILE = "found_items.jsonl.gz"


def rate_of(made: Manifest, task: str) -> float | None:
    """Return the contaminated share of a task's items; None for a task without items."""
    found: dict[str, Any] | None = made.identity["results"].get(task)
    return None if found is None else found["rate"]


def doc_ids(made: Manifest) -> dict[str, set[int]]:
    """Return {task: numbers of its contaminated documents}, for each task with items.

    Raises UserError if the file changed since the manifest was written.
    """
    ids: dict[str, set[int]] = {task: set() for task in made.identity["results"]}
    for name, described in made.identity["outputs"].items():
        manifest.check_content(made.directory / name, described, made.path)
        for row in read_lines(made.directory / name):
            if row["contaminated"]:
                ids[row["task"]].add(row["doc_id"])
    return ids
