"""The lock on a run directory: one trainer at a time."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from stages.lib.distributed import collectives
from stages.lib.errors import Preempted, UserError
from stages.lib.log import logger
from stages.lib.run_directory import crashes, journal
from stages.lib.run_directory.lease import HeldError, Lease
from stages.lib.training.faults.stop_requests import REASONS, StopRequests

if TYPE_CHECKING:
    from stages.lib.training.options import Start

RETRY_SECONDS = 5.0
VISIBLE_SECONDS = 60.0
"""Longest time until a shared file system shows a new file on another node."""


@contextlib.contextmanager
def acquire_run_lock(directory: Path, begin: Start) -> Iterator[Lease | None]:
    """Hold the lease on a run directory, which is created if missing. Collective; yields None on all but rank 0.

    A Slurm job waits for a live trainer: it may be the orphan of a killed Snakemake, which does the same work. Outside
    Slurm a live trainer is an error. Raises CollectiveError or Preempted on all ranks.
    """
    lease = None
    try:
        lease = _wait_for_lease(directory, begin)
        _check_shared(directory)
        with collectives.raise_on_all_ranks():
            if dist.get_rank() == 0:
                for call in directory.glob(".watchdog*"):  # of a killed trainer
                    call.unlink(missing_ok=True)
                for name in ("metrics.jsonl", "events.jsonl"):
                    journal.end_last_line(directory / name)
                crashes.begin_attempt(directory, begin.automatic)
        yield lease
    finally:
        if lease:
            lease.release()


def _wait_for_lease(directory: Path, begin: Start) -> Lease | None:
    requests, logged = StopRequests(None, begin.deadline, 0), False
    with requests.handle_signals():
        while True:
            lease, held = _try_lease(directory)
            held, code = collectives.broadcast_object((held, requests.code()))
            if held is None:
                return lease
            if code:
                raise Preempted(f"stopped by {REASONS[code]} while waiting for the lease; restart to resume")
            if dist.get_rank() == 0 and not logged:
                logger.warning("waiting for another trainer: %s", held)
                logged = True
            time.sleep(RETRY_SECONDS)


def _check_shared(directory: Path) -> None:
    """Raise CollectiveError if a rank does not see the lease: its shards of a checkpoint would be on another disk."""
    with collectives.raise_on_all_ranks():
        deadline = time.monotonic() + VISIBLE_SECONDS
        while not (directory / "lease.json").exists():
            if time.monotonic() > deadline:
                raise UserError(
                    f"--train-dir {directory.parent} must be on a file system that all nodes share: "
                    f"{socket.gethostname()} does not see {directory / 'lease.json'}"
                )
            time.sleep(0.1)


def _try_lease(directory: Path) -> tuple[Lease | None, str | None]:
    """Return (lease, error): one of them is None on the first rank, both are None on the others."""
    with collectives.raise_on_all_ranks():
        if dist.get_rank() == 0:
            _create(directory)
            try:
                return Lease(directory), None
            except HeldError as error:
                if "SLURM_JOB_ID" not in os.environ:
                    raise
                return None, str(error)
    return None, None


def _create(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--train-dir {directory.parent} must be a writable directory: {error.strerror}") from None
