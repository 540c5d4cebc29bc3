"""The check of GPUs: one for every rank, alike and free."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
from typing import TYPE_CHECKING, Any

from stages.lib.model.flops import peak_flops
from stages.lib.space import amount
from tools.doctor.runner import (
    FAIL,
    OK,
    WARNING,
    Check,
    Finding,
    Rendezvous,
    Reports,
    differences,
    host_names,
    join_names,
)

if TYPE_CHECKING:
    import torch

TIMEOUT_SECONDS = 60.0
USED_BYTES = 2e9  # more is another process: the CUDA context of this one takes about 0.5 GB
SLOW = 0.8  # of the median GPU
SIDE, NUM_PRODUCTS = 8192, 20  # of the matrices that are multiplied for the speed, 1.1 TFLOP each


def collect(rendezvous: Rendezvous, _: argparse.Namespace) -> dict[str, Any]:
    """Return what torch reports of this rank's GPU (of all GPUs without torchrun), and what nvidia-smi reports."""
    import torch

    num_gpus, num_ranks = torch.cuda.device_count(), rendezvous.local_world_size
    launched = "RANK" in os.environ
    driver = None
    # CUDA_VISIBLE_DEVICES is empty if GPUs are hidden on purpose
    if rendezvous.is_leader and shutil.which("nvidia-smi") and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS / 2, check=False)
        lines = answer.stdout.split()
        driver = (len(lines), lines[0]) if answer.returncode == 0 and lines else None
    devices = []
    for index in range(num_gpus) if not launched else [rendezvous.local_rank] if num_gpus >= num_ranks else []:
        free, total = torch.cuda.mem_get_info(index)
        rate = None if free < 8 * SIDE**2 else _flops_per_second(torch.device("cuda", index))
        name = torch.cuda.get_device_name(index)
        devices.append({"index": index, "name": name, "free": free, "total": total, "rate": rate})
    return {
        "gpus": num_gpus,
        "ranks": num_ranks if launched else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": driver,
        "allocated": os.environ.get("SLURM_GPUS_ON_NODE"),
        "devices": devices,
    }


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


def evaluate(reports: Reports, _: argparse.Namespace) -> Finding:
    """Look for missing GPUs, then for ranks without one, then for GPUs that differ or are in use."""
    some = next(iter(reports.values()))
    without = {rank: report for rank, report in reports.items() if not report["gpus"]}
    if by_driver := {rank: report for rank, report in without.items() if report["driver"]}:
        one = next(iter(by_driver.values()))
        number, version = one["driver"]
        reason = f"built for CUDA {one['cuda']}: the driver may be too old" if one["cuda"] else "built without CUDA"
        text = f"torch finds no GPU on {host_names(by_driver, bool)}, but the driver ({version}) lists {number}: "
        return FAIL, f"{text}torch {one['torch']} is {reason}"
    if by_slurm := host_names(without, lambda report: report["allocated"]):
        text = f"Slurm allocated {some['allocated']} GPUs per host, but torch finds none on {by_slurm}: "
        return FAIL, f"{text}check the driver, and --nv in CARAVAN_CONTAINER"
    if len(without) == len(reports):
        return OK, "no GPU: training runs on the CPU"
    if numbers := differences(reports, lambda report: report["gpus"]):
        return FAIL, f"hosts have different numbers of GPUs, {numbers}: request the same number on each"
    num_gpus, num_ranks = some["gpus"], some["ranks"]
    if num_ranks is not None and num_gpus < num_ranks:
        text = f"{num_ranks} ranks per host for {num_gpus} GPUs: training would run on the CPU"
        return FAIL, f"{text}; set `ranks` to the number of GPUs, and `gres` on Slurm"
    if num_ranks is not None and num_gpus > num_ranks:
        return WARNING, f"only {num_ranks} of {num_gpus} GPUs per host would be used: raise `ranks`"
    return _evaluate_devices(reports)


def _evaluate_devices(reports: Reports) -> Finding:
    devices = [device | {"host": report["host"]} for report in reports.values() for device in report["devices"]]
    if used := [device for device in devices if device["total"] - device["free"] > USED_BYTES]:
        level = FAIL if any(device["free"] < device["total"] / 2 for device in used) else WARNING
        text = join_names(
            f"{amount(one['total'] - one['free'])} of GPU {one['index']} on {one['host']}" for one in used
        )
        return level, f"other processes use {text}: end them (nvidia-smi lists them)"
    names = list(dict.fromkeys(device["name"] for device in devices))
    if len(names) > 1:
        return WARNING, f"GPUs differ: {join_names(names)}: the slowest determines the speed"
    rates = [device["rate"] for device in devices if device["rate"]]
    if slow := [device for device in devices if device["rate"] and device["rate"] < SLOW * statistics.median(rates)]:
        text = join_names(f"GPU {one['index']} on {one['host']} ({one['rate'] / 1e12:.0f} TFLOP/s)" for one in slow)
        text = f"slower than the median of {statistics.median(rates) / 1e12:.0f} TFLOP/s: {text}"
        return WARNING, f"{text}: exclude it, or see nvidia-smi -q -d PERFORMANCE"
    some = next(iter(reports.values()))
    parts = [f"{len(devices)} x {names[0]}", f"CUDA {some['cuda']}"]
    parts += [f"driver {some['driver'][1]}"] if some["driver"] else []
    parts += [f"at least {amount(min(device['free'] for device in devices))} free"]
    parts += [f"at least {min(rates) / 1e12:.0f} TFLOP/s in bfloat16"] if rates else []
    peak = peak_flops(names[0])
    parts += [f"peak {peak / 1e12:.0f} TFLOP/s" if peak else "peak unknown: MFU is not reported"]
    return OK, ", ".join(parts)


GPUS = Check(TIMEOUT_SECONDS, collect, {"gpus": evaluate})
