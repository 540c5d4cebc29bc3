"""Saving while the training goes on: the state is copied to the CPU, and a thread writes the copy."""

import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from stages.lib.checkpoints import dcp
from stages.lib.distributed import local_shards


class AsyncCheckpointer:
    """Writes one checkpoint at a time. All ranks make one and call its methods together.

    DCP hangs when it shares a process group with the training: the saver has its own.
    """

    def __init__(self, asynchronous):
        self.asynchronous = asynchronous
        self.group = dist.new_group(backend="gloo")
        self._staged = None
        self._thread = self._error = None

    def prepare(self, tensors):
        """Make the memory of the copies, so that the first save is no slower than the others, and none fails for it."""
        if self.asynchronous:
            self._staged = _copied(tensors, self._staged)

    def save(self, directory, tensors, facts, lease, done):
        """Save as `checkpoint.save` does, behind the training's back; `done(seconds)` is called when it is committed.

        `tensors` may change as soon as this returns. Waits for the save before it, and raises what that one raised.
        """
        self.wait()
        if not self.asynchronous:
            self._write(directory, tensors, facts, lease, done)
            return self.wait()
        self._staged = _copied(tensors, self._staged)
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        arguments = (directory, self._staged, facts, lease, done)
        self._thread = threading.Thread(target=self._write, args=arguments, name="save", daemon=True)
        self._thread.start()

    def failed(self):
        """Whether the save in flight failed: then all ranks must call `wait`, which raises."""
        return self._error is not None

    def wait(self):
        """Wait for the save in flight. Raises what it raised: a UserError on all ranks alike for a failing disk."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(self, directory, tensors, facts, lease, done):
        begun = time.monotonic()
        try:
            dcp.save(directory, tensors, facts, lease, self.group)
            done(time.monotonic() - begun)
        except BaseException as error:  # raised again in the training's thread; DCP's errors are no Exception
            self._error = error


def _copied(value, buffers):
    """A copy of nested tensors on the CPU, in the memory of the copy before where there is one."""
    if isinstance(value, dict):
        return {key: _copied(item, None if buffers is None else buffers[key]) for key, item in value.items()}
    source = local_shards.local(value)
    if buffers is None:
        pinned = source.device.type == "cuda"
        target = torch.empty(source.shape, dtype=source.dtype, pin_memory=pinned)
    else:
        target = local_shards.local(buffers)
    target.copy_(source.detach(), non_blocking=True)
    # DTensor.from_local would bring the copy back to the mesh's device
    return DTensor(target, value._spec, requires_grad=False) if isinstance(value, DTensor) else target
