"""Communication of the doctor's ranks, by the key-value store of torchrun, and a time limit on calls that may hang.

It uses no process group, since whether one can be initialized is a check. A store also shows which ranks are missing.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stages.lib.errors import RankLocalError

if TYPE_CHECKING:
    import torch.distributed as dist


class CallTimeout(Exception):
    """The call did not return in time."""


def call_with_timeout(function: Callable[[], Any], seconds: float) -> Any:
    """Return what `function()` returns. Raises CallTimeout after `seconds`; the call then continues in its thread.

    It uses a thread, not a signal: a call in a library or on a dead file system does not return to Python.
    """
    done = {}

    def call() -> None:
        try:
            done["value"] = function()
        except BaseException as error:
            done["error"] = error

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise CallTimeout
    if "error" in done:
        raise done["error"]
    return done["value"]


JOIN_SECONDS = 60.0
MAX_POLL_SECONDS = 0.05  # between two checks of the store; the first checks follow each other faster


class NoAnswer(Exception):
    """Another rank did not set a key in time."""


class Rendezvous:
    """The ranks of this job, and the values that they share. A key can be set once and read by all ranks."""

    def __init__(
        self,
        store: dist.Store | LocalStore,
        rank: int = 0,
        world_size: int = 1,
        local_rank: int = 0,
        local_world_size: int = 1,
    ) -> None:
        """`store` has `set`, `get` and `check` of torch.distributed.Store."""
        self._store = store
        self.rank, self.world_size = rank, world_size
        self.local_rank, self.local_world_size = local_rank, local_world_size
        self.host = host_name()
        self.leaders = {0: self.host}
        """{first rank of each host: host name}; the same on all ranks after `CheckRunner.gather_hosts`."""
        self.missing: Sequence[int] = []
        """Ranks that did not join, or stopped answering."""
        self.activity = ""
        """Current activity of the check, for the message of a timeout."""

    def set(self, key: str, value: Any) -> None:
        """Share a JSON value with all ranks."""
        self._store.set(key, json.dumps(value))

    def get(self, key: str, seconds: float) -> Any:
        """Return the value of a key. Raises NoAnswer if it is not set within `seconds`."""
        until, wait = time.monotonic() + seconds, 0.0005
        # a blocking call would keep the connection from the other threads
        while not self._store.check([key]):
            if time.monotonic() > until:
                raise NoAnswer(f"no answer from another rank in time ({key})")
            time.sleep(wait)
            wait = min(2 * wait, MAX_POLL_SECONDS)
        return json.loads(self._store.get(key))

    def set_missing(self, missing: Sequence[int]) -> None:
        """Do not wait for these ranks in later checks."""
        self.missing = missing
        self.leaders = {rank: host for rank, host in self.leaders.items() if rank not in missing}

    @property
    def is_leader(self) -> bool:
        """True for the first rank of each host, which checks what the host's ranks have in common."""
        return self.local_rank == 0


class LocalStore:
    """The store of a single process, with the methods of torch.distributed.Store that Rendezvous uses."""

    def __init__(self) -> None:
        """Begin without keys."""
        self._values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        """Set a key."""
        self._values[key] = value

    def get(self, key: str) -> str:
        """Return the value of a key."""
        return self._values[key]

    def check(self, keys: Iterable[str]) -> bool:
        """Return whether all keys are set."""
        return self._values.keys() >= set(keys)


def host_name() -> str:
    """Return the node's name in Slurm, by which it is drained; outside Slurm the machine's name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def join() -> Rendezvous:
    """Return the rendezvous of the ranks in the environment of torchrun or mpiexec, or of one rank without them.

    Raises RankLocalError if the first rank's host does not answer.
    """
    if "RANK" not in os.environ:
        return Rendezvous(LocalStore())
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    numbers = [int(os.environ[name]) for name in names]
    try:
        return Rendezvous(call_with_timeout(_torchrun_store, JOIN_SECONDS), *numbers)
    except (CallTimeout, RuntimeError, ValueError) as error:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        reason = str(error).partition("\n")[0] or f"no answer in {JOIN_SECONDS:.0f} s"
        raise RankLocalError(
            f"rank {numbers[0]} on {host_name()} cannot reach the first rank at {address}: {reason}"
        ) from None


def _torchrun_store() -> dist.Store:
    import torch.distributed as dist

    from stages.lib.distributed import process_group

    seconds = timedelta(seconds=JOIN_SECONDS)
    with process_group.rendezvous():
        store, _, _ = next(iter(dist.rendezvous("env://", timeout=seconds)))
    return dist.PrefixStore("doctor", store)
