"""How the ranks of the doctor speak to each other: through the store by which torchrun's ranks find each other.

No process group: whether one comes about is what is to be found out. And a store says who is missing.
"""

import json
import os
import socket
import time
from datetime import timedelta

from stages.lib.doctor.limit import Limit, limited
from stages.lib.errors import RankLocalError

JOIN_SECONDS = 60.0
LONGEST_WAIT = 0.05  # between two looks at the store; the first looks follow each other faster


class Absent(Exception):
    """Nobody said the word in time."""


class Meeting:
    """The ranks of this job. A word is a key and a JSON value; it can be said once and heard by all."""

    def __init__(self, store, rank=0, world_size=1, local_rank=0, local_world_size=1):
        """`store` has `set`, `get` and `check` of torch.distributed.Store."""
        self._store = store
        self.rank, self.world_size = rank, world_size
        self.local_rank, self.local_world_size = local_rank, local_world_size
        self.host = host_name()
        self.leaders = {0: self.host}
        """The first rank of each host and the host's name; once all have met, the same on all ranks."""
        self.missing = []
        """Ranks that did not come, or gave no answer since."""
        self.doing = ""
        """What the check is at, for the case that it does not end."""

    def say(self, key, value):
        """Say a word to all ranks."""
        self._store.set(key, json.dumps(value))

    def hear(self, key, seconds):
        """The word's value. Raises Absent when it is not said within so many seconds."""
        until, wait = time.monotonic() + seconds, 0.0005
        # a blocking call would keep the connection from the other threads
        while not self._store.check([key]):
            if time.monotonic() > until:
                raise Absent(f"another rank gave no answer in time ({key})")
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
        return json.loads(self._store.get(key))

    def leave_out(self, missing):
        """Wait for these ranks no more."""
        self.missing = missing
        self.leaders = {rank: host for rank, host in self.leaders.items() if rank not in missing}

    @property
    def leads(self):
        """Whether this rank is the one that looks at what its host's ranks have in common."""
        return self.local_rank == 0


class Alone:
    """The store of a single process."""

    def __init__(self):
        self._words = {}

    def set(self, key, value):
        """As torch.distributed.Store."""
        self._words[key] = value

    def get(self, key):
        """As torch.distributed.Store."""
        return self._words[key]

    def check(self, keys):
        """As torch.distributed.Store."""
        return self._words.keys() >= set(keys)


def host_name():
    """The node's name in Slurm, by which a person would drain it; else the machine's."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def join():
    """The meeting of the ranks that torchrun describes in the environment; of one where there is no torchrun.

    Raises RankLocalError where the first rank's host does not answer.
    """
    if "RANK" not in os.environ:
        return Meeting(Alone())
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    numbers = [int(os.environ[name]) for name in names]
    try:
        return Meeting(limited(_store, JOIN_SECONDS), *numbers)
    except (Limit, RuntimeError, ValueError) as error:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        reason = str(error).partition("\n")[0] or f"no answer in {JOIN_SECONDS:.0f} s"
        raise RankLocalError(
            f"rank {numbers[0]} on {host_name()} must reach the first rank at {address}, and did not: {reason}"
        ) from None


def _store():
    import torch.distributed as dist

    seconds = timedelta(seconds=JOIN_SECONDS)
    store, _, _ = next(iter(dist.rendezvous("env://", timeout=seconds)))
    return dist.PrefixStore("doctor", store)
