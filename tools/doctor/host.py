"""Check each host's temporary directory, shared memory and process limits."""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
from pathlib import Path
from typing import Any

from stages.lib.space import amount
from tools.doctor.rendezvous import Rendezvous
from tools.doctor.result import FAIL, OK, WARNING, Reports, Result, host_names

NAME, TIMEOUT_SECONDS = "temp_dir", 15.0
MIN_TEMP_BYTES = 1e9  # compiled kernels, Arrow files of evaluation data
MIN_SHARED_BYTES = 1e9  # buffers of NCCL and data loaders; containers often have 64 MB
MIN_OPEN_FILES = 4096
LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "file size": resource.RLIMIT_FSIZE,
    "core": resource.RLIMIT_CORE,
    "locked": resource.RLIMIT_MEMLOCK,
}


def collect(_: Rendezvous, __: argparse.Namespace) -> dict[str, Any]:
    """Return data on this rank's host; sizes in bytes, None for no limit or a missing directory."""
    # not tempfile.gettempdir(), which silently falls back to another directory
    directory = os.environ.get("TMPDIR") or "/tmp"
    found: dict[str, Any] = {"directory": directory, "error": None, "free": None}
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"x" * 2**20)
        found["free"] = shutil.disk_usage(directory).free
    except OSError as error:
        found["error"] = error.strerror
    shared = Path("/dev/shm")
    found["shared"] = shutil.disk_usage(shared).total if shared.is_dir() else None
    found["infiniband"] = Path("/sys/class/infiniband").is_dir() and any(Path("/sys/class/infiniband").iterdir())
    return found | {name: _limit(kind) for name, kind in LIMITS.items()}


def _limit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def evaluate(reports: Reports, _: argparse.Namespace) -> list[Result]:
    """Return one result on directories and one on limits."""
    return [_evaluate_directories(reports), _evaluate_limits(reports)]


def _evaluate_directories(reports: Reports) -> Result:
    for report in reports.values():
        if report["error"]:
            where = host_names(reports, lambda one: one["error"])
            text = f"{report['directory']} is not writable on {where} ({report['error']}): set TMPDIR"
            return Result(FAIL, NAME, text)
    for report in reports.values():
        host, directory = report["host"], report["directory"]
        if report["free"] < MIN_TEMP_BYTES:
            text = f"{directory} has {amount(report['free'])} free on {host}: delete files, or set TMPDIR"
            return Result(WARNING, NAME, text)
        if report["shared"] is not None and report["shared"] < MIN_SHARED_BYTES:
            text = f"/dev/shm has {amount(report['shared'])} on {host}: NCCL may need more (docker --shm-size)"
            return Result(WARNING, NAME, text)
    first = next(iter(reports.values()))
    least = min(report["free"] for report in reports.values())
    return Result(OK, NAME, f"{first['directory']} is writable, {amount(least)} free")


def _evaluate_limits(reports: Reports) -> Result:
    def few_files(report: dict[str, Any]) -> bool:
        return report["open files"] is not None and report["open files"] < MIN_OPEN_FILES

    def limited_size(report: dict[str, Any]) -> bool:
        return report["file size"] is not None

    def limited_locked(report: dict[str, Any]) -> bool:
        return report["infiniband"] and report["locked"] is not None

    some = next(iter(reports.values()))
    texts = []
    if any(map(few_files, reports.values())):
        least = min(report["open files"] for report in reports.values() if few_files(report))
        texts.append(f"`ulimit -n` must be at least {MIN_OPEN_FILES}, is {least} on {host_names(reports, few_files)}")
    if any(map(limited_size, reports.values())):
        least = min(report["file size"] for report in reports.values() if limited_size(report))
        where = host_names(reports, limited_size)
        texts.append(f"`ulimit -f` limits files to {amount(least)} on {where}: set it to unlimited")
    if any(map(limited_locked, reports.values())):
        texts.append(f"`ulimit -l` is limited on {host_names(reports, limited_locked)}: InfiniBand needs unlimited")
    if texts:
        return Result(WARNING, "limits", "; ".join(texts))
    core = "off" if some["core"] == 0 else "on"
    files = "unlimited" if some["open files"] is None else f"{some['open files']:,}"
    return Result(OK, "limits", f"open files {files}, file size unlimited, core dumps {core}")
