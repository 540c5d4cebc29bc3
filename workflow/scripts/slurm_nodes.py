"""What the nodes of a Slurm cluster have, as sinfo says it."""

import math
import re
from dataclasses import dataclass

SINFO = ("sinfo", "--all", "--exact", "--noheader", "--format=%R|%D|%c|%m|%l|%G")
"""One line a kind of node and partition, hidden ones too: partition, nodes, cores, MB, time limit, GPUs."""


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Nodes of one kind in a partition, by the words of a profile.

    `threads` and `mem_mb` are those of one node, `gres` its GPUs as {type: number} with "" for those without a type.
    `runtime` is the partition's limit in minutes.
    """

    partition: str
    nodes: int
    threads: int
    mem_mb: int
    runtime: float
    gres: dict

    def has(self, key, kind):
        """How much of `key` a job can have on each of these nodes: of GPUs, those of a type, or with "" all."""
        if key != "gres":
            return getattr(self, key)
        # a cluster that names no types may have GPUs of any
        return sum(number for own, number in self.gres.items() if not kind or own in ("", kind))


def read(text):
    """The `Nodes` in the output of `SINFO`. Raises ValueError where it is not what was asked for."""
    return [_nodes(*line.split("|", 5)) for line in text.splitlines()]


def _nodes(partition, nodes="", threads="", mem_mb="", limit="", gres=""):
    return Nodes(
        partition=partition,
        nodes=int(nodes),
        threads=int(threads),
        mem_mb=int(mem_mb),
        runtime=_minutes(limit),
        gres=gpus_of(gres),
    )


def _minutes(limit):
    """Minutes of [days-][hours:]minutes:seconds; endless for all else, as `infinite`."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if not found:
        return math.inf
    days, hours, minutes, seconds = (int(number or 0) for number in found.groups())
    return (24 * days + hours) * 60 + minutes + seconds / 60


def gpus_of(gres):
    """{type: GPUs} of Slurm's text, as `gpu:a100:4(S:0-1),lustre:1` or `gpu:2`; the type is "" where it names none."""
    found = {}
    for each in re.sub(r"\([^)]*\)", "", gres).lower().split(","):
        if gpus := re.fullmatch(r"(?:gres[/:])?gpu(?::([^:]+?))??(?::(\d+))?", each.strip()):
            kind = gpus[1] or ""
            found[kind] = found.get(kind, 0) + int(gpus[2] or 1)
    return found
