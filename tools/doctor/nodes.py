"""Check that all ranks joined, and that there is a core for each of their threads."""

from __future__ import annotations

import argparse
import os
from typing import Any

from tools.doctor.rendezvous import Rendezvous
from tools.doctor.result import OK, WARNING, Reports, Result, join_names

NAME, TIMEOUT_SECONDS = "nodes", 20.0


def collect(_: Rendezvous, __: argparse.Namespace) -> dict[str, Any]:
    """Return the cores that this process may use, and its number of threads."""
    cores = sorted(os.sched_getaffinity(0))
    return {"cores": cores, "threads": _num_threads(len(cores))}


def _num_threads(num_cores: int) -> int:
    """Return the number of computing threads of a process: OMP_NUM_THREADS, by default all cores, as in torch."""
    value = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(value) if value.isdecimal() and int(value) else num_cores


def evaluate(reports: Reports, _: argparse.Namespace) -> list[Result]:
    """Return one result on ranks and hosts, and one on cores and threads."""
    by_host: dict[str, list[dict[str, Any]]] = {}
    for report in reports.values():
        by_host.setdefault(report["host"], []).append(report)
    return [_evaluate_ranks(by_host), _evaluate_cores(by_host)]


def _evaluate_ranks(by_host: dict[str, list[dict[str, Any]]]) -> Result:
    counts = {host: len(ranks) for host, ranks in by_host.items()}
    text = f"{_count(sum(counts.values()), 'rank')} on {_count(len(counts), 'host')}: {join_names(counts)}"
    if len(set(counts.values())) == 1:
        return Result(OK, NAME, text)
    uneven = join_names(f"{count} on {host}" for host, count in counts.items())
    return Result(WARNING, NAME, f"{text}; hosts have different numbers of ranks ({uneven}): use the same on each")


def _evaluate_cores(by_host: dict[str, list[dict[str, Any]]]) -> Result:
    short, texts = [], []
    for host, ranks in by_host.items():
        num_cores = len({core for report in ranks for core in report["cores"]})
        num_threads = ranks[0]["threads"]
        texts.append(f"{len(ranks)} x {_count(num_threads, 'thread')} on {_count(num_cores, 'core')}")
        if sum(report["threads"] for report in ranks) > num_cores:
            short.append(f"{texts[-1]} of {host}")
    if short:
        remedy = "lower `omp_threads`, or raise the job's `threads`, in the profile"
        return Result(WARNING, "cores", f"more threads than cores, {join_names(short)}: {remedy}")
    return Result(OK, "cores", f"ranks x threads per host: {join_names(texts)}")


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
