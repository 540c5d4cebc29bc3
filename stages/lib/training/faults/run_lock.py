"""A training's turn in its run directory: one trainer at a time, whoever else was started."""

import contextlib
import os
import socket
import time

import torch.distributed as dist

from stages.lib.distributed import collectives
from stages.lib.errors import Preempted, UserError
from stages.lib.log import logger
from stages.lib.run_directory import crashes, journal
from stages.lib.run_directory.lease import HeldError, Lease
from stages.lib.training.faults.stop_requests import REASONS, StopRequests

LOOK_SECONDS = 5.0
SHARED_SECONDS = 60.0
"""How late a shared file system may show a new file."""


@contextlib.contextmanager
def taken(directory, begin):
    """Hold the lease on a run directory (made where it is missing); all ranks call it, and the first alone gets it.

    A job of Slurm waits for a live trainer: it may be an orphan, whose Snakemake was killed, and it does the same work.
    Elsewhere a person is told. Raises CollectiveError or Preempted on all ranks alike. `begin`: a `start.Start`.
    """
    lease = None
    try:
        lease = _wait(directory, begin)
        _check_shared(directory)
        with collectives.raise_on_all_ranks():
            if dist.get_rank() == 0:
                for name in ("metrics.jsonl", "events.jsonl"):
                    journal.mend(directory / name)
                crashes.begin(directory, begin.automatic)
        yield lease
    finally:
        if lease:
            lease.release()


def _wait(directory, begin):
    asked, told = StopRequests(None, begin.deadline, 0), False
    with asked.heard():
        while True:
            lease, holder = _try(directory)
            holder, code = collectives.broadcast_object((holder, asked.code()))
            if holder is None:
                return lease
            if code:
                raise Preempted(f"stopped by {REASONS[code]} while it waited for its turn; start it again")
            if dist.get_rank() == 0 and not told:
                logger.warning("waiting for another trainer: %s", holder)
                told = True
            time.sleep(LOOK_SECONDS)


def _check_shared(directory):
    """Raise CollectiveError where a rank does not see the lease: its part of a checkpoint would lie elsewhere."""
    with collectives.raise_on_all_ranks():
        deadline = time.monotonic() + SHARED_SECONDS
        while not (directory / "lease.json").exists():
            if time.monotonic() > deadline:
                raise UserError(
                    f"--train-dir {directory.parent} must lie on a file system that all nodes share: "
                    f"{socket.gethostname()} does not see {directory / 'lease.json'}"
                )
            time.sleep(0.1)


def _try(directory):
    """(lease, why there is none): on the first rank one of them is None, on the others both are."""
    with collectives.raise_on_all_ranks():
        if dist.get_rank() == 0:
            _make(directory)
            try:
                return Lease(directory), None
            except HeldError as error:
                if "SLURM_JOB_ID" not in os.environ:
                    raise
                return None, str(error)
    return None, None


def _make(directory):
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--train-dir {directory.parent} must be a directory that can be written: {error.strerror}"
        ) from None
