"""The scheduler's job around this process, and Slurm's record of another job."""

from __future__ import annotations

import os
import subprocess

ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")
}
"""Slurm's states of a job that does not run and will not."""


def number() -> str | None:
    """Return the number of this job; None outside a job. A launcher passes that of another scheduler."""
    return os.environ.get("CARAVAN_JOB_ID") or os.environ.get("SLURM_JOB_ID")


def cluster() -> str | None:
    """Return the name of the cluster: job numbers are unique only within it."""
    return os.environ.get("SLURM_CLUSTER_NAME")


def restarts() -> int:
    """Return the number of times that the scheduler requeued this job.

    The launcher passes it, because Snakemake's Slurm plugin drops SLURM_RESTART_COUNT.
    """
    found = os.environ.get("CARAVAN_JOB_RESTARTS") or os.environ.get("SLURM_RESTART_COUNT") or ""
    return int(found) if found.isdecimal() else 0


def has_ended(job: str) -> bool:
    """Return whether Slurm knows a job of this cluster, and knows that it ended.

    A job that squeue does not list may still run: sites hide the jobs of other users (PrivateData=jobs).
    """
    command = ["squeue", "--noheader", "--states=all", "--jobs", job, "--format", "%T"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    states = set(done.stdout.split())
    return not done.returncode and bool(states) and states <= ENDED
