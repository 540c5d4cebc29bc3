"""Initialization of the process group, and the device of each rank."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

from stages.lib import mpi
from stages.lib.distributed import gpus, mpi_rendezvous
from stages.lib.distributed.collectives import CollectiveError
from stages.lib.errors import Preempted, RankLocalError, UserError
from stages.lib.log import logger

# The watchdog detects hangs, and reports more. A rank that dies breaks its connections, which is noticed at once.
TIMEOUT = timedelta(days=1)


@contextlib.contextmanager
def process_group() -> Iterator[torch.device]:
    """Initialize the process group from the environment of torchrun or mpiexec, or a group of one rank without them.

    Yields the device of this rank. A UserError that the ranks did not agree on is raised as RankLocalError.
    """
    device = _device()
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    enable_flight_recorder()
    _initialize(backend)
    all_ranks_leave = False
    try:
        yield device
        all_ranks_leave = True
    except (CollectiveError, Preempted):
        all_ranks_leave = True
        raise
    except UserError as error:
        if dist.get_world_size() == 1:
            raise
        raise RankLocalError(str(error)) from error
    finally:
        # A rank that fails alone keeps the group: otherwise other ranks would fail, and log, before it logs its error.
        if all_ranks_leave or dist.get_world_size() == 1:
            dist.destroy_process_group()


def _initialize(backend: str) -> None:
    if "RANK" not in os.environ:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    elif mpi.is_started():
        rank, world_size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
        with mpi_rendezvous.rendezvous():
            store = mpi_rendezvous.join(TIMEOUT)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT)
    else:
        dist.init_process_group(backend, timeout=TIMEOUT)


def enable_flight_recorder() -> None:
    """Let torch record the last 2,000 collectives of each rank, unless the environment sets a number (0: none).

    Must be called before the process group is initialized. It costs about 1 us per collective.
    """
    if not {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"} & os.environ.keys():
        os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"


def _device() -> torch.device:
    """Return this rank's own GPU; the CPU if this machine has fewer GPUs than ranks."""
    num_gpus, num_ranks = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if num_gpus >= num_ranks:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return device
    if os.environ.get("RANK", "0") == "0":
        _warn_of_cpu(num_gpus, num_ranks, int(os.environ.get(gpus.LISTED, "0")))
    return torch.device("cpu")


def _warn_of_cpu(num_gpus: int, num_ranks: int, listed: int) -> None:
    """Log why GPUs are not used. `num_gpus`: by torch; `listed`: by nvidia-smi, if `ranks` is auto."""
    if listed > num_gpus:
        logger.warning(
            "running on the CPU: nvidia-smi lists %s GPUs, and torch %s can use %s; `python -m tools.doctor` "
            "says what to check",
            *(listed, torch.__version__, num_gpus),
        )
    elif num_gpus:
        logger.warning(
            "running on the CPU: this machine has %s ranks and only %s GPUs; set `ranks` in the profile to the number "
            "of GPUs, or to auto",
            num_ranks,
            num_gpus,
        )
