"""Nodes and jobs of Slurm, as its commands print them."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
        runtime=math.inf if (seconds := _seconds_of(limit)) is None else seconds / 60,
        gres=parse_gpus(gres),
    )


def _seconds_of(duration: str) -> int | None:
    """Return the seconds of [days-][hours:]minutes:seconds; None for other text, such as `infinite`."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", duration)
    if not found:
        return None
    days, hours, minutes, seconds = (int(number or 0) for number in found.groups())
    return ((24 * days + hours) * 60 + minutes) * 60 + seconds


def parse_gpus(gres: str) -> dict[str, int]:
    """Parse Slurm's `gpu:a100:4(S:0-1),lustre:1` or `gpu:2` into `{type: GPUs}`; the type is "" if it is missing."""
    found: dict[str, int] = {}
    for each in re.sub(r"\([^)]*\)", "", gres).lower().split(","):
        if gpus := re.fullmatch(r"(?:gres[/:])?gpu(?::([^:]+?))??(?::(\d+))?", each.strip()):
            kind = gpus[1] or ""
            found[kind] = found.get(kind, 0) + int(gpus[2] or 1)
    return found


LAST_LINES = 12
BLOCK = re.compile(r"SNAKEMAKE|(local)?(rule|checkpoint) \w+:|Error in rule \w+:|Waiting at most .*|jobid: .*")
"""Lines after which Snakemake prints indented fields."""
NOISE = re.compile(
    r"=*|\[\w{3} \w{3} .*\d{4}\]|Building DAG of jobs.*|Using shell:.*|Provided .*|Rules claiming more threads.*|"
    r"Conda environments:.*|Select jobs to execute.*|Execute \d+ jobs.*|RuleException:|CalledProcessError in file .*|"
    r"Command '.*' returned non-zero exit status (\d{1,2}|1[01]\d|12[0-8])\.|Shutting down, this might.*|"
    r"Exiting because a job .*|Storing output in storage\.|Elapsed time: .*|WorkflowError:|At least one job did not .*|"
    r"Removing output files .*|Complete log.*|Finished jobid: .*|"
    r"\d+ of \d+ steps .*|srun: cluster configuration lacks .*"
)
"""Other lines of the two Snakemakes inside of a job."""
KILLED = re.compile(
    r"oom.?kill|memory limit|out of memory|MemoryError|\bKilled\b|died with <Signals|exit status (129|1[3-9]\d)\.", re.I
)
"""Lines of a job whose command a signal ended: by a lack of memory Linux sends SIGKILL. Snakemake then exits with 1."""
SIGNALS = 128
"""A shell's exit code of a command that a signal ended is larger."""


@dataclass(frozen=True, kw_only=True)
class EndedJob:
    """State of a job that Slurm still keeps."""

    job: str
    state: str
    reason: str
    exit_code: str
    """Exit code and signal, for example 1:0."""
    seconds: int
    nodes: str
    """As Slurm abbreviates them."""
    num_nodes: int
    partition: str

    def describe(self) -> str:
        """Return one sentence for the user."""
        reason = "" if self.reason in ("", "None", "NonZeroExitCode") else f", reason {self.reason}"
        code, _, number = self.exit_code.partition(":")
        ended = f"signal {number}" if number not in ("", "0") else f"exit code {code or 'unknown'}"
        return (
            f"Slurm job {self.job} ended as {self.state} ({ended}{reason}) on {self.nodes or 'no node'} "
            f"after {self.seconds} s."
        )

    def may_be_its_nodes_fault(self, log: Sequence[str]) -> bool:
        """Return whether the job's one node may be why it ended. `log`: the last lines of the job's own log.

        Not if a user, the time limit or a preemption ended it, nor if a signal did, as a lack of memory does.
        """
        code, _, number = self.exit_code.partition(":")
        killed = number not in ("", "0") or (code.isdigit() and int(code) > SIGNALS) or any(map(KILLED.search, log))
        return (
            bool(self.nodes)
            and self.num_nodes == 1
            and (self.state in ("NODE_FAIL", "BOOT_FAIL") or (self.state == "FAILED" and not killed))
        )


def look_up(job: str) -> EndedJob | None:
    """Return what Slurm reports of a job; None if it does not know it. Slurm forgets a job after MinJobAge seconds."""
    found = dict(re.findall(r"(\S+?)=(\S*)", output_of("scontrol", "show", "job", "--oneliner", job)))
    if found:
        keys = ("JobState", "Reason", "ExitCode", "RunTime", "NodeList", "NumNodes", "Partition")
        return _ended(job, *(found.get(key, "").replace("(null)", "") for key in keys))
    row = "State,Reason,ExitCode,Elapsed,NodeList,NNodes,Partition"
    lines = output_of("sacct", "--noheader", "--parsable2", "--allocations", f"--format={row}", f"--jobs={job}")
    fields = lines.partition("\n")[0].split("|")
    return _ended(job, *fields) if len(fields) == row.count(",") + 1 else None


def _ended(
    job: str, state: str, reason: str, exit_code: str, elapsed: str, nodes: str, num_nodes: str, partition: str
) -> EndedJob:
    return EndedJob(
        job=job,
        state=state.partition(" ")[0] or "unknown",  # sacct prints CANCELLED by 0
        reason=reason,
        exit_code=exit_code,
        seconds=_seconds_of(elapsed) or 0,
        nodes="" if nodes == "None assigned" else nodes,
        num_nodes=int(num_nodes) if num_nodes.isdigit() else 0,
        partition=partition,
    )


def nodes_of_partition(partition: str) -> list[str]:
    """Return the names of the nodes of a partition; [] if sinfo does not answer."""
    return sorted(set(output_of("sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N").split()))


def last_lines(log: Path) -> list[str]:
    """Return the last lines of a job's log that Snakemake did not write: by srun, the site, launch, the stage."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return list(_without_snakemake(text.splitlines()))[-LAST_LINES:]


def _without_snakemake(lines: Iterable[str]) -> Iterator[str]:
    in_block = False
    for line in lines:
        if in_block and (line.startswith(" ") or not line.strip("=")):
            continue
        in_block = bool(BLOCK.fullmatch(line))
        if not in_block and not NOISE.fullmatch(line):
            yield line
