"""The end of a training that was asked to stop: it saves, and is to be restarted."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NoReturn

import torch.distributed as dist

from stages.lib.errors import Preempted
from stages.lib.training.faults import stop_requests
from stages.lib.training.rollback import Rollback

if TYPE_CHECKING:
    from stages.lib.training.trainer import Trainer


class StopRequested(Exception):
    """A request to stop that all ranks received; the text is its reason."""


def save_and_stop(trainer: Trainer, reason: str) -> NoReturn:
    """Save, and stop."""
    with contextlib.suppress(Rollback):  # the next start reaches the same bad steps, and rolls back then
        trainer.finish_step()
        if trainer.saved_at != trainer.step:
            trainer.save()
    stop_now(trainer, reason)


def stop_now(trainer: Trainer, reason: str) -> NoReturn:
    """Leave a marker in the run directory, and raise Preempted on all ranks."""
    trainer.finish()
    if trainer.is_first:
        stop_requests.leave_marker(trainer.directory, reason, trainer.saved_at or 0)
    dist.barrier()  # otherwise another rank would print the reason before the first rank's last lines
    saved = "before its first checkpoint" if trainer.saved_at is None else f"saved at step {trainer.saved_at}"
    raise Preempted(f"stopped by {reason}, {saved}; start it again to resume")
