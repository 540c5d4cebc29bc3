"""Initialization of the process group, the device of each rank, and the address at which ranks of `mpiexec` meet.

torchrun finds that address by itself. On one machine the first rank takes a free port, and writes it to a file whose
name all ranks know. On several nodes the first node must be known, from MASTER_ADDR, CARAVAN_HEAD or PBS_NODEFILE, and
the port follows from the job's name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from stages.lib import files, mpi
from stages.lib.distributed import gpus
from stages.lib.distributed.collectives import CollectiveError
from stages.lib.errors import Preempted, RankLocalError, UserError
from stages.lib.log import logger

JOIN_SECONDS = 300.0  # until all ranks have started: imports from a busy file system take minutes
JOBS = ("PMIX_NAMESPACE", "PALS_APID", "PBS_JOBID", "LSB_JOBID", "SLURM_JOB_ID", "FLUX_JOB_ID")
"""Variables that have the same value on all ranks, and another in another job; first those of a single mpiexec."""


@contextlib.contextmanager
def rendezvous() -> Iterator[None]:
    """Set MASTER_ADDR and MASTER_PORT of ranks that mpiexec started, unless both are set; all must join in the block.

    Raises RankLocalError if the first rank's node is not known, or is another than the variables name.
    """
    if not mpi.is_started() or {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        yield
    elif os.environ["WORLD_SIZE"] == os.environ["LOCAL_WORLD_SIZE"]:
        with _port_on_this_machine() as port:
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            yield
    else:
        head, port = _first_node(), _port_of_job()
        if os.environ["RANK"] == "0":
            _check_own_address(head, port)
        os.environ |= {"MASTER_ADDR": head, "MASTER_PORT": str(port)}
        yield


def join(timeout: timedelta) -> dist.Store:
    """Return the store of ranks that mpiexec started; `timeout` is that of its later operations.

    Raises RankLocalError if not all ranks join within JOIN_SECONDS.
    """
    rank, world_size, host, port = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    try:
        seconds = timedelta(seconds=JOIN_SECONDS)
        store = dist.TCPStore(host, int(port), int(world_size), rank == "0", seconds, multi_tenant=True)
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise RankLocalError(f"rank {rank} cannot reach the first rank at {host}:{port}: {reason}") from None
    store.set_timeout(timeout)
    return store


@contextlib.contextmanager
def _port_on_this_machine() -> Iterator[int]:
    """Yield a free port of the first rank; the file that has it exists until the block ends."""
    path = Path(tempfile.gettempdir()) / f"caravan-port.{os.getuid()}.{_launcher()}"
    if os.environ["RANK"] != "0":
        yield _read_port(path)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files.write_json(path, port)
    try:
        yield port
    finally:
        path.unlink(missing_ok=True)


def _read_port(path: Path) -> int:
    end = time.monotonic() + JOIN_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_uid == os.getuid():
                return int(path.read_text(encoding="ascii"))
        time.sleep(0.05)
    raise RankLocalError(
        f"rank {os.environ['RANK']} waited {JOIN_SECONDS:.0f} s for the file {path} of the first rank, which must have "
        "the same TMPDIR"
    )


def _launcher() -> str:
    """Return the id and start of the process that started this machine's ranks: the next that is not part of a rank."""
    rank = f"\0{os.environ[mpi.STARTED]}=".encode()
    process = os.getppid()
    while process > 1 and rank in b"\0" + _environment_of(process):
        process = int(_stat_of(process)[1])
    return f"{process}.{_stat_of(process)[19]}"


def _environment_of(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/environ").read_bytes()
    except OSError:  # of another user: not part of a rank
        return b""


def _stat_of(process: int) -> list[str]:
    """Return the fields of a process from its state on; 1 is its parent, 19 its start."""
    return Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _first_node() -> str:
    """Return the name of the first rank's node."""
    for name in ("MASTER_ADDR", "CARAVAN_HEAD"):
        if os.environ.get(name):
            return os.environ[name]
    path = os.environ.get("PBS_NODEFILE")
    size, local = os.environ["WORLD_SIZE"], os.environ["LOCAL_WORLD_SIZE"]
    ranks = f"{size} ranks, of which {local} run on {socket.gethostname()}"
    if path is None:
        raise RankLocalError(f"MASTER_ADDR must name the node of the first rank: there are {ranks}")
    try:
        names = list(dict.fromkeys(Path(path).read_text(encoding="utf-8").split()))
    except OSError as error:
        raise RankLocalError(f"PBS_NODEFILE {path} cannot be read: {error.strerror}") from None
    needed = -(-int(size) // int(local))
    if len(names) < needed:
        raise RankLocalError(f"PBS_NODEFILE must name {needed} nodes, for {ranks}, got {len(names)} in {path}")
    return names[0]


def _port_of_job() -> int:
    """Return a port that all ranks of this job know."""
    given = os.environ.get("MASTER_PORT") or os.environ.get("CARAVAN_PORT")
    if given is not None:
        if not given.isdecimal():
            raise RankLocalError(f"MASTER_PORT must be a whole number, got {given}")
        return int(given)
    names = [os.environ[name] for name in JOBS if os.environ.get(name)]
    if not names:
        raise RankLocalError(f"MASTER_PORT must be a free port of the first node: none of {', '.join(JOBS)} is set")
    return 20_000 + zlib.crc32(names[0].encode()) % 10_000


def _check_own_address(host: str, port: int) -> None:
    """Raise RankLocalError unless this process can listen at an address."""
    try:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
    except OSError as error:
        own = socket.gethostname()
        reasons = {
            errno.EADDRINUSE: f"port {port} of {host} is in use: set MASTER_PORT of all ranks to another",
            errno.EADDRNOTAVAIL: f"the first rank must run on {host}, the first node of the job, but runs on {own}",
        }
        raise RankLocalError(reasons.get(error.errno or 0, f"{host}:{port}: {error.strerror}")) from None


# The watchdog detects hangs, and reports more. A rank that dies breaks its connections, which is noticed at once.
TIMEOUT = timedelta(days=1)


@contextlib.contextmanager
def process_group() -> Iterator[torch.device]:
    """Initialize the process group from the environment of torchrun or mpiexec, or a group of one rank without them.

    Yields the device of this rank. A UserError that the ranks did not agree on is raised as RankLocalError.
    """
    set_gpu_defaults()
    device = _device()
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    enable_flight_recorder()
    if "RANK" not in os.environ:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    elif mpi.is_started():
        rank, world_size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
        with rendezvous():
            store = join(TIMEOUT)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT)
    else:
        dist.init_process_group(backend, timeout=TIMEOUT)
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


def set_gpu_defaults() -> None:
    """Set what torch reads from the environment before it uses a GPU, unless the environment has it.

    Segments of the allocator that grow, so that memory is not lost between blocks of different sizes; as many processes
    that compile as each rank has cores, where torch starts 32 per rank.
    """
    if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & os.environ.keys():
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    threads = os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(min(32, cores_of_rank())))
    if config := sys.modules.get("torch._inductor.config"):  # imported with the model, it has read the variable
        config.compile_threads = int(threads)  # type: ignore[attr-defined]


def cores_of_rank() -> int:
    """Return this rank's share of the cores that its node gives to the job."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


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
    is_first, listed = os.environ.get("RANK", "0") == "0", int(os.environ.get(gpus.LISTED, "0"))
    if is_first and listed > num_gpus:
        logger.warning(
            "running on the CPU: nvidia-smi lists %s GPUs, and torch %s can use %s; `python -m tools.doctor` "
            "says what to check",
            *(listed, torch.__version__, num_gpus),
        )
    elif is_first and num_gpus:
        logger.warning(
            "running on the CPU: this machine has %s ranks and only %s GPUs; set `ranks` in the profile to the number "
            "of GPUs, or to auto",
            num_ranks,
            num_gpus,
        )
    return torch.device("cpu")
