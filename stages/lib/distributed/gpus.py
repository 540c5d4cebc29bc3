"""The GPUs that the processes of this machine may use, without torch, which takes 3 seconds to import."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess

from stages.lib.log import logger

LISTED = "CARAVAN_GPUS"
"""Environment variable: the number of GPUs by which `tools.ranks` chose the number of processes."""

COMMAND = ("nvidia-smi", "-L")
TIMEOUT_SECONDS = 60  # it takes seconds without persistence mode, and may hang with a broken driver
GPU = re.compile(r"GPU \d+: .*\(UUID: (GPU-[^)]+)\)")
MIG = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")


def count() -> int:
    """Return the number of GPUs by nvidia-smi that CUDA_VISIBLE_DEVICES leaves; 0 if it is missing or fails.

    At most 1 if a GPU is divided by MIG: CUDA shows a process only one such device.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return 0
    lines = _listed()
    gpus, parts = ([match[1] for match in map(kind.match, lines) if match] for kind in (GPU, MIG))
    number = _visible(gpus, parts, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return min(number, 1) if parts else number


def _listed() -> list[str]:
    """Return the lines of nvidia-smi; [] with a warning if it fails, without one if it is missing."""
    if shutil.which(COMMAND[0]) is None:
        return []
    try:
        done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("no GPU is used: `%s` failed: %s", " ".join(COMMAND), error)
        return []
    if done.returncode != 0:
        reason = " ".join((done.stdout + done.stderr).split()) or f"exit code {done.returncode}"
        logger.warning("no GPU is used: `%s` failed: %s", " ".join(COMMAND), reason)
        return []
    return done.stdout.splitlines()


def _visible(gpus: list[str], parts: list[str], named: str | None) -> int:
    """Return the number of devices in CUDA_VISIBLE_DEVICES as CUDA counts them: up to the first that does not exist."""
    if named is None:
        return len(gpus)
    found: list[int] = []
    for name in named.split(","):
        device = _index(name.strip(), gpus, parts)
        if device is None:
            break
        if device in found:  # CUDA then shows none
            return 0
        found.append(device)
    return len(found)


def _index(name: str, gpus: list[str], parts: list[str]) -> int | None:
    """Return the index of a device in [*gpus, *parts] by number, or by a UUID or its beginning; None if unknown."""
    if name.isdecimal():
        return int(name) if int(name) < len(gpus) else None
    if not name.startswith(("GPU-", "MIG-")):
        return None
    matching = [index for index, uuid in enumerate([*gpus, *parts]) if uuid.startswith(name)]
    return matching[0] if len(matching) == 1 else None


@functools.cache
def can_compile() -> bool:
    """Return true if Triton compiles kernels on this machine: it needs a C compiler."""
    compilers = (os.environ.get("CC", ""), "clang", "gcc")
    return importlib.util.find_spec("triton") is not None and any(map(shutil.which, compilers))
