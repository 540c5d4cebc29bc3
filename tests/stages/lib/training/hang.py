"""A rank of a training that hangs: `RANKS -m tests.stages.lib.training.hang DIRECTORY BEHAVIOUR LIMITS`."""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from stages.lib import log, recipe, stage
from stages.lib.distributed.process_group import enable_flight_recorder, process_group
from stages.lib.training import watchdog


def sleep_for_ever():
    """Hang like a rank that waits for a file system."""
    time.sleep(1000)


def sleep_with_the_lock():
    """Hang in C, with the GIL held, so that no thread of this process can run."""
    ctypes.PyDLL(None).sleep(1000)


def train(dog, behaviour):
    """Take six steps and a save, one of which does not end."""
    last = dist.get_rank() == dist.get_world_size() - 1
    for step in range(6):
        dog.phase("step", step)
        if behaviour == "sleep" and step == 2 and last:
            sleep_for_ever()
        if behaviour == "lock" and step == 2 and last:
            sleep_with_the_lock()
        dist.all_reduce(torch.ones(1))
        time.sleep(0.2)
    dog.phase("save", 6)
    if behaviour == "save":
        sleep_for_ever()


if __name__ == "__main__":
    directory, behaviour, limits = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    log.to(None)
    enable_flight_recorder()
    with process_group():
        (directory / f"pid{dist.get_rank()}").write_text(str(os.getpid()), encoding="utf-8")
        limits_recipe = recipe.load(watchdog.WatchdogRecipe, limits, "watchdog")
        dog = watchdog.Watchdog(limits_recipe, directory, lambda message: stage.out_of_time("hang", message))
        try:
            if behaviour == "start":
                sleep_for_ever()
            train(dog, behaviour)
        finally:  # as a trainer does: a rank that another's hang ends prints nothing
            dog.close()
    stage.leave(0)
