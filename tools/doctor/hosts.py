"""The checks of each host: ranks and cores, versions and code, temporary directory and limits of a process."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import operator
import os
import platform
import re
import resource
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from stages.lib.render.numbers import several
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

PACKAGES = ("torch", "snakemake", "pyarrow", "sentencepiece", "transformers", "lm-eval")
MIN_PYTHON = (3, 11)
HOME = Path(__file__).resolve().parents[2]
MIN_TEMP_BYTES = 1e9  # compiled kernels, Arrow files of evaluation data
MIN_SHARED_BYTES = 1e9  # buffers of NCCL and data loaders; containers often have 64 MB
MIN_OPEN_FILES = 4096
LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "file size": resource.RLIMIT_FSIZE,
    "core": resource.RLIMIT_CORE,
    "locked": resource.RLIMIT_MEMLOCK,
}


def collect_cores(_: Rendezvous, __: argparse.Namespace) -> dict[str, Any]:
    """Return the cores that this process may use, and its number of computing threads: by default all, as in torch."""
    cores = sorted(os.sched_getaffinity(0))
    value = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return {"cores": cores, "threads": int(value) if value.isdecimal() and int(value) else len(cores)}


def evaluate_ranks(reports: Reports, _: argparse.Namespace) -> Finding:
    """Compare the numbers of ranks of the hosts."""
    counts = Counter(report["host"] for report in reports.values())
    text = f"{several(counts.total(), 'rank')} on {several(len(counts), 'host')}: {join_names(counts)}"
    if len(set(counts.values())) == 1:
        return OK, text
    uneven = join_names(f"{count} on {host}" for host, count in counts.items())
    return WARNING, f"{text}; hosts have different numbers of ranks ({uneven}): use the same on each"


def evaluate_cores(reports: Reports, _: argparse.Namespace) -> Finding:
    """Look for hosts whose ranks have more threads than cores."""
    by_host: dict[str, list[dict[str, Any]]] = {}
    for report in reports.values():
        by_host.setdefault(report["host"], []).append(report)
    short, texts = [], []
    for host, ranks in by_host.items():
        num_cores = len({core for report in ranks for core in report["cores"]})
        texts.append(f"{len(ranks)} x {several(ranks[0]['threads'], 'thread')} on {several(num_cores, 'core')}")
        if sum(report["threads"] for report in ranks) > num_cores:
            short.append(f"{texts[-1]} of {host}")
    if short:
        remedy = "lower `omp_threads`, or raise the job's `threads`, in the profile"
        return WARNING, f"more threads than cores, {join_names(short)}: {remedy}"
    return OK, f"ranks x threads per host: {join_names(texts)}"


def collect_versions(_: Rendezvous, __: argparse.Namespace) -> dict[str, Any]:
    """Return the versions of Python and the packages (None if missing), and a digest of the code."""
    packages: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    return {
        "python": platform.python_version(),
        "new enough": sys.version_info >= MIN_PYTHON,
        "packages": packages,
        "code": code_digest(HOME / "stages"),
    }


def code_digest(directory: Path) -> str:
    """Return the sha256 of the names and bytes of all Python files of a directory, in hexadecimal."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(directory)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def evaluate_versions(reports: Reports, _: argparse.Namespace) -> Finding:
    """Compare the versions of the ranks with each other, and with requirements.txt."""
    for report in reports.values():
        if not report["new enough"]:
            required = ".".join(map(str, MIN_PYTHON))
            return FAIL, f"Python must be {required} or later, found {report['python']} on {report['host']}"
        if missing := [name for name, version in report["packages"].items() if version is None]:
            return FAIL, f"{', '.join(missing)} not installed on {report['host']}: pip install -r requirements.txt"
    versions = {rank: report["packages"] | report for rank, report in reports.items()}
    differing = [
        f"{name} {by_host}"
        for name in ("python", *PACKAGES)
        if (by_host := differences(versions, operator.itemgetter(name)))
    ]
    if differing:
        return FAIL, f"ranks differ: {'; '.join(differing)}: use the same environment on all hosts"
    requirements = HOME / "requirements.txt"
    text = requirements.read_text(encoding="utf-8") if requirements.exists() else ""
    pinned = dict(re.findall(r"^([a-z0-9-]+)==([^\s;#]+)", text, re.M))
    first = next(iter(reports.values()))
    other = [
        f"{name} {version} instead of {pinned[name]}"
        for name, version in first["packages"].items()
        # +cpu and +cu128 are builds of one version
        if name in pinned and version.partition("+")[0] != pinned[name]
    ]
    if other:
        return WARNING, f"not as pinned: {', '.join(other)}: pip install -r requirements.txt"
    return OK, ", ".join([f"Python {first['python']}", *(f"{name} {v}" for name, v in first["packages"].items())])


def evaluate_code(reports: Reports, _: argparse.Namespace) -> Finding:
    """Compare the code of the ranks."""
    first = next(iter(reports.values()))["code"]
    if other := host_names(reports, lambda report: report["code"] != first):
        return FAIL, f"stages/ on {other} differs from the first rank's: use the same checkout"
    return OK, f"stages/ {first[:12]}" + (" on all ranks" if len(reports) > 1 else "")


def collect_limits(_: Rendezvous, __: argparse.Namespace) -> dict[str, Any]:
    """Return data on this rank's host; sizes in bytes, None for no limit or a missing directory."""
    # not tempfile.gettempdir(), which silently falls back to another directory
    directory = os.environ.get("TMPDIR") or "/tmp"
    report: dict[str, Any] = {"directory": directory, "error": None, "free": None}
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"x" * 2**20)
        report["free"] = shutil.disk_usage(directory).free
    except OSError as error:
        report["error"] = error.strerror
    shared, infiniband = Path("/dev/shm"), Path("/sys/class/infiniband")
    report["shared"] = shutil.disk_usage(shared).total if shared.is_dir() else None
    report["infiniband"] = infiniband.is_dir() and any(infiniband.iterdir())
    for name, kind in LIMITS.items():
        soft, _hard = resource.getrlimit(kind)
        report[name] = None if soft == resource.RLIM_INFINITY else soft
    return report


def evaluate_directories(reports: Reports, _: argparse.Namespace) -> Finding:
    """Look for temporary directories that cannot be written, and for little space there or in shared memory."""
    for report in reports.values():
        if report["error"]:
            where = host_names(reports, lambda one: one["error"])
            return FAIL, f"{report['directory']} is not writable on {where} ({report['error']}): set TMPDIR"
    for report in reports.values():
        host, directory = report["host"], report["directory"]
        if report["free"] < MIN_TEMP_BYTES:
            return WARNING, f"{directory} has {amount(report['free'])} free on {host}: delete files, or set TMPDIR"
        if report["shared"] is not None and report["shared"] < MIN_SHARED_BYTES:
            return WARNING, f"/dev/shm has {amount(report['shared'])} on {host}: NCCL may need more (docker --shm-size)"
    first = next(iter(reports.values()))
    least = min(report["free"] for report in reports.values())
    return OK, f"{first['directory']} is writable, {amount(least)} free"


def evaluate_limits(reports: Reports, _: argparse.Namespace) -> Finding:
    """Look for limits that a training may exceed."""

    def where(ranks: list[dict[str, Any]]) -> str:
        return join_names(report["host"] for report in ranks)

    ranks, texts = reports.values(), []
    if few := [report for report in ranks if report["open files"] and report["open files"] < MIN_OPEN_FILES]:
        least = min(report["open files"] for report in few)
        texts.append(f"`ulimit -n` must be at least {MIN_OPEN_FILES}, is {least} on {where(few)}")
    if small := [report for report in ranks if report["file size"] is not None]:
        least = min(report["file size"] for report in small)
        texts.append(f"`ulimit -f` limits files to {amount(least)} on {where(small)}: set it to unlimited")
    if locked := [report for report in ranks if report["infiniband"] and report["locked"] is not None]:
        texts.append(f"`ulimit -l` is limited on {where(locked)}: InfiniBand needs unlimited")
    if texts:
        return WARNING, "; ".join(texts)
    first = next(iter(ranks))
    files = "unlimited" if first["open files"] is None else f"{first['open files']:,}"
    return OK, f"open files {files}, file size unlimited, core dumps {'off' if first['core'] == 0 else 'on'}"


NODES = Check(20.0, collect_cores, {"nodes": evaluate_ranks, "cores": evaluate_cores})
VERSIONS = Check(30.0, collect_versions, {"versions": evaluate_versions, "code": evaluate_code})
HOST = Check(15.0, collect_limits, {"temp_dir": evaluate_directories, "limits": evaluate_limits})
