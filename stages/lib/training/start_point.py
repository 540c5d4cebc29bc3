"""The state from which a training starts: initial weights or a checkpoint, and the room for the next checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from stages.lib import space
from stages.lib.distributed import collectives

if TYPE_CHECKING:
    from stages.lib.training.trainer import Trainer


def initialize(trainer: Trainer) -> None:
    """Set the state before the first step."""
    initial = trainer.run.initial
    trainer.state.init_weights(initial)
    trainer.step = trainer.rollbacks = 0
    trainer.samples_seen = initial.samples_before if initial else 0


def load(trainer: Trainer, step: int, commit: dict[str, Any]) -> None:
    """Load the checkpoint of a step. `commit`: the content of its commit.json."""
    tensors = trainer.state.tensors()
    trainer.checkpoints.load(step, tensors)
    trainer.state.load_base(trainer.run.initial)
    torch.set_rng_state(tensors["rng"])
    trainer.step = trainer.saved_at = step
    trainer.samples_seen, trainer.rollbacks = commit["samples"], commit.get("rollbacks", 0)


def check_room(trainer: Trainer) -> None:
    """Raise UserError if the disk has no room, or the job no time, for the next checkpoint."""
    with collectives.raise_on_all_ranks():
        if trainer.is_first:
            trainer.stop_requests.check_time(trainer.start.end_of_job)
            num_bytes = trainer.state.num_bytes()[1]
            space.require(trainer.directory, num_bytes, "a checkpoint", num_files=dist.get_world_size())
