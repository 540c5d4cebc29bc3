"""Scores of the tasks of a suite, kept as each is scored, until the suite's manifest has all of them.

A task may fail, and a job may be killed. The scores of the other tasks then stand in `scored_tasks.json` beside the
logs, each with a digest of all that it depends on, and the next attempt scores the rest alone. The harness is called
once per task, so that the batches of a task, and the bits of its scores, do not depend on the tasks beside it.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.lib import files, manifest
from stages.lib.log import logger
from stages.lib.scoring import sample_logs

if TYPE_CHECKING:
    from stages.lib.scoring.harness import Scored

FILE = "scored_tasks.json"


@dataclass(frozen=True)
class KeptScores:
    """The tasks of a suite that are scored."""

    directory: Path
    """The directory of the suite: of its logs and local tasks."""

    keys: Mapping[str, str]
    """{task: digest of all that its scores depend on}, in the suite's order."""

    tasks: dict[str, dict[str, Any]]
    """{task that is scored: its part of the manifest}"""

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return self.directory / FILE

    @property
    def missing(self) -> list[str]:
        """Return the tasks that are not scored."""
        return [task for task in self.keys if task not in self.tasks]

    def add(self, task: str, scored: Scored) -> None:
        """Write the logs and the scores of a task."""
        outputs = sample_logs.write(self.directory, scored.samples)
        part = {field.name: getattr(scored, field.name) for field in dataclasses.fields(scored)}
        del part["samples"]
        self.tasks[task] = part | {"outputs": outputs}
        files.write_json(self.path, {task: {"key": self.keys[task], **part} for task, part in self.tasks.items()})

    def merged(self) -> dict[str, Any]:
        """Return the part of the suite's manifest that its tasks make."""
        merged: dict[str, Any] = {"results": {}, "groups": {}, "versions": {}, "num_fewshot": {}, "outputs": {}}
        for task in self.keys:
            for name in merged:
                merged[name] |= self.tasks[task][name]
        merged["task_versions"] = merged.pop("versions")
        return merged

    def delete(self) -> None:
        """Delete the file, whose content the suite's manifest has."""
        self.path.unlink(missing_ok=True)


def read(directory: Path, keys: Mapping[str, str]) -> KeptScores:
    """Return the scores that an earlier attempt left with the same keys and unchanged logs; other logs are deleted."""
    tasks = {}
    for task, part in files.read_cache(directory / FILE).items():
        if part.pop("key") == keys.get(task) and all(
            (directory.parent / name).exists() and manifest.describe(directory.parent / name) == described
            for name, described in part["outputs"].items()
        ):
            tasks[task] = part
    if not tasks:
        shutil.rmtree(directory / sample_logs.DIRECTORY, ignore_errors=True)
        return KeptScores(directory, keys, {})
    logs = {directory.parent / name for part in tasks.values() for name in part["outputs"]}
    for path in (directory / sample_logs.DIRECTORY).iterdir():
        if path not in logs:
            path.unlink()
    logger.info("%s: scored in an earlier attempt (delete %s to score them again)", ", ".join(tasks), directory / FILE)
    return KeptScores(directory, keys, tasks)
