"""Check, before jobs are submitted, that the Slurm cluster has the resources that they request.

sbatch accepts jobs that can never start, for example above a time limit, and Snakemake waits for them forever.
Jobs that sbatch rejects are submitted again as often as `retries` allows, and the reason is hard to find.
"""

from __future__ import annotations

import getpass
import math
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scripts.slurm.jobs import SINFO, TIMEOUT_SECONDS, Nodes, output_of, parse_gpus, parse_sinfo

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
OF_NODES = re.compile(r"configuration (is )?not available", re.I)
"""Reasons of sbatch that drained nodes have in common with a request that no node can serve."""


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

    It refuses a job also if nodes that the job needs are drained or down, with the words for a request that no node can
    serve. sbatch itself queues such a job until they return. So these words are a warning while nodes are away.
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
            partition = job.resources.get("slurm_partition")
            if OF_NODES.search(text) and (away := unavailable_nodes(partition, cluster)):
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


ACCOUNTS = ("sacctmgr", "--noheader", "--parsable2", "list", "associations", "format=account")
UNITS = {"gres": "GPUs per node", "threads": "cores per node", "mem_mb": "MB per node", "runtime": "minutes"}
"""Resources of one node, and the time limit, as a profile names them."""
REPLACED_BY = {
    "threads": ("cpus_per_task", "cpus_per_gpu"),
    "mem_mb": ("mem_mb_per_cpu",),
    "runtime": ("qos",),
    "nodes": ("qos",),
}
"""{resource: other resources that replace it}; a qos may raise the limits of a partition."""


class SlurmError(Exception):
    """Jobs request resources that the cluster does not have. The message has one sentence per mistake."""


def check_slurm(workflow: Workflow) -> list[str]:
    """Raise SlurmError if a job that Snakemake is about to submit to Slurm can never run.

    Return sentences on jobs that may have to wait for nodes that are not available now.
    """
    if workflow.executor_plugin.name != "slurm":
        return []
    if shutil.which("sbatch") is None:
        raise SlurmError(
            "the profile's `executor: slurm` needs the command sbatch, which is not on PATH: "
            "run snakemake on a login node of the cluster, or use --profile profiles/local"
        )
    jobs = [job for job in workflow.dag.needrun_jobs() if not job.is_local]
    requests = [(job.rule.name, {"threads": job.threads, **job.resources}) for job in jobs]
    try:
        cluster = parse_sinfo(output_of(*SINFO))
    except ValueError:
        cluster = []
    names = sorted({str(resources["slurm_account"]) for _, resources in requests if resources.get("slurm_account")})
    accounts = output_of(*ACCOUNTS, f"user={getpass.getuser()}").split() if names else []
    mistakes = [find_mistake(rule, resources, cluster) for rule, resources in requests]
    mistakes += [unknown_account(name, accounts) for name in names]
    mistakes += [fewer_nodes(rule, resources) for rule, resources in requests]
    at_a_time = workflow.resource_settings.nodes or len(jobs)
    mistakes.append(too_many_jobs(len(jobs), at_a_time, [resources for _, resources in requests]))
    warnings: list[str] = []
    if jobs and not any(mistakes):
        errors, warnings = refusals(workflow, jobs)
        mistakes += errors
    if sentences := list(dict.fromkeys(filter(None, mistakes))):
        raise SlurmError("; ".join(sentences))
    return warnings


def unknown_account(name: str, known: Sequence[str]) -> str | None:
    """Return the error message for an account that is not one of the user's `known` accounts, regardless of case.

    None if it is, or if `known` is empty, since the cluster then has no accounting.
    """
    names = {each.lower() for each in _split(name)}
    if not known or names <= {each.lower() for each in known}:
        return None
    return f"the profile's `slurm_account` must be one of yours, {', '.join(sorted(set(known)))}, got {name}"


def find_mistake(rule: str, resources: Mapping[str, Any], cluster: Sequence[Nodes]) -> str | None:
    """Return the error message for resources of a job that the cluster does not have.

    None if the job may run, or if the cluster is unknown. Without a partition, nodes of all partitions are considered,
    since a site may choose the partition itself.
    """
    if any(resources.get(name) for name in ("cluster", "clusters", "slurm_cluster")):
        return None
    names = _split(resources.get("slurm_partition"))
    known = sorted({group.partition for group in cluster})
    for name in names:
        if known and name not in known:
            return f"the profile's `slurm_partition` of {rule} must be one of {', '.join(known)}, got {name}"
    place = f"partition {','.join(names)}" if names else "this cluster"
    # a partition may hide its nodes, and then shows none
    groups = [group for group in cluster if group.nodes and (not names or group.partition in names)]
    return _beyond(rule, resources, groups, place)


def fewer_nodes(rule: str, resources: Mapping[str, Any]) -> str | None:
    """Return the error message for a job that would get fewer nodes than it requests.

    Without GPUs the plugin passes --ntasks, and Slurm gives no job more nodes than tasks.
    """
    nodes, tasks = resources.get("nodes"), resources.get("tasks") or 1
    with_gpus = resources.get("gpu") or "gpu" in str(resources.get("gres") or "")
    if with_gpus or resources.get("mpi") or not isinstance(nodes, int) or nodes <= tasks:
        return None
    return f"the profile's `tasks` of {rule} must be its `nodes`, {nodes}, since it has no GPUs in `gres`, got {tasks}"


def _beyond(rule: str, resources: Mapping[str, Any], groups: list[Nodes], place: str) -> str | None:
    """Filter the nodes by one resource after the other; the first that no remaining node has is the mistake."""
    where = ""
    requested = [("gres", kind, number) for kind, number in parse_gpus(str(resources.get("gres") or "")).items()]
    numbers = {key: _number(resources, key) for key in UNITS if key != "gres"}
    requested += [(key, "", number) for key, number in numbers.items() if number]
    for key, kind, number in requested:
        most = max((group.has(key, kind) for group in groups), default=math.inf)
        if most < number:
            unit = f"{kind} {UNITS[key]}".strip()
            return (
                f"the profile's `{key}` of {rule} requests {number} {unit}, but {place} has at most {most:.0f}{where}"
            )
        fit = [group for group in groups if group.has(key, kind) >= number]
        if len(fit) < len(groups):
            groups, where = fit, " on nodes with its other resources"
    return _beyond_nodes(rule, resources, groups, place)


def _beyond_nodes(rule: str, resources: Mapping[str, Any], groups: Sequence[Nodes], place: str) -> str | None:
    number = _number(resources, "nodes")
    num_nodes: dict[str, int] = {}
    for group in groups:
        num_nodes[group.partition] = num_nodes.get(group.partition, 0) + group.nodes
    if not num_nodes or not number or number <= (most := max(num_nodes.values())):
        return None
    return f"the profile's `nodes` of {rule} requests {number} nodes, but {place} has at most {most} that fit"


def _number(resources: Mapping[str, Any], key: str) -> int | None:
    """Value of a resource; None if another resource replaces it, or if it is text, which means not known yet."""
    value = resources.get(key)
    if not isinstance(value, int) or any(resources.get(name) for name in REPLACED_BY[key]):
        return None
    return value


def _split(names: object) -> list[str]:
    return [name for name in re.split(r"[,\s]+", str(names or "")) if name]
