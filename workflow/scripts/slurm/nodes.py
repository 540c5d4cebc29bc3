"""The output of Slurm's commands, and the nodes of a cluster with their resources, read from sinfo."""

from __future__ import annotations

import math
import re
import subprocess
from dataclasses import dataclass

SINFO = ("sinfo", "--all", "--exact", "--noheader", "--format=%R|%D|%c|%m|%l|%G")
"""One line per partition and kind of node, hidden ones too: partition, nodes, cores, MB, time limit, GPUs."""


TIMEOUT_SECONDS = 10


def output_of(*command: str) -> str:
    """Return the output of a Slurm command; empty if it fails, since sbatch will then report the cause."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Nodes of one kind in a partition. Fields are named as in a profile."""

    partition: str
    nodes: int
    threads: int
    """Cores per node."""
    mem_mb: int
    """Memory per node."""
    runtime: float
    """Time limit of the partition in minutes."""
    gres: dict[str, int]
    """GPUs per node: `{type: number}`, "" for GPUs without a type."""

    def has(self, key: str, kind: str) -> float:
        """Return how much of `key` each of these nodes has. For GPUs: those of type `kind`, or all if it is ""."""
        if key != "gres":
            return getattr(self, key)
        # GPUs without a type may be of any type
        return sum(number for own, number in self.gres.items() if not kind or own in ("", kind))


def parse_sinfo(text: str) -> list[Nodes]:
    """Parse the output of `SINFO`. Raises ValueError if it has another form."""
    return [_nodes(*line.split("|", 5)) for line in text.splitlines()]


def _nodes(
    partition: str, nodes: str = "", threads: str = "", mem_mb: str = "", limit: str = "", gres: str = ""
) -> Nodes:
    return Nodes(
        partition=partition,
        nodes=int(nodes),
        threads=int(threads),
        mem_mb=int(mem_mb),
        runtime=_minutes(limit),
        gres=parse_gpus(gres),
    )


def _minutes(limit: str) -> float:
    """Minutes of [days-][hours:]minutes:seconds; infinity for any other text, such as `infinite`."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if not found:
        return math.inf
    days, hours, minutes, seconds = (int(number or 0) for number in found.groups())
    return (24 * days + hours) * 60 + minutes + seconds / 60


def parse_gpus(gres: str) -> dict[str, int]:
    """Parse Slurm's `gpu:a100:4(S:0-1),lustre:1` or `gpu:2` into `{type: GPUs}`; the type is "" if it is missing."""
    found: dict[str, int] = {}
    for each in re.sub(r"\([^)]*\)", "", gres).lower().split(","):
        if gpus := re.fullmatch(r"(?:gres[/:])?gpu(?::([^:]+?))??(?::(\d+))?", each.strip()):
            kind = gpus[1] or ""
            found[kind] = found.get(kind, 0) + int(gpus[2] or 1)
    return found
