"""Asynchronous saves: the state is copied to the CPU, and a thread writes the copy while the training runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from stages.lib.checkpoints import dcp
from stages.lib.distributed import local_shards

if TYPE_CHECKING:
    from stages.lib.run_directory.lease import Lease


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
        if not self.asynchronous:
            self._write(directory, tensors, facts, lease, done)
            self.wait()
            return
        self._staged = _copied(tensors, self._staged)
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        arguments = (directory, self._staged, facts, lease, done)
        self._thread = threading.Thread(target=self._write, args=arguments, name="save", daemon=True)
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

    def _write(
        self,
        directory: Path,
        tensors: dict[str, Any],
        facts: dict[str, Any],
        lease: Lease | None,
        done: Callable[[float], None],
    ) -> None:
        begun = time.monotonic()
        try:
            dcp.save(directory, tensors, facts, lease, self.group)
            done(time.monotonic() - begun)
        except BaseException as error:  # raised again by `wait`; DCP's errors do not derive from Exception
            self._error = error


def _copied(value: Any, buffers: Any) -> Any:
    """Return a CPU copy of nested tensors, in the memory of the earlier copy `buffers` if it is not None."""
    if isinstance(value, dict):
        return {key: _copied(item, None if buffers is None else buffers[key]) for key, item in value.items()}
    source = local_shards.local_tensor(value)
    if buffers is None:
        pinned = source.device.type == "cuda"
        target = torch.empty(source.shape, dtype=source.dtype, pin_memory=pinned)
    else:
        target = local_shards.local_tensor(buffers)
    target.copy_(source.detach(), non_blocking=True)
    # DTensor.from_local would move the copy back to the mesh's device
    return DTensor(target, value._spec, requires_grad=False) if isinstance(value, DTensor) else target
