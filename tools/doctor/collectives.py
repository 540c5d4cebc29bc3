"""Check that an all-reduce, on which training depends, is correct and fast."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

from stages.lib.errors import UserError
from tools.doctor.rendezvous import Rendezvous
from tools.doctor.result import FAIL, OK, WARNING, Reports, Result, host_names

if TYPE_CHECKING:
    import torch

NAME, TIMEOUT_SECONDS = "collectives", 60.0
NUM_VALUES = {"cuda": 64_000_000, "cpu": 4_000_000}  # float32: 256 MB and 16 MB
NUM_ROUNDS = {"cuda": 10, "cpu": 3}
NUM_LATENCY_ROUNDS = 20
PERIOD = 251  # of the values: a prime, so that a misplaced segment gives a wrong sum
# Bytes per second between GPUs of several hosts. InfiniBand and EFA reach ten times that, plain Ethernet less.
SLOW = 5e9


def collect(rendezvous: Rendezvous, _: argparse.Namespace) -> dict[str, Any]:
    """Initialize the process group as a training does, and measure all-reduces.

    Returns "right" (sums are correct), "bus" (bytes per second) and "latency" (seconds of an all-reduce of one number).
    """
    if rendezvous.missing:
        raise UserError("skipped: ranks are missing")
    from stages.lib.distributed.process_group import process_group

    rendezvous.activity = "process group initialization"
    with process_group() as device:
        rendezvous.activity = "the first all-reduce"
        right = _is_right(device, 1)
        rendezvous.activity = "a large all-reduce"
        right = _is_right(device, NUM_VALUES[device.type]) and right
        found = {"right": right, "device": device.type, "bytes": 4 * NUM_VALUES[device.type]}
        return found | {"bus": _bus_bandwidth(device), "latency": _latency(device)}


def _is_right(device: torch.device, count: int) -> bool:
    """Return whether the all-reduce of `count` values, different on each rank, equals the exact sum."""
    import torch
    import torch.distributed as dist

    size, base = dist.get_world_size(), torch.arange(count, device=device).remainder_(PERIOD).float()
    values = base + (dist.get_rank() + 1)
    dist.all_reduce(values)
    return bool(torch.equal(values, base * size + size * (size + 1) // 2))


def _bus_bandwidth(device: torch.device) -> float:
    """Return bytes per second of the bus, as nccl-tests define it: bytes / seconds x 2 (n - 1) / n."""
    import torch
    import torch.distributed as dist

    values = torch.zeros(NUM_VALUES[device.type], device=device)
    dist.barrier()
    seconds = statistics.median(_seconds(device, values) for _ in range(NUM_ROUNDS[device.type]))
    size = dist.get_world_size()
    return values.nbytes / seconds * 2 * (size - 1) / size


def _latency(device: torch.device) -> float:
    import torch

    value = torch.zeros(1, device=device)
    return statistics.median(_seconds(device, value) for _ in range(NUM_LATENCY_ROUNDS))


def _seconds(device: torch.device, values: torch.Tensor) -> float:
    import torch
    import torch.distributed as dist

    begin = time.perf_counter()
    dist.all_reduce(values)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def evaluate(reports: Reports, _: argparse.Namespace) -> list[Result]:
    """Return one result."""
    some = next(iter(reports.values()))
    wrong = host_names(reports, lambda report: not report["right"])
    backend = {"cuda": "NCCL", "cpu": "gloo"}[some["device"]]
    if wrong:
        text = f"an all-reduce with {backend} returned a wrong sum on {wrong}: exclude hosts until it is correct"
        return [Result(FAIL, NAME, text)]
    if len(reports) == 1:
        return [Result(OK, NAME, f"{backend} starts; one rank has nothing to measure (workflow/launch starts more)")]
    slowest = min(report["bus"] for report in reports.values())
    latency = max(report["latency"] for report in reports.values())
    text = f"all-reduce of {some['bytes'] / 1e6:.0f} MB with {backend}: bus bandwidth {slowest / 1e9:.1f} GB/s"
    text += f", latency {latency * 1e6:,.0f} us"
    num_hosts = len({report["host"] for report in reports.values()})
    if num_hosts > 1 and some["device"] == "cuda" and slowest < SLOW:
        text += f", less than {SLOW / 1e9:.0f} GB/s: NCCL_DEBUG=INFO shows the network that NCCL uses, and "
        return [Result(WARNING, NAME, f"{text}profiles/slurm/environment.sh configures it")]
    return [Result(OK, NAME, text)]
