"""Check, before jobs are submitted, that the Slurm cluster has the resources that they request.

sbatch accepts jobs that can never start, for example above a time limit, and Snakemake waits for them forever.
Jobs that sbatch rejects are submitted again as often as `retries` allows, and the reason is hard to find.
"""

from __future__ import annotations

import getpass
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scripts.slurm.limits import refusals, too_many_jobs
from scripts.slurm.nodes import SINFO, Nodes, output_of, parse_gpus, parse_sinfo

if TYPE_CHECKING:
    from snakemake.workflow import Workflow

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
    cluster = _cluster()
    mistakes = [find_mistake(rule, resources, cluster) for rule, resources in requests] + _unknown_accounts(requests)
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


def _cluster() -> list[Nodes]:
    try:
        return parse_sinfo(output_of(*SINFO))
    except ValueError:
        return []


def _unknown_accounts(requests: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str | None]:
    names = sorted({str(resources["slurm_account"]) for _, resources in requests if resources.get("slurm_account")})
    known = output_of(*ACCOUNTS, f"user={getpass.getuser()}").split() if names else []
    return [unknown_account(name, known) for name in names]


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
    for key, kind, number in _requested(resources):
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


def _requested(resources: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """(resource, type of GPU, number) of each requested resource of one node, and of the time limit."""
    found = [("gres", kind, number) for kind, number in parse_gpus(str(resources.get("gres") or "")).items()]
    numbers = {key: _number(resources, key) for key in UNITS if key != "gres"}
    return found + [(key, "", number) for key, number in numbers.items() if number]


def _number(resources: Mapping[str, Any], key: str) -> int | None:
    """Value of a resource; None if another resource replaces it, or if it is text, which means not known yet."""
    value = resources.get(key)
    if not isinstance(value, int) or any(resources.get(name) for name in REPLACED_BY[key]):
        return None
    return value


def _split(names: object) -> list[str]:
    return [name for name in re.split(r"[,\s]+", str(names or "")) if name]
