"""Scores of the tasks of a suite, kept as each is scored, until the suite's manifest has all of them.

A task may fail, and a job may be killed. The scores of the other tasks then stand in `scored_tasks.json` beside the
logs, each with a digest of all that it depends on, and the next attempt scores the rest alone. The harness is called
once per task, so that the batches of a task, and the bits of its scores, do not depend on the tasks beside it.
"""

from __future__ import annotations

import dataclasses
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
        files.write_json(self.path, {task: [self._seal(task, part), part] for task, part in self.tasks.items()})

    def _seal(self, task: str, part: Any) -> str:
        """Return the digest of a task's scores and of all that they depend on."""
        return manifest.digest_of([self.keys[task], part])

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
    kept = KeptScores(directory, keys, {})
    for task, entry in files.read_cache(kept.path).items():
        if isinstance(entry, list) and len(entry) == 2 and task in keys and entry[0] == kept._seal(task, entry[1]):
            paths = {directory.parent / name: described for name, described in entry[1]["outputs"].items()}
            if all(path.exists() and manifest.describe(path) == described for path, described in paths.items()):
                kept.tasks[task] = entry[1]
    logs = {directory.parent / name for part in kept.tasks.values() for name in part["outputs"]}
    for path in (directory / sample_logs.DIRECTORY).glob("*"):
        if path not in logs:
            path.unlink()
    if kept.tasks:
        advice = f"delete {kept.path} to score them again"
        logger.info("%s: scored in an earlier attempt (%s)", ", ".join(kept.tasks), advice)
    return kept
