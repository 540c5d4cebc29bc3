"""The last lines of a workflow: what it made and where to look, or the reasons of failed jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snakemake.jobs import Job

ERROR = " ERROR "
"""Part of the last log line of a stage that ended with a sentence, see `stages.lib.log`."""


def last_errors(jobs: Iterable[Job]) -> str:
    """Return one line per failed job: the last error of its log, or the log's path."""
    lines = [_last_error(job.rule.name, [Path(path) for path in job.log]) for job in jobs]
    return "\n".join(dict.fromkeys(sorted(lines)))


def _last_error(rule: str, logs: list[Path]) -> str:
    for path in logs:
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        errors = [line.partition(ERROR)[2] for line in lines if ERROR in line]
        return errors[-1] if errors else f"{rule} failed: see {path}"
    return f"{rule} failed without a log"


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
