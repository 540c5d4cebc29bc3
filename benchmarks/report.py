"""The JSON file of a benchmark, with date, hardware and versions."""

import importlib.metadata
import json
import os
import platform
import re
import sys
import time
from pathlib import Path

PLACES = re.compile(r" --(work|output|corpus|peers-python)[ =]\S+")
"""Options that say where files lie on one machine, which changes no figure."""


def hardware():
    """Return the processor, GPUs and memory of this machine."""
    import torch

    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = names[0].partition(":")[2].strip() if names else platform.machine()
    found = {"processor": processor, "cores": os.cpu_count(), "memory_gb": round(memory_gb, 1)}
    if torch.cuda.is_available():
        found |= {"gpu": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count(), "cuda": torch.version.cuda}
    return found


def memory_mb(name):
    """Return a line of /proc/self/status in MiB: VmRSS, or VmHWM, its peak."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) / 1024


def write(path, benchmark, packages, figures, quiet=False):
    """Write the figures of `python -m benchmarks.BENCHMARK` with date, hardware and versions, and print the path."""
    versions = {package: importlib.metadata.version(package) for package in packages}
    head = {
        "command": PLACES.sub("", " ".join([f"python -m benchmarks.{benchmark}", *sys.argv[1:]])),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "hardware": hardware(),
        "versions": {"python": platform.python_version()} | versions,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(head | figures, indent=2) + "\n", encoding="utf-8")
    if not quiet:
        print(f"written to {path}")
