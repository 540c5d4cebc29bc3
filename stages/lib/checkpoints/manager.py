"""The checkpoints of a run directory: the choice of the one to start from, and of those to keep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from stages.lib.checkpoints import dcp
from stages.lib.checkpoints.commit import (
    MILESTONE,
    clear_leftovers,
    complete_steps,
    directory_of,
    read_commit,
    remove,
    verify,
)
from stages.lib.distributed import collectives
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.run_directory.run_identity import OWNER_KEYS, RunIdentity

if TYPE_CHECKING:
    from stages.lib.checkpoints.async_checkpointer import AsyncCheckpointer
    from stages.lib.run_directory.lease import Lease

OPTIONAL = ("loss_guard",)
"""Tensors that old checkpoints do not have."""


class CheckpointManager:
    """The checkpoints of one run. All ranks make it and call its methods together.

    `identity`: of the run; a checkpoint of another run is refused. `keep`: number of checkpoints that are kept beside
    those of milestones.
    """

    def __init__(
        self, directory: Path, identity: RunIdentity, keep: int, checkpointer: AsyncCheckpointer, lease: Lease | None
    ) -> None:
        self.directory, self.identity, self.keep = directory, identity, keep
        self.checkpointer, self.lease = checkpointer, lease

    def clear_leftovers(self) -> None:
        """Delete what a killed trainer left, before the first save."""
        with collectives.raise_on_all_ranks():
            if self.lease:
                self.lease.check()
                clear_leftovers(self.directory)

    def newest(self, at_most: int) -> tuple[int, dict[str, Any]] | None:
        """Return (step, commit) of the newest complete and unchanged checkpoint up to a step, or None.

        The first rank lists the directory for all: ranks that saw different lists would wait for each other.
        """
        first = dist.get_rank() == 0
        steps = collectives.broadcast_object(complete_steps(self.directory, at_most) if first else None)
        for step in reversed(steps):
            directory = directory_of(self.directory, step)
            commit = collectives.broadcast_object(read_commit(directory) if first else None)
            self._check_owner(directory, commit)
            try:
                with collectives.raise_on_all_ranks():
                    verify(directory, commit, dist.get_rank(), dist.get_world_size())
                return step, commit
            except UserError as error:
                if first:
                    logger.warning("skipping a damaged checkpoint: %s", error)
        return None

    def _check_owner(self, directory: Path, commit: dict[str, Any]) -> None:
        key = self.identity.first_difference(commit, OWNER_KEYS)
        if key is not None:
            raise UserError(
                f"{directory} belongs to another {key} ({_short(commit.get(key))}) than this run "
                f"({_short(self.identity.to_json().get(key))}); move it away"
            )

    def load(self, step: int, tensors: dict[str, Any]) -> None:
        """Fill `tensors`, nested as for `save`, from the checkpoint of a step."""
        directory = directory_of(self.directory, step)
        held = {key.partition(".")[0] for key in dcp.keys_of(directory)}
        present = {key: value for key, value in tensors.items() if key not in OPTIONAL or key in held}
        dcp.load(directory, present)

    def save(self, step: int, tensors: dict[str, Any], progress: dict[str, int], done: Callable[[float], None]) -> None:
        """Save; `done(seconds)` is called on each rank when the checkpoint is committed and older ones are deleted.

        `progress`: keys of commit.json beside the step and the run's identity.
        """
        directory = directory_of(self.directory, step)

        def committed(seconds: float) -> None:
            self._remove(lambda: self._beyond_keep(step), self.checkpointer.group)
            done(seconds)

        self.checkpointer.save(
            directory, tensors, {"step": step, **progress, **self.identity.to_json()}, self.lease, committed
        )

    def _beyond_keep(self, at_most: int) -> list[int]:
        """Return the steps whose checkpoints may be deleted. Later ones belong to another milestone: they stay."""
        rolling = [step for step in complete_steps(self.directory, at_most) if not self._is_milestone(step)]
        return rolling[: -self.keep]

    def _is_milestone(self, step: int) -> bool:
        return (directory_of(self.directory, step) / MILESTONE).exists()

    def before(self, step: int, now: int) -> tuple[int, dict[str, Any]] | None:
        """Return (step, commit) of the newest checkpoint before a step, but not before the last milestone, or None.

        `now`: the current step of the training; later checkpoints belong to another milestone.
        """
        found = None
        if dist.get_rank() == 0:
            complete = complete_steps(self.directory, now)
            milestones = [known for known in complete if self._is_milestone(known)]
            found = max([known for known in complete if known < step] + milestones[-1:], default=None)
        found = collectives.broadcast_object(found)
        return None if found is None else self.newest(found)

    def forget_after(self, step: int, until: int) -> None:
        """Delete the checkpoints of steps (step, until], which a rollback took back."""
        self._remove(lambda: [later for later in complete_steps(self.directory, until) if later > step])

    def _remove(self, choose: Callable[[], list[int]], group: dist.ProcessGroup | None = None) -> None:
        """Delete the checkpoints of the steps that the first rank chooses, while it holds the lease."""
        with collectives.raise_on_all_ranks(group):
            if dist.get_rank() == 0:
                for step in choose():
                    if self.lease:
                        self.lease.check()
                    remove(directory_of(self.directory, step))


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return str(value)[:16]
