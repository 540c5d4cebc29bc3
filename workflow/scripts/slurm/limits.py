"""Checks of jobs by Slurm itself before they are submitted: its submit limits, and the answer of sbatch."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scripts.slurm.nodes import TIMEOUT_SECONDS, output_of

if TYPE_CHECKING:
    from snakemake.workflow import Workflow

ASSOCIATIONS = ("sacctmgr", "--noheader", "--parsable2", "list", "associations", "format=account,maxsubmit,defaultqos")
QOS = ("sacctmgr", "--noheader", "--parsable2", "list", "qos", "format=name,maxsubmitpu")
NODE_STATES = ("sinfo", "--all", "--noheader", "--Node", "--format=%N|%T")
AVAILABLE = re.compile(r"(idle|allocated|mixed|completing|planned|blocked)[~#+-]*")
"""States of nodes that take jobs, now or after those that run. ~ and # are nodes that Slurm starts when it needs them;
other marks, for example * (no answer) or $ (maintenance), are nodes that take none."""
MAX_NAMES = 4
PASSING = re.compile(r"down, drained or reserved|contact|timed out|busy|temporar|unavailable", re.I)
"""Reasons of sbatch that may be over when the job is to start."""


def submit_limit(account: str | None, qos: str | None) -> int | None:
    """Return how many jobs Slurm lets this user have in the queue; None if it sets no limit, or has no accounting."""
    rows = [line.split("|") for line in output_of(*ASSOCIATIONS, f"user={getpass.getuser()}").splitlines()]
    rows = [row for row in rows if len(row) == 3 and account in (None, row[0])]
    limits = dict(line.split("|", 1) for line in output_of(*QOS).splitlines() if "|" in line)
    found = [min(_numbers(limit, limits.get(qos or default, "")), default=None) for _, limit, default in rows]
    numbers = [number for number in found if number is not None]
    return max(numbers) if numbers and len(numbers) == len(found) else None


def _numbers(*texts: str) -> list[int]:
    return [int(text) for text in texts if text.isdigit()]


def too_many_jobs(num_jobs: int, at_a_time: int, requests: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the error message for more jobs in the queue than Slurm accepts. It would reject the others, and each
    rejection uses one of `retries`.
    """
    pairs = {(resources.get("slurm_account"), resources.get("qos")) for resources in requests}
    limits = [submit_limit(account, qos) for account, qos in pairs]
    limit = min((limit for limit in limits if limit is not None), default=None)
    if limit is None or min(num_jobs, at_a_time) <= limit:
        return None
    return f"the profile's `jobs` must be at most {limit}, as many as you may submit (MaxSubmitJobs), got {at_a_time}"


def refusals(workflow: Workflow, jobs: Sequence[Any]) -> tuple[list[str], list[str]]:
    """Return (error messages, warnings) for jobs that `sbatch --test-only` refuses; one per rule and kind of refusal.

    It refuses a job also if nodes that the job needs are drained or down, with the words for a job that can never run.
    sbatch itself queues such a job until they return. So a refusal is a warning while nodes are not available.
    """
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string

    executor = workflow.scheduler.get_executor(jobs[0])
    asked: dict[str, Any] = {}
    for job in jobs:
        params = {
            **{"run_uuid": "check", "slurm_logfile": os.devnull, "comment_str": "check", "workdir": os.getcwd()},
            **{"account": next(executor.get_account_arg(job)), "partition": executor.get_partition_arg(job)},
        }
        command = get_submit_command(job, params, settings=workflow.executor_settings) + set_gres_string(job)
        asked.setdefault(command, job)
    errors: dict[str, None] = {}
    warnings: dict[str, None] = {}
    for command, job in asked.items():
        if text := _refusal(f"{command} --test-only --wrap=true"):
            refused = f"sbatch refuses the resources that the profile sets for {job.rule.name}: {text}"
            cluster = next(filter(None, map(job.resources.get, ("cluster", "clusters", "slurm_cluster"))), None)
            if away := unavailable_nodes(job.resources.get("slurm_partition"), cluster):
                warnings[f"{refused}; it may wait for nodes that are not available: {', '.join(away)}"] = None
            else:
                errors[refused] = None
    return [*errors], [*warnings]


def unavailable_nodes(partition: str | None, cluster: str | None) -> list[str]:
    """Return the nodes of a partition (None: of all) that take no jobs now, each with its state: "node3 drained"."""
    options = [*(["--partition", partition] if partition else []), *(["--clusters", cluster] if cluster else [])]
    rows = [line.split("|") for line in output_of(*NODE_STATES, *options).splitlines()]
    away = {f"{row[0]} {row[1]}" for row in rows if len(row) == 2 and not AVAILABLE.fullmatch(row[1])}
    names = sorted(away)
    return [*names[:MAX_NAMES], f"{len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else names


def _refusal(command: str) -> str | None:
    try:
        words = shlex.split(command)
    except ValueError as error:
        return str(error)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    reason = re.sub(r"^(sbatch: |error: |allocation failure: )+", "", lines[-1]) if lines else f"{done.returncode}"
    return None if done.returncode == 0 or PASSING.search(reason) else reason
