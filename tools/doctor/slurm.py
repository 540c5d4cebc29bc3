"""Check Slurm, and report which settings of profiles/slurm it needs."""

from __future__ import annotations

import argparse
import getpass
import os
import re
import shutil
import subprocess
from typing import Any

from stages.lib.errors import UserError
from tools.doctor.rendezvous import Rendezvous
from tools.doctor.result import FAIL, OK, WARNING, Reports, Result, join_names

NAME, TIMEOUT_SECONDS = "slurm", 45.0
COMMAND_SECONDS = 10.0


def collect(rendezvous: Rendezvous, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Return what Slurm reports, on the first rank; None without sbatch."""
    if rendezvous.rank or shutil.which("sbatch") is None:
        return None
    try:
        return _query(arguments)
    except UserError as error:
        return {"error": str(error), "in a job": "SLURM_JOB_ID" in os.environ}


def _query(arguments: argparse.Namespace) -> dict[str, Any]:
    config = dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", _output("scontrol", "show", "config"), re.M))
    accounting = config.get("AccountingStorageType", "").endswith("/slurmdbd")
    return {
        "version": _output("sbatch", "--version").split()[-1],
        "accounting": accounting,
        "answers": accounting and _succeeds("sacct", "--noheader", "--allocations", "--starttime=now-1hour"),
        "requeue": config.get("JobRequeue") == "1",
        "partitions": _partitions(),
        "accounts": _accounts() if accounting and arguments.account else None,
    }


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"`{' '.join(command)}` timed out after {COMMAND_SECONDS:.0f} s") from None
    except OSError as error:
        raise UserError(f"`{command[0]}` cannot be started: {error.strerror}") from None


def _output(*command: str) -> str:
    done = _run(*command)
    if done.returncode:
        reason = done.stderr.strip().partition("\n")[0] or f"exit code {done.returncode}"
        raise UserError(f"`{' '.join(command)}` failed: {reason}")
    return done.stdout


def _succeeds(*command: str) -> bool:
    try:
        return _run(*command).returncode == 0
    except UserError:
        return False


def _partitions() -> list[dict[str, Any]]:
    """Return [{name, up, limit, default, gres, nodes, is_default}], one for each kind of node of a partition."""
    lines = _output("sinfo", "--noheader", "--format=%P|%a|%l|%L|%G|%D").split("\n")
    rows = [line.split("|") for line in lines if line.count("|") == 5]
    keys = ("name", "up", "limit", "default", "gres", "nodes")
    return [
        dict(zip(keys, row, strict=True)) | {"name": row[0].rstrip("*"), "is_default": row[0].endswith("*")}
        for row in rows
    ]


def _accounts() -> list[str]:
    command = ("sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={getpass.getuser()}")
    return sorted(set(_output(*command, "format=account").split()))


def evaluate(reports: Reports, arguments: argparse.Namespace) -> list[Result]:
    """Return results on Slurm itself, its partitions, requeue, and the account."""
    report = reports[0]
    options = [name for name in ("slurm", "partition", "account") if getattr(arguments, name)]
    if "error" in report:
        level = FAIL if options or report["in a job"] else WARNING  # the commands may be installed without a cluster
        remedy = "check that slurmctld runs, and that this machine belongs to the cluster"
        return [Result(level, NAME, f"{report['error']}: {remedy}")]
    if "version" not in report:
        if options:
            text = f"--{options[0]} needs Slurm, but sbatch is not on PATH: use a login node, or load Slurm's module"
            return [Result(FAIL, NAME, text)]
        return [Result(OK, NAME, "sbatch is not on PATH: Slurm is not used")]
    results = [_evaluate_slurm(report), _evaluate_partitions(report, arguments.partition), _evaluate_requeue(report)]
    return results + ([_evaluate_account(report, arguments.account)] if arguments.account else [])


def _evaluate_slurm(report: dict[str, Any]) -> Result:
    text = f"Slurm {report['version']}, "
    if report["accounting"] and not report["answers"]:
        text += "accounting does not answer: set `slurm-status-command: squeue`, or Snakemake does not see jobs end"
        return Result(WARNING, NAME, text)
    if report["accounting"]:
        return Result(OK, NAME, f"{text}with accounting: `slurm-status-command` may be sacct or squeue")
    return Result(OK, NAME, f"{text}no accounting: set `slurm-status-command: squeue`")


def _evaluate_partitions(report: dict[str, Any], partition: str | None) -> Result:
    name, rows = "partitions", report["partitions"]
    names = join_names(row["name"] for row in rows)
    if not rows:
        return Result(FAIL, name, "sinfo lists no partition: jobs cannot be submitted")
    chosen = [row for row in rows if row["name"] == partition] if partition else rows
    chosen_names = join_names(row["name"] for row in chosen)
    if not chosen:
        return Result(FAIL, name, f"--partition must be one of {names}, got {partition}")
    if all(row["up"] != "up" for row in chosen):
        return Result(FAIL, name, f"down: {chosen_names}; jobs would not start")
    if not partition and not any(row["is_default"] for row in rows):
        return Result(WARNING, name, f"no default partition: set slurm_partition to one of {names}")
    with_gpus = [row for row in chosen if "gpu" in row["gres"]]
    if not with_gpus:
        return Result(WARNING, name, f"no GPUs in {chosen_names}: `gres` must be empty")
    limits = {row["name"]: f"limit {row['limit']}, {row['default']} by default" for row in chosen}
    nodes = join_names(
        f"{row['name']} has {row['nodes']} nodes of {_without_sockets(row['gres'])}" for row in with_gpus
    )
    return Result(OK, name, f"{nodes}; {join_names(f'{one} {limit}' for one, limit in limits.items())}")


def _without_sockets(gres: str) -> str:
    """Return gpu:a100:4 for gpu:a100:4(S:0-1)."""
    return re.sub(r"\(.*?\)", "", gres)


def _evaluate_requeue(report: dict[str, Any]) -> Result:
    if report["requeue"]:
        return Result(OK, "requeue", "allowed: a training that reaches its time limit resumes automatically")
    return Result(OK, "requeue", "only for jobs submitted with --requeue (JobRequeue = 0): keep it in profiles/slurm")


def _evaluate_account(report: dict[str, Any], account: str) -> Result:
    if report["accounts"] is None:
        return Result(OK, "account", f"{account} is not checked: Slurm has no accounting")
    if account in report["accounts"]:
        return Result(OK, "account", f"{account} is one of your accounts")
    return Result(
        FAIL, "account", f"--account must be one of {join_names(report['accounts']) or 'none'}, got {account}"
    )
