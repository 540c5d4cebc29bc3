"""Starting the ranks of a training, and agreeing on what went wrong."""

import contextlib
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from stages.lib.errors import Preempted, RankLocalError, UserError
from stages.lib.log import logger

# A hang is the watchdog's affair, which says more; a rank that dies breaks its connections, and is noticed at once.
TIMEOUT = timedelta(days=1)


class CollectiveError(UserError):
    """A UserError that every rank raises at the same place."""


@contextlib.contextmanager
def ranks():
    """Join the process group that torchrun describes in the environment; a group of one where there is no torchrun.

    Yields the device of this rank. Raises RankLocalError in place of a UserError on which the ranks did not agree.
    """
    device = _device()
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    flight_recorder_environment()
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=TIMEOUT)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    together = False
    try:
        yield device
        together = True
    except (CollectiveError, Preempted):
        together = True
        raise
    except UserError as error:
        if dist.get_world_size() == 1:
            raise
        raise RankLocalError(str(error)) from error
    finally:
        # a rank that fails alone keeps the group, or the others would notice, and speak, before it has said why
        if together or dist.get_world_size() == 1:
            dist.destroy_process_group()


def flight_recorder_environment():
    """Have torch keep each rank's last 2,000 collectives, unless the environment says how many; 0 is none.

    To be called before the process group is made. It costs about 1 us a collective.
    """
    if not {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"} & os.environ.keys():
        os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"


def _device():
    """A GPU of its own for each rank; the CPU where this machine has none, or fewer than ranks."""
    found, wanted = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if found >= wanted:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return device
    if found and os.environ.get("RANK", "0") == "0":
        logger.warning(
            "training on the CPU: %s ranks are more than the GPUs of this machine (%s); set `ranks` in the "
            "profile to use them",
            wanted,
            found,
        )
    return torch.device("cpu")


def broadcast_object(value):
    """What the first rank calls with, on every rank; shared file systems may show each rank something else."""
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def all_gather_object(value, group=None):
    """What each rank calls with, in the order of the ranks, on every rank."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group=group)
    return values


def agree(error, group=None):
    """Raise the UserError of any rank as an CollectiveError on all ranks; `error` is None where a rank has none."""
    for message in all_gather_object(None if error is None else str(error), group):
        if message is not None:
            raise CollectiveError(message)


@contextlib.contextmanager
def raise_on_all_ranks(group=None):
    """A block in which a UserError of one rank stops every rank; no rank leaves it before all have come to its end."""
    failed = None
    try:
        yield
    except UserError as error:
        failed = error
    agree(failed, group)
