"""The checkpoints of a run directory: the choice of the one to start from, and of those to keep; asynchronous saves.

The state is copied to the CPU, and a thread writes the copy while the training runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from stages.lib import manifest
from stages.lib.checkpoints import dcp
from stages.lib.checkpoints.commit import (
    COMMIT,
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
from stages.lib.run_directory.events import Lineage, read_events
from stages.lib.run_directory.run_identity import OWNER_KEYS, RunIdentity

if TYPE_CHECKING:
    from stages.lib.manifest import ModelManifest
    from stages.lib.run_directory.lease import Lease


OPTIONAL = ("loss_guard",)
"""Tensors that old checkpoints do not have."""


class CheckpointManager:
    """The checkpoints of one run. All ranks make it and call its methods together.

    `identity`: of the run; a checkpoint of another run is refused. `keep`: number of checkpoints that are kept beside
    those of milestones. `previous`: the milestone from which each checkpoint to start from must descend, in bits.
    """

    def __init__(
        self,
        directory: Path,
        identity: RunIdentity,
        keep: int,
        checkpointer: AsyncCheckpointer,
        lease: Lease | None,
        previous: ModelManifest | None = None,
    ) -> None:
        self.directory, self.identity, self.keep, self.previous = directory, identity, keep, previous
        self.checkpointer, self.lease = checkpointer, lease

    def clear_leftovers(self) -> None:
        """Delete what a killed trainer left, before the first save."""
        with collectives.raise_on_all_ranks():
            if self.lease:
                self.lease.check()
                clear_leftovers(self.directory)

    def newest(self, at_most: int) -> tuple[int, dict[str, Any]] | None:
        """Return (step, commit) of the newest complete and unchanged checkpoint up to a step, or None.

        The first rank lists the directory for all: ranks that saw different lists would wait for each other. Raises
        UserError if no checkpoint descends from the milestone before.
        """
        first = dist.get_rank() == 0
        with collectives.raise_on_all_ranks():
            candidates = self._candidates(at_most) if first else None
        for step in collectives.broadcast_object(candidates):
            directory = directory_of(self.directory, step)
            commit = collectives.broadcast_object(read_commit(directory) if first else None)
            key = self.identity.first_difference(commit, OWNER_KEYS)
            if key is not None:
                raise UserError(
                    f"{directory} belongs to another {key} ({_short(commit.get(key))}) than this run "
                    f"({_short(self.identity.to_json().get(key))}); move it away"
                )
            try:
                with collectives.raise_on_all_ranks():
                    verify(directory, commit, dist.get_rank(), dist.get_world_size())
                return step, commit
            except UserError as error:
                if first:
                    logger.warning("skipping a damaged checkpoint: %s", error)
        with collectives.raise_on_all_ranks():
            if first and self.previous is not None:
                raise UserError(self._no_descendant(self.previous))
        return None

    def _candidates(self, at_most: int) -> list[int]:
        """Return the steps of the complete checkpoints that descend from the milestone before, the newest first."""
        steps = complete_steps(self.directory, at_most)[::-1]
        if self.previous is None:
            return steps
        lineage, milestone = Lineage(read_events(self.directory)), manifest.commit_digest(self.previous.identity)
        descendants = []
        for step in steps:
            if lineage.descends(self.commit_digest(step), milestone):
                descendants.append(step)
            elif step >= self.previous.identity["step"]:
                logger.warning(
                    "skipping a checkpoint of another lineage: %s does not descend from %s",
                    directory_of(self.directory, step),
                    self.previous.path,
                )
        return descendants

    def _no_descendant(self, previous: ModelManifest) -> str:
        directory = directory_of(self.directory, previous.identity["step"])
        found = "is missing"
        if directory.exists():
            found = "is damaged, or was saved by another training than the one that the manifest describes"
        return (
            f"--previous {previous.path} lists the checkpoint {directory}, which {found}, and no later checkpoint "
            f"descends from it; expected its files as the manifest lists them: restore them from a copy, or train it "
            f"again: delete {previous.path} and run the workflow again"
        )

    def commit_digest(self, step: int) -> str:
        """Return the sha256 of a checkpoint's commit.json, which names its content in events.jsonl."""
        return manifest.describe(directory_of(self.directory, step) / COMMIT)["sha256"]

    def load(self, step: int, tensors: dict[str, Any]) -> None:
        """Fill `tensors`, nested as for `save`, from the checkpoint of a step."""
        directory = directory_of(self.directory, step)
        held = {key.partition(".")[0] for key in dcp.keys_of(directory)}
        present = {key: value for key, value in tensors.items() if key not in OPTIONAL or key in held}
        dcp.load(directory, present)

    def save(self, step: int, tensors: dict[str, Any], progress: dict[str, int], done: Callable[[float], None]) -> None:
        """Save; `done(seconds)` is called on each rank when the checkpoint is committed, before older ones are deleted.

        `progress`: keys of commit.json beside the step and the run's identity.
        """
        directory = directory_of(self.directory, step)

        def committed(seconds: float) -> None:
            done(seconds)  # first: a kill must not leave only checkpoints of which no event tells the descent
            self._remove(beyond_keep, self.checkpointer.group)

        def beyond_keep() -> list[int]:
            # later checkpoints belong to another milestone: they stay
            rolling = [other for other in complete_steps(self.directory, step) if not self._is_milestone(other)]
            return rolling[: -self.keep]

        self.checkpointer.save(
            directory, tensors, {"step": step, **progress, **self.identity.to_json()}, self.lease, committed
        )

    def _is_milestone(self, step: int) -> bool:
        return (directory_of(self.directory, step) / MILESTONE).exists()

    def before(self, step: int, now: int) -> tuple[int, dict[str, Any]] | None:
        """Return (step, commit) of the newest checkpoint before a step, but not before the last milestone, or None.

        `now`: the current step of the training; later checkpoints belong to another milestone.
        """
        found = 0
        if dist.get_rank() == 0:
            complete = complete_steps(self.directory, now)
            milestones = [known for known in complete if self._is_milestone(known)]
            found = max([known for known in complete if known < step] + milestones[-1:], default=0)
        found = collectives.broadcast_object(found)
        return self.newest(found)

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


class AsyncCheckpointer:
    """Writes one checkpoint at a time. All ranks make one and call its methods together.

    DCP hangs if it shares a process group with the training, so the checkpointer has its own.
    """

    def __init__(self, asynchronous: bool) -> None:
        self.asynchronous = asynchronous
        self.group = dist.new_group(backend="gloo")
        self._staged: dict[str, Any] | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def prepare(self, tensors: dict[str, Any]) -> None:
        """Allocate the copies, so that the first save is as fast as the others, and none fails for lack of memory."""
        if self.asynchronous:
            self._staged = _copied(tensors, self._staged)

    def save(
        self,
        directory: Path,
        tensors: dict[str, Any],
        facts: dict[str, Any],
        lease: Lease | None,
        done: Callable[[float], None],
    ) -> None:
        """Save as `dcp.save` does, in the background; `done(seconds)` is called when the checkpoint is committed.

        `tensors` may change as soon as this returns. Waits for the save before, and raises its error.
        """
        self.wait()

        def write(state: dict[str, Any]) -> None:
            begun = time.monotonic()
            try:
                dcp.save(directory, state, facts, lease, self.group)
                done(time.monotonic() - begun)
            except BaseException as error:  # raised again by `wait`; DCP's errors do not derive from Exception
                self._error = error

        if not self.asynchronous:
            write(tensors)
            self.wait()
            return
        self._staged = _copied(tensors, self._staged)
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        self._thread = threading.Thread(target=write, args=(self._staged,), name="save", daemon=True)
        self._thread.start()

    def failed(self) -> bool:
        """Return True if the save in flight failed: then all ranks must call `wait`, which raises."""
        return self._error is not None

    def wait(self) -> None:
        """Wait for the save in flight, and raise its error: a UserError on all ranks together for a failing disk."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error


def _copied(value: Any, buffers: Any) -> Any:
    """Return a CPU copy of nested tensors, in the memory of the earlier copy `buffers` if it is not None."""
    if isinstance(value, dict):
        return {key: _copied(item, None if buffers is None else buffers[key]) for key, item in value.items()}
    source = collectives.local_tensor(value)
    if buffers is None:
        pinned = source.device.type == "cuda"
        target = torch.empty(source.shape, dtype=source.dtype, pin_memory=pinned)
    else:
        target = collectives.local_tensor(buffers)
    target.copy_(source.detach(), non_blocking=True)
    # DTensor.from_local would move the copy back to the mesh's device
    return DTensor(target, value._spec, requires_grad=False) if isinstance(value, DTensor) else target
