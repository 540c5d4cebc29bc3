"""Whether a cluster has what the jobs ask for that are about to be sent to it, by one question to it, or two.

sbatch takes jobs that can never start, as those above a partition's time limit, and Snakemake waits for them for ever.
What it refuses, the plugin sends as often as `retries` allows, and the reason stands among pages.
"""

import getpass
import math
import re
import shutil
import subprocess

from scripts.slurm_nodes import SINFO, gpus_of, read

ACCOUNTS = ("sacctmgr", "--noheader", "--parsable2", "list", "associations", "format=account")
PATIENCE = 10  # seconds for an answer
UNITS = {"gres": "GPUs a node", "threads": "cores a node", "mem_mb": "MB a node", "runtime": "minutes"}
"""What one node must have, and the time, by the words of a profile."""
INSTEAD = {
    "threads": ("cpus_per_task", "cpus_per_gpu"),
    "mem_mb": ("mem_mb_per_cpu",),
    "runtime": ("qos",),
    "nodes": ("qos",),
}
"""{key: others by which it does not count}; a qos may lift what a partition allows."""


class SlurmError(Exception):
    """Jobs ask for things that the cluster does not have. The message is one sentence for each of them."""


def check_slurm(workflow):
    """Raise SlurmError where jobs that a Snakemake workflow is about to submit to Slurm can never run."""
    if workflow.executor_plugin.name != "slurm":
        return
    if shutil.which("sbatch") is None:
        raise SlurmError(
            "the profile's `executor: slurm` needs the command sbatch, and PATH has none: "
            "call snakemake on a login node of the cluster, or take --profile profiles/local"
        )
    jobs = [job for job in workflow.dag.needrun_jobs() if not job.is_local]
    wanted = [(job.rule.name, {"threads": job.threads, **job.resources}) for job in jobs]
    cluster = _cluster()
    said = [mistake(rule, resources, cluster) for rule, resources in wanted] + _unknown_accounts(wanted)
    if said := list(dict.fromkeys(filter(None, said))):
        raise SlurmError("; ".join(said))


def _cluster():
    try:
        return read(_ask(*SINFO))
    except ValueError:
        return []


def _unknown_accounts(wanted):
    names = sorted({str(resources["slurm_account"]) for _, resources in wanted if resources.get("slurm_account")})
    known = _ask(*ACCOUNTS, f"user={getpass.getuser()}").split() if names else []
    return [unknown_account(name, known) for name in names]


def _ask(*command):
    """What a command of Slurm says; nothing where it fails: Slurm will tell what is wrong, when it gets the jobs."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def unknown_account(name, known):
    """The sentence that an account is none of a person's; None where it is, or where `known` is empty: no accounting.

    Case does not count.
    """
    asked = {each.lower() for each in _split(name)}
    if not known or asked <= {each.lower() for each in known}:
        return None
    return f"the profile's `slurm_account` must be one of yours, {', '.join(sorted(set(known)))}, got {name}"


def mistake(rule, resources, cluster):
    """What a rule asks for and the cluster has nowhere, in a sentence; None where it may run, or nothing is known.

    `resources`: {name: value} of a job. Without a partition, all are looked at: a site may choose one by itself.
    """
    if any(resources.get(name) for name in ("cluster", "clusters", "slurm_cluster")):
        return None
    names = _split(resources.get("slurm_partition"))
    known = sorted({group.partition for group in cluster})
    for name in names:
        if known and name not in known:
            return f"the profile's `slurm_partition` of {rule} must be one of {', '.join(known)}, got {name}"
    place = f"partition {','.join(names)}" if names else "this cluster"
    # a partition that shows no nodes may hide them
    left = [group for group in cluster if group.nodes and (not names or group.partition in names)]
    return _beyond(rule, resources, left, place)


def _beyond(rule, resources, left, place):
    """Look for nodes that have all at once; the first thing that none of those left has is the mistake."""
    where = ""
    for key, kind, asked in _asked(resources):
        most = max((group.has(key, kind) for group in left), default=math.inf)
        if most < asked:
            unit = f"{kind} {UNITS[key]}".strip()
            return f"the profile's `{key}` of {rule} asks for {asked} {unit}, and {place} has at most {most:.0f}{where}"
        fit = [group for group in left if group.has(key, kind) >= asked]
        if len(fit) < len(left):
            left, where = fit, " on nodes that fit otherwise"
    return _beyond_nodes(rule, resources, left, place)


def _beyond_nodes(rule, resources, left, place):
    asked, each = _number(resources, "nodes"), {}
    for group in left:
        each[group.partition] = each.get(group.partition, 0) + group.nodes
    if not each or not asked or asked <= (most := max(each.values())):
        return None
    return f"the profile's `nodes` of {rule} asks for {asked} nodes, and {place} has at most {most} that fit"


def _asked(resources):
    """(key, type of GPU, number) of what one node must have, and of the time."""
    found = [("gres", kind, number) for kind, number in gpus_of(str(resources.get("gres") or "")).items()]
    numbers = {key: _number(resources, key) for key in UNITS if key != "gres"}
    return found + [(key, "", number) for key, number in numbers.items() if number]


def _number(resources, key):
    """A resource that counts; None for one that another replaces, and a text: it is not known yet."""
    value = resources.get(key)
    if not isinstance(value, int) or any(resources.get(name) for name in INSTEAD[key]):
        return None
    return value


def _split(names):
    return [name for name in re.split(r"[,\s]+", str(names or "")) if name]
