"""Whether there is a GPU for every rank, whole, alike and free."""

import os
import shutil
import statistics
import subprocess

from stages.lib.doctor.findings import FAIL, OK, WARNING, Finding, hosts, listed, told_apart
from stages.lib.model.flops import peak_flops
from stages.lib.space import amount

NAME, SECONDS = "gpus", 60.0
HELD_BYTES = 2e9  # what this process needs itself to speak to a GPU is part of it, about 0.5 GB
SLOW = 0.8  # of the median GPU
SIDE, PRODUCTS = 8192, 20  # of the matrices that are multiplied for the speed, 1.1 TFLOP each


def look(meeting, _):
    """What torch sees of this rank's GPU, or of all where there is no launcher; and what nvidia-smi says there is."""
    import torch

    found, ranks = torch.cuda.device_count(), meeting.local_world_size
    launched = "RANK" in os.environ
    wanted = range(found) if not launched else [meeting.local_rank] if found >= ranks else []
    return {
        "found": found,
        "ranks": ranks if launched else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": _driver() if meeting.leads else None,
        "given": os.environ.get("SLURM_GPUS_ON_NODE"),
        "devices": [_device(index) for index in wanted],
    }


def _driver():
    """(number of GPUs, version) by the driver's own tool; None where there is none."""
    if shutil.which("nvidia-smi") is None or os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # hidden on purpose
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS / 2, check=False)
    lines = done.stdout.split()
    return (len(lines), lines[0]) if done.returncode == 0 and lines else None


def _device(index):
    import torch

    free, total = torch.cuda.mem_get_info(index)
    rate = None if free < 8 * SIDE**2 else _rate(torch.device("cuda", index))
    return {"index": index, "name": torch.cuda.get_device_name(index), "free": free, "total": total, "rate": rate}


def _rate(device):
    """FLOP/s of bfloat16 matrix products."""
    import torch

    left = torch.randn(SIDE, SIDE, device=device, dtype=torch.bfloat16)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.device(device):
        for turn in range(2 * PRODUCTS):  # the first half warms it up
            if turn == PRODUCTS:
                begin.record()
            left @ left
        end.record()
        torch.cuda.synchronize()
    return PRODUCTS * 2 * SIDE**3 / (begin.elapsed_time(end) / 1e3)


def judge(facts, _):
    """The finding."""
    return [Finding(*(_on_number(facts) or _on_devices(facts)))]


def _on_number(facts):
    some = next(iter(facts.values()))
    unused = {rank: found for rank, found in facts.items() if found["driver"] and not found["found"]}
    if unused:
        one = next(iter(unused.values()))
        why = f"is made for CUDA {one['cuda']}: is the driver too old?" if one["cuda"] else "is a build for the CPU"
        text = f"torch sees no GPU on {hosts(unused)}, where the driver ({one['driver'][1]}) has {one['driver'][0]}: "
        return FAIL, NAME, f"{text}torch {one['torch']} {why}"
    if given := {rank: found for rank, found in facts.items() if found["given"] and not found["found"]}:
        text = (
            f"Slurm gave {some['given']} GPUs to each host, and torch sees none on {hosts(given)}: is there a driver, "
        )
        return FAIL, NAME, f"{text}does CARAVAN_CONTAINER have --nv?"
    if not any(found["found"] for found in facts.values()):
        return OK, NAME, "no GPU: training will be on the CPU"
    if text := told_apart(facts, lambda found: found["found"]):
        return FAIL, NAME, f"hosts have different numbers of GPUs, {text}: ask for as many on each"
    if some["ranks"] is None:
        return None
    if some["found"] < some["ranks"]:
        text = f"{some['ranks']} ranks a host for {some['found']} GPUs: training would be on the CPU"
        return FAIL, NAME, f"{text}; set `ranks` to the number of GPUs, and `gres` on Slurm"
    if some["found"] > some["ranks"]:
        return WARNING, NAME, f"{some['ranks']} of the {some['found']} GPUs of a host would be used: raise `ranks`"
    return None


def _on_devices(facts):
    devices = [device | {"host": found["host"]} for found in facts.values() for device in found["devices"]]
    names = list(dict.fromkeys(device["name"] for device in devices))
    rates = [device["rate"] for device in devices if device["rate"]]
    held = [device for device in devices if device["total"] - device["free"] > HELD_BYTES]
    if held:
        level = FAIL if any(device["free"] < device["total"] / 2 for device in held) else WARNING
        said = (f"{amount(one['total'] - one['free'])} of GPU {one['index']} on {one['host']}" for one in held)
        return level, NAME, f"others hold {listed(said)}: end them, see nvidia-smi"
    if len(names) > 1:
        return WARNING, NAME, f"GPUs differ: {listed(names)}: the slowest sets the speed of all"
    slow = [device for device in devices if device["rate"] and device["rate"] < SLOW * statistics.median(rates)]
    if slow:
        said = listed(f"GPU {one['index']} on {one['host']} ({one['rate'] / 1e12:.0f} TFLOP/s)" for one in slow)
        text = f"slower than the others ({statistics.median(rates) / 1e12:.0f} TFLOP/s): {said}"
        return WARNING, NAME, f"{text}: leave it out, or see nvidia-smi -q -d PERFORMANCE"
    return OK, NAME, _description(facts, devices, names[0], rates)


def _description(facts, devices, name, rates):
    some = next(iter(facts.values()))
    parts = [f"{len(devices)} x {name}", f"CUDA {some['cuda']}"]
    parts += [f"driver {some['driver'][1]}"] if some["driver"] else []
    parts += [f"{amount(min(device['free'] for device in devices))} free or more"]
    parts += [f"{min(rates) / 1e12:.0f} TFLOP/s in bfloat16 or more"] if rates else []
    peak = peak_flops(name)
    parts += [f"peak {peak / 1e12:.0f} TFLOP/s" if peak else "peak not known, so that there will be no MFU"]
    return ", ".join(parts)
