"""The lock on a run directory: one trainer at a time."""

from __future__ import annotations

import contextlib
import shlex
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from stages.lib.distributed import collectives
from stages.lib.errors import Preempted, UserError
from stages.lib.log import logger
from stages.lib.run_directory import events, history, journal
from stages.lib.run_directory.lease import FILE, HeldError, Lease, job_number
from stages.lib.training.stop_requests import REASONS, STOP_FILE, StopRequests

if TYPE_CHECKING:
    from stages.lib.training.settings.options import Start

RETRY_SECONDS = 5.0
VISIBLE_SECONDS = 60.0
"""Longest time until a shared file system shows a new file on another node."""

LEFTOVERS = (".lease.*", ".*.tmp", ".watchdog*", "hang/*.writing")
"""Files that killed trainers leave in a run directory, beside the lease and the checkpoints."""


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
                _remove_leftovers(directory)
                for name in (history.FILE, events.FILE):
                    journal.end_last_line(directory / name)
                history.begin_attempt(directory, begin.automatic)
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
        while not (directory / FILE).exists():
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
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                reason = f"--train-dir {directory.parent} must be a writable directory: {error.strerror}"
                raise UserError(reason) from None
            try:
                return Lease(directory), None
            except HeldError as error:
                # the file reaches a trainer on any host and in any container
                stop = f"touch {shlex.quote(str(directory / STOP_FILE))}"
                stop = f"kill {error.holder.pid}" if error.holder.runs_here() else stop
                text = f"{error}; wait for it, or stop it with `{stop}` (it saves first)"
                if job_number() is None:
                    raise UserError(text) from None
                return None, text
    return None, None


def clear_leftovers(directory: Path) -> None:
    """Delete what killed trainers left in a run directory beside the checkpoints, if no trainer works there."""
    if not any(any(directory.glob(name)) for name in (FILE, *LEFTOVERS)):
        return
    with contextlib.suppress(UserError):  # a live trainer holds the lease, or the directory cannot be written
        held = Lease(directory)
        _remove_leftovers(directory)
        held.release()


def _remove_leftovers(directory: Path) -> None:
    """Delete the leftovers; this process must hold the lease."""
    for name in LEFTOVERS:
        for path in directory.glob(name):
            with contextlib.suppress(OSError):
                path.unlink()
