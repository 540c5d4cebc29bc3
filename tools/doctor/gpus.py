"""Check that there is a GPU for every rank, and that GPUs are alike and free."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
from typing import TYPE_CHECKING, Any

from stages.lib.model.flops import peak_flops
from stages.lib.space import amount
from tools.doctor.rendezvous import Rendezvous
from tools.doctor.result import FAIL, OK, WARNING, Reports, Result, differences, host_names, join_names

if TYPE_CHECKING:
    import torch

NAME, TIMEOUT_SECONDS = "gpus", 60.0
USED_BYTES = 2e9  # more is another process: the CUDA context of this one takes about 0.5 GB
SLOW = 0.8  # of the median GPU
SIDE, NUM_PRODUCTS = 8192, 20  # of the matrices that are multiplied for the speed, 1.1 TFLOP each


def collect(rendezvous: Rendezvous, _: argparse.Namespace) -> dict[str, Any]:
    """Return what torch reports of this rank's GPU (of all GPUs without torchrun), and what nvidia-smi reports."""
    import torch

    num_gpus, num_ranks = torch.cuda.device_count(), rendezvous.local_world_size
    launched = "RANK" in os.environ
    own = range(num_gpus) if not launched else [rendezvous.local_rank] if num_gpus >= num_ranks else []
    return {
        "gpus": num_gpus,
        "ranks": num_ranks if launched else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": _driver() if rendezvous.is_leader else None,
        "allocated": os.environ.get("SLURM_GPUS_ON_NODE"),
        "devices": [_device(index) for index in own],
    }


def _driver() -> tuple[int, str] | None:
    """Return (number of GPUs, version) from nvidia-smi; None if it is missing, or GPUs are hidden on purpose."""
    if shutil.which("nvidia-smi") is None or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS / 2, check=False)
    lines = done.stdout.split()
    return (len(lines), lines[0]) if done.returncode == 0 and lines else None


def _device(index: int) -> dict[str, Any]:
    import torch

    free, total = torch.cuda.mem_get_info(index)
    rate = None if free < 8 * SIDE**2 else _flops_per_second(torch.device("cuda", index))
    return {"index": index, "name": torch.cuda.get_device_name(index), "free": free, "total": total, "rate": rate}


def _flops_per_second(device: torch.device) -> float:
    """Return FLOP/s of bfloat16 matrix products."""
    import torch

    left = torch.randn(SIDE, SIDE, device=device, dtype=torch.bfloat16)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.device(device):
        for number in range(2 * NUM_PRODUCTS):  # the first half is warm-up
            if number == NUM_PRODUCTS:
                begin.record()
            left @ left
        end.record()
        torch.cuda.synchronize()
    return NUM_PRODUCTS * 2 * SIDE**3 / (begin.elapsed_time(end) / 1e3)


def evaluate(reports: Reports, _: argparse.Namespace) -> list[Result]:
    """Return one result."""
    return [_evaluate_missing(reports) or _evaluate_number(reports) or _evaluate_devices(reports)]


def _evaluate_missing(reports: Reports) -> Result | None:
    some = next(iter(reports.values()))
    without = {rank: report for rank, report in reports.items() if not report["gpus"]}
    if by_driver := {rank: report for rank, report in without.items() if report["driver"]}:
        one = next(iter(by_driver.values()))
        number, version = one["driver"]
        reason = f"built for CUDA {one['cuda']}: the driver may be too old" if one["cuda"] else "built without CUDA"
        text = f"torch finds no GPU on {host_names(by_driver)}, but the driver ({version}) lists {number}: "
        return Result(FAIL, NAME, f"{text}torch {one['torch']} is {reason}")
    if by_slurm := {rank: report for rank, report in without.items() if report["allocated"]}:
        text = f"Slurm allocated {some['allocated']} GPUs per host, but torch finds none on {host_names(by_slurm)}: "
        return Result(FAIL, NAME, f"{text}check the driver, and --nv in CARAVAN_CONTAINER")
    if len(without) == len(reports):
        return Result(OK, NAME, "no GPU: training runs on the CPU")
    return None


def _evaluate_number(reports: Reports) -> Result | None:
    if text := differences(reports, lambda report: report["gpus"]):
        return Result(FAIL, NAME, f"hosts have different numbers of GPUs, {text}: request the same number on each")
    some = next(iter(reports.values()))
    if some["ranks"] is None:
        return None
    if some["gpus"] < some["ranks"]:
        text = f"{some['ranks']} ranks per host for {some['gpus']} GPUs: training would run on the CPU"
        return Result(FAIL, NAME, f"{text}; set `ranks` to the number of GPUs, and `gres` on Slurm")
    if some["gpus"] > some["ranks"]:
        text = f"only {some['ranks']} of {some['gpus']} GPUs per host would be used: raise `ranks`"
        return Result(WARNING, NAME, text)
    return None


def _evaluate_devices(reports: Reports) -> Result:
    devices = [device | {"host": report["host"]} for report in reports.values() for device in report["devices"]]
    names = list(dict.fromkeys(device["name"] for device in devices))
    rates = [device["rate"] for device in devices if device["rate"]]
    used = [device for device in devices if device["total"] - device["free"] > USED_BYTES]
    if used:
        level = FAIL if any(device["free"] < device["total"] / 2 for device in used) else WARNING
        text = join_names(
            f"{amount(one['total'] - one['free'])} of GPU {one['index']} on {one['host']}" for one in used
        )
        return Result(level, NAME, f"other processes use {text}: end them (nvidia-smi lists them)")
    if len(names) > 1:
        return Result(WARNING, NAME, f"GPUs differ: {join_names(names)}: the slowest determines the speed")
    slow = [device for device in devices if device["rate"] and device["rate"] < SLOW * statistics.median(rates)]
    if slow:
        text = join_names(f"GPU {one['index']} on {one['host']} ({one['rate'] / 1e12:.0f} TFLOP/s)" for one in slow)
        text = f"slower than the median of {statistics.median(rates) / 1e12:.0f} TFLOP/s: {text}"
        return Result(WARNING, NAME, f"{text}: exclude it, or see nvidia-smi -q -d PERFORMANCE")
    return Result(OK, NAME, _description(reports, devices, names[0], rates))


def _description(reports: Reports, devices: list[dict[str, Any]], name: str, rates: list[float]) -> str:
    some = next(iter(reports.values()))
    parts = [f"{len(devices)} x {name}", f"CUDA {some['cuda']}"]
    parts += [f"driver {some['driver'][1]}"] if some["driver"] else []
    parts += [f"at least {amount(min(device['free'] for device in devices))} free"]
    parts += [f"at least {min(rates) / 1e12:.0f} TFLOP/s in bfloat16"] if rates else []
    peak = peak_flops(name)
    parts += [f"peak {peak / 1e12:.0f} TFLOP/s" if peak else "peak unknown: MFU is not reported"]
    return ", ".join(parts)
