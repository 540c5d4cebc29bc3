"""Whether Slurm is there, what it has, and which lines of profiles/slurm follow from that."""

import getpass
import os
import re
import shutil
import subprocess

from stages.lib.doctor.findings import FAIL, OK, WARNING, Finding, listed
from stages.lib.errors import UserError

NAME, SECONDS = "slurm", 45.0
COMMAND_SECONDS = 10.0


def look(meeting, arguments):
    """What Slurm says; the first rank asks for all. None where there is no sbatch."""
    if meeting.rank or shutil.which("sbatch") is None:
        return None
    try:
        return _ask(arguments)
    except UserError as error:
        return {"trouble": str(error), "in a job": "SLURM_JOB_ID" in os.environ}


def _ask(arguments):
    config = dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", _said("scontrol", "show", "config"), re.M))
    accounting = config.get("AccountingStorageType", "").endswith("/slurmdbd")
    return {
        "version": _said("sbatch", "--version").split()[-1],
        "accounting": accounting,
        "answers": accounting and _answers("sacct", "--noheader", "--allocations", "--starttime=now-1hour"),
        "requeue": config.get("JobRequeue") == "1",
        "partitions": _partitions(),
        "accounts": _accounts() if accounting and arguments.account else None,
    }


def _run(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"`{' '.join(command)}` gave no answer within {COMMAND_SECONDS:.0f} s") from None
    except OSError as error:
        raise UserError(f"`{command[0]}` cannot be started: {error.strerror}") from None


def _said(*command):
    done = _run(*command)
    if done.returncode:
        reason = done.stderr.strip().partition("\n")[0] or f"exit code {done.returncode}"
        raise UserError(f"`{' '.join(command)}` failed: {reason}")
    return done.stdout


def _answers(*command):
    try:
        return _run(*command).returncode == 0
    except UserError:
        return False


def _partitions():
    """[{name, up, limit, default limit, gres, nodes, is_default}], one for each kind of node of a partition."""
    lines = _said("sinfo", "--noheader", "--format=%P|%a|%l|%L|%G|%D").split("\n")
    rows = [line.split("|") for line in lines if line.count("|") == 5]
    keys = ("name", "up", "limit", "default", "gres", "nodes")
    return [
        dict(zip(keys, row, strict=True)) | {"name": row[0].rstrip("*"), "is_default": row[0].endswith("*")}
        for row in rows
    ]


def _accounts():
    command = ("sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={getpass.getuser()}")
    return sorted(set(_said(*command, "format=account").split()))


def judge(facts, arguments):
    """Findings on Slurm itself, its partitions, requeue, and the account."""
    found = facts[0]
    wanted = [name for name in ("slurm", "partition", "account") if getattr(arguments, name)]
    if "trouble" in found:
        level = FAIL if wanted or found["in a job"] else WARNING  # the commands may be there without a cluster
        return [Finding(level, NAME, f"{found['trouble']}: is slurmctld up, and this machine one of the cluster's?")]
    if "version" not in found:
        if wanted:
            text = f"--{wanted[0]} is given, and no sbatch on PATH: is this a login node, is a module missing?"
            return [Finding(FAIL, NAME, text)]
        return [Finding(OK, NAME, "no sbatch on PATH: this is no Slurm machine")]
    made = [_on_slurm(found), _on_partitions(found, arguments.partition), _on_requeue(found)]
    return [Finding(*one) for one in made + ([_on_account(found, arguments.account)] if arguments.account else [])]


def _on_slurm(found):
    said = f"Slurm {found['version']}, "
    if found["accounting"] and not found["answers"]:
        return WARNING, NAME, f"{said}accounting gives no answer: set `slurm-status-command: squeue`, or jobs never end"
    if found["accounting"]:
        return OK, NAME, f"{said}with accounting: `slurm-status-command: sacct` works, and so does squeue"
    return OK, NAME, f"{said}no accounting: `slurm-status-command: squeue`"


def _on_partitions(found, wanted):
    name, rows = "partitions", found["partitions"]
    names = listed(row["name"] for row in rows)
    if not rows:
        return FAIL, name, "sinfo shows none: nothing can be submitted"
    chosen = [row for row in rows if row["name"] == wanted] if wanted else rows
    if not chosen:
        return FAIL, name, f"--partition must be one of {names}, got {wanted}"
    if all(row["up"] != "up" for row in chosen):
        return FAIL, name, f"{listed(row['name'] for row in chosen)} down: jobs would wait"
    if not wanted and not any(row["is_default"] for row in rows):
        return WARNING, name, f"none is the default: set slurm_partition to one of {names}"
    with_gpus = [row for row in chosen if "gpu" in row["gres"]]
    if not with_gpus:
        return WARNING, name, f"no GPUs in {listed(row['name'] for row in chosen)}: `gres` must be empty"
    limits = {row["name"]: f"limit {row['limit']}, {row['default']} by default" for row in chosen}
    nodes = listed(f"{row['name']} has {row['nodes']} nodes of {_gres(row['gres'])}" for row in with_gpus)
    return OK, name, f"{nodes}; {listed(f'{one} {limit}' for one, limit in limits.items())}"


def _gres(text):
    """gpu:a100:4(S:0-1) without the sockets."""
    return re.sub(r"\(.*?\)", "", text)


def _on_requeue(found):
    if found["requeue"]:
        return OK, "requeue", "allowed: training that runs out of time goes on by itself"
    return OK, "requeue", "only for jobs that ask for it (JobRequeue = 0): keep --requeue in profiles/slurm"


def _on_account(found, wanted):
    if found["accounts"] is None:
        return OK, "account", f"{wanted} is not checked: there is no accounting"
    if wanted in found["accounts"]:
        return OK, "account", f"{wanted} is yours"
    return FAIL, "account", f"--account must be one of {listed(found['accounts']) or 'none'}, got {wanted}"
