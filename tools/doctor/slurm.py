"""The check of Slurm, with the settings of profiles/slurm that it needs."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import re
import shutil
import subprocess
from typing import Any

from stages.lib.errors import UserError
from tools.doctor.runner import FAIL, OK, WARNING, Check, Finding, Rendezvous, Reports, join_names

COMMAND_SECONDS = 10.0
COLUMNS = ("name", "up", "limit", "default", "gres", "nodes")
"""Of `sinfo --format=%P|%a|%l|%L|%G|%D`, one row for each kind of node of a partition."""


def collect(rendezvous: Rendezvous, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Return what Slurm reports, on the first rank; None without sbatch."""
    if rendezvous.rank or shutil.which("sbatch") is None:
        return None
    try:
        config = dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", _output("scontrol", "show", "config"), re.M))
        accounting, answers, accounts = config.get("AccountingStorageType", "").endswith("/slurmdbd"), False, None
        version = _output("sbatch", "--version").split()[-1]
        if accounting:
            with contextlib.suppress(UserError):
                _output("sacct", "--noheader", "--allocations", "--starttime=now-1hour")
                answers = True
        lines = _output("sinfo", "--noheader", "--format=%P|%a|%l|%L|%G|%D").split("\n")
        rows = [dict(zip(COLUMNS, line.split("|"), strict=True)) for line in lines if line.count("|") == 5]
        if accounting and arguments.account:
            command = ("sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={getpass.getuser()}")
            accounts = sorted(set(_output(*command, "format=account").split()))
    except UserError as error:
        return {"error": str(error), "in a job": "SLURM_JOB_ID" in os.environ}
    return {
        "version": version,
        "accounting": accounting,
        "answers": answers,
        "requeue": config.get("JobRequeue") == "1",
        "partitions": rows,
        "accounts": accounts,
    }


def _output(*command: str) -> str:
    """Return what a command prints. Raises UserError if it fails, is missing or takes too long."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"`{' '.join(command)}` timed out after {COMMAND_SECONDS:.0f} s") from None
    except OSError as error:
        raise UserError(f"`{command[0]}` cannot be started: {error.strerror}") from None
    if answer.returncode:
        reason = answer.stderr.strip().partition("\n")[0] or f"exit code {answer.returncode}"
        raise UserError(f"`{' '.join(command)}` failed: {reason}")
    return answer.stdout


def evaluate(reports: Reports, arguments: argparse.Namespace) -> Finding:
    """Look for Slurm itself and its accounting. Without it, the other lines are left out."""
    report = reports[0]
    options = [name for name in ("slurm", "partition", "account") if getattr(arguments, name)]
    if "error" in report:
        level = FAIL if options or report["in a job"] else WARNING  # the commands may be installed without a cluster
        remedy = "check that slurmctld runs, and that this machine belongs to the cluster"
        return level, f"{report['error']}: {remedy}"
    if "version" not in report and options:
        return FAIL, f"--{options[0]} needs Slurm, but sbatch is not on PATH: use a login node, or load Slurm's module"
    if "version" not in report:
        return OK, "sbatch is not on PATH: Slurm is not used"
    text = f"Slurm {report['version']}, "
    if not report["accounting"]:
        return OK, f"{text}no accounting: set `slurm-status-command: squeue`"
    if not report["answers"]:
        text += "accounting does not answer: set `slurm-status-command: squeue`, or Snakemake does not see jobs end"
        return WARNING, text
    return OK, f"{text}with accounting: `slurm-status-command` may be sacct or squeue"


def evaluate_partitions(reports: Reports, arguments: argparse.Namespace) -> Finding | None:
    """Look for a partition that is missing or down, and print the limits of those with GPUs."""
    if "version" not in reports[0]:
        return None
    # the default partition has a star
    rows = [row | {"name": row["name"].rstrip("*")} for row in reports[0]["partitions"]]
    names, partition = join_names(row["name"] for row in rows), arguments.partition
    if not rows:
        return FAIL, "sinfo lists no partition: jobs cannot be submitted"
    chosen = [row for row in rows if row["name"] == partition] if partition else rows
    chosen_names = join_names(row["name"] for row in chosen)
    if not chosen:
        return FAIL, f"--partition must be one of {names}, got {partition}"
    if all(row["up"] != "up" for row in chosen):
        return FAIL, f"down: {chosen_names}; jobs would not start"
    if not partition and not any(row["name"].endswith("*") for row in reports[0]["partitions"]):
        return WARNING, f"no default partition: set slurm_partition to one of {names}"
    with_gpus = [row for row in chosen if "gpu" in row["gres"]]
    if not with_gpus:
        return WARNING, f"no GPUs in {chosen_names}: `gres` must be empty"
    limits = {row["name"]: f"limit {row['limit']}, {row['default']} by default" for row in chosen}
    # gpu:a100:4 for gpu:a100:4(S:0-1)
    gres = {row["gres"]: re.sub(r"\(.*?\)", "", row["gres"]) for row in with_gpus}
    nodes = join_names(f"{row['name']} has {row['nodes']} nodes of {gres[row['gres']]}" for row in with_gpus)
    return OK, f"{nodes}; {join_names(f'{one} {limit}' for one, limit in limits.items())}"


def evaluate_requeue(reports: Reports, _: argparse.Namespace) -> Finding | None:
    """Print whether Slurm requeues jobs."""
    if "version" not in reports[0]:
        return None
    if reports[0]["requeue"]:
        return OK, "allowed: a training that reaches its time limit resumes automatically"
    return OK, "only for jobs submitted with --requeue (JobRequeue = 0): keep it in profiles/slurm"


def evaluate_account(reports: Reports, arguments: argparse.Namespace) -> Finding | None:
    """Look for the account among those of this user."""
    if "version" not in reports[0] or not arguments.account:
        return None
    account, accounts = arguments.account, reports[0]["accounts"]
    if accounts is None:
        return OK, f"{account} is not checked: Slurm has no accounting"
    if account in accounts:
        return OK, f"{account} is one of your accounts"
    return FAIL, f"--account must be one of {join_names(accounts) or 'none'}, got {account}"


SLURM = Check(
    45.0,
    collect,
    {"slurm": evaluate, "partitions": evaluate_partitions, "requeue": evaluate_requeue, "account": evaluate_account},
)
