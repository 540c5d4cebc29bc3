"""Jobs of a workflow in the queue of Slurm."""

from __future__ import annotations

import getpass
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

QUEUE_SECONDS = 10
"""Longest wait for squeue."""

FORMAT = "%i|%j|%T|%M|%l|%R|%Z"
TRAINING = ("pretrain", "finetune")


@dataclass(frozen=True)
class Job:
    """A job, with Slurm's words for its state and reason."""

    number: str
    name: str
    state: str
    elapsed: str
    limit: str
    reason: str
    """The nodes of a running job, in brackets why another waits."""

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.number:<12} {self.name}: {self.state}, {self.elapsed} of {self.limit}, {self.reason}"

    def trains(self, run: str) -> bool:
        """Return whether this is a training of a run, by its name: pretrain_RUN_MILESTONE."""
        clean = re.escape(re.sub(r"[^\w.-]+", "_", run))  # as the workflow makes names of jobs
        return re.fullmatch(rf"(?:{'|'.join(TRAINING)})_{clean}_(?:[0-9]{{8}}|epoch[0-9]+)", self.name) is not None


def jobs_of(directory: Path) -> list[Job]:
    """Return the Slurm jobs of this user that were submitted in a directory; [] without Slurm."""
    command = ["squeue", "--noheader", "--user", getpass.getuser(), "--format", FORMAT]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=QUEUE_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    separators = FORMAT.count("|")
    rows = [line.split("|", separators) for line in text.splitlines() if line.count("|") >= separators]
    return [
        Job(number, name, state.lower(), elapsed, limit, reason)
        for number, name, state, elapsed, limit, reason, place in rows
        if place == str(directory)
    ]
