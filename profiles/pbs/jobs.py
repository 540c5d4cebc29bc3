"""Submit, poll and delete PBS jobs for Snakemake's executor cluster-generic.

    jobs.py submit JOBSCRIPT     print the id of the new job
    jobs.py status ID            print running, success or failed
    jobs.py cancel ID ...

Each job has files in .snakemake/pbs of the working directory: ID.json (how and for which outputs it was submitted),
ID.exit (the exit code of its script; 75: it ran out of time, and PBS did not let it requeue itself), ID.next (the job
that was submitted then), ID.missing (number of polls without it).
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "workflow"))

from scripts.slurm.jobs import last_lines

FOLDER = Path(".snakemake/pbs").absolute()
LOGS = Path("results/logs/pbs").absolute()
PREEMPTED = "75"
MISSING_POLLS = 3
"""Polls in a row that find neither the job nor its exit code, after which it is lost."""
ENDED = {"F": "Exit_status", "C": "exit_status"}
"""{state of a job that ended: attribute with its exit code}, of OpenPBS and of Torque."""

OPTIONS = (("pbs_queue", "-q", ""), ("pbs_account", "-A", ""), ("pbs_filesystems", "-l", "filesystems="))
"""(resource, option of qsub, prefix of its value)."""

# PBS sends SIGTERM to all processes of a job before it kills them. The shells wait, so that a training can save.
SCRIPT = """#!/bin/bash
trap : TERM
export CARAVAN_PREEMPTED_FILE={folder}/"$PBS_JOBID".preempted
rm -f {folder}/"$PBS_JOBID".exit "$CARAVAN_PREEMPTED_FILE"
code=0
(
trap : TERM
{script}
) || code=$?
[[ ! -e $CARAVAN_PREEMPTED_FILE ]] || code=75
rm -f "$CARAVAN_PREEMPTED_FILE"
echo "$code" >{folder}/"$PBS_JOBID".exit
exit "$code"
"""


class PbsError(Exception):
    """A mistake in a profile, or a refusal of PBS: one sentence."""


def properties_of(script: str) -> dict:
    """Return the properties of a job that Snakemake writes into its script."""
    return json.loads(re.search(r"^# properties = (.*)$", script, re.M)[1])


def qsub_options(properties: dict) -> list[str]:
    """Return the options of qsub for a job with these properties; the meaning of resources is in profiles/README.md."""
    rule, resources = properties.get("rule") or properties["groupid"], properties["resources"]
    num_nodes = max(1, _number(rule, resources, "nodes", 1))
    walltime = _number(rule, resources, "runtime", None)
    words = [rule, *map(str, properties.get("wildcards", {}).values())]
    name = re.sub(r"[^\w.-]+", "_", "_".join(words))
    options = ["-V", "-r", "y", "-j", "oe", "-o", str(LOGS / f"{name}.log"), "-N", name[:200]]
    options += ["-l", f"select={num_nodes}:{_chunk(rule, properties['threads'], resources)}"]
    options += ["-l", "place=scatter"] if num_nodes > 1 else []
    options += ["-l", f"walltime={walltime // 60:02d}:{walltime % 60:02d}:00"] if walltime is not None else []
    for key, option, prefix in OPTIONS:
        options += [option, f"{prefix}{resources[key]}"] if resources.get(key) else []
    return options + shlex.split(str(resources.get("pbs_extra") or ""))


def _chunk(rule: str, threads: int, resources: dict) -> str:
    """Return what each node of a job must have."""
    if own := resources.get("pbs_select"):
        return str(own)
    chunk = f"ncpus={threads}"
    if mem_mb := _number(rule, resources, "mem_mb", None):
        chunk += f":mem={mem_mb}mb"
    if ngpus := _number(rule, resources, "ngpus", None):
        chunk += f":ngpus={ngpus}"
    return chunk


def _number(rule: str, resources: dict, key: str, default: int | None) -> int | None:
    value = resources.get(key, default)
    if value is not None and not isinstance(value, int):
        raise PbsError(f"the profile's `{key}` of {rule} must be a whole number, got {value!r}")
    return value


def submit(path: str) -> str:
    """Submit a script of Snakemake; return the id of its job, or of one that still runs for the same outputs."""
    script = Path(path).read_text(encoding="utf-8")
    properties = properties_of(script)
    output = properties.get("output", [])
    if running := _running(output):
        return running
    LOGS.mkdir(parents=True, exist_ok=True)
    whole = SCRIPT.format(folder=shlex.quote(str(FOLDER)), script=script)
    return _qsub(qsub_options(properties), whole, output)


def _running(output: list[str]) -> str | None:
    """Return the job that a Snakemake submitted for these outputs before it was killed, if it may still run."""
    for path in FOLDER.glob("*.json") if output else ():
        job = path.name.removesuffix(".json")
        if _file(job, "exit").exists() or _file(job, "next").exists():
            continue
        if json.loads(path.read_text(encoding="utf-8")).get("output") == output and _exit_code(job) is None:
            return job
    return None


def _qsub(options: list[str], script: str, output: list[str]) -> str:
    FOLDER.mkdir(parents=True, exist_ok=True)
    done = _pbs("qsub", *options, stdin=script)
    job = done.stdout.strip()
    if done.returncode or not job:
        raise PbsError(f"`qsub {shlex.join(options)}` failed: {done.stderr.strip() or 'it printed no id'}")
    _file(job, "json").write_text(
        json.dumps({"options": options, "script": script, "output": output}), encoding="utf-8"
    )
    return job


def status(job: str) -> str:
    """Return running, success or failed. A job that ran out of time is submitted again, and is still running."""
    job = _newest(job)
    code = _exit_code(job)
    if code is None:
        return "running"
    if code == "0":
        return "success"
    if code == PREEMPTED:
        record = json.loads(_file(job, "json").read_text(encoding="utf-8"))
        again = _qsub(record["options"], record["script"], record["output"])
        _file(job, "next").write_text(again, encoding="utf-8")
        return "running"
    _explain(job, code)
    return "failed"


def _exit_code(job: str) -> str | None:
    """Return the exit code of a job that ended, or a reason why it has none; None if it may still run."""
    with_code = _file(job, "exit")
    if with_code.exists() and (code := with_code.read_text(encoding="ascii").strip()):
        return code
    done = _pbs("qstat", "-x", "-f", job)
    if done.returncode and "unknown job" in done.stderr.lower():
        return _code_of_missing(job)
    _file(job, "missing").unlink(missing_ok=True)
    attributes = dict(re.findall(r"^\s*(\S+) = (.*)$", done.stdout, re.M))
    state = attributes.get("job_state", "")
    if state not in ENDED:  # also no answer: a busy server is polled again
        return None
    return attributes.get(ENDED[state], "none: PBS deleted the job before it ran")


def _code_of_missing(job: str) -> str | None:
    """Count the polls of a job that PBS does not know: it may be new, or its exit code not yet visible here."""
    counted = _file(job, "missing")
    missing = 1 + (int(counted.read_text(encoding="ascii") or 0) if counted.exists() else 0)
    counted.write_text(str(missing), encoding="ascii")
    return None if missing < MISSING_POLLS else "none: PBS does not know the job any more"


def _explain(job: str, code: str) -> None:
    """Print why a job failed, and the end of its log without the lines of its Snakemake."""
    options = json.loads(_file(job, "json").read_text(encoding="utf-8"))["options"]
    log = Path(options[options.index("-o") + 1])
    print(f"pbs: job {job} ended with exit code {code}; see {log}", file=sys.stderr)
    for line in last_lines(log):
        print(f"    {line}", file=sys.stderr)


def cancel(*jobs: str) -> None:
    """Delete jobs; those that ended are no error."""
    done = _pbs("qdel", *map(_newest, jobs))
    ended = re.compile(r"unknown job|has finished|invalid state", re.I)
    if others := [line for line in done.stderr.splitlines() if not ended.search(line)]:
        raise PbsError(f"`qdel` failed: {'; '.join(others)}")


def _newest(job: str) -> str:
    """Return the last of the jobs that followed each other."""
    while _file(job, "next").exists():
        job = _file(job, "next").read_text(encoding="utf-8")
    return job


def _file(job: str, kind: str) -> Path:
    return FOLDER / f"{job}.{kind}"


def _pbs(*command: str, stdin: str = "") -> subprocess.CompletedProcess:
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def main(argv: list[str]) -> int:
    """Run a subcommand."""
    try:
        printed = {"submit": submit, "status": status, "cancel": cancel}[argv[0]](*argv[1:])
    except (PbsError, OSError, ValueError, LookupError) as error:
        print(f"pbs: {error}", file=sys.stderr)
        if argv[0] == "status":  # Snakemake would end, and forget its jobs: poll again
            print("running")
            return 0
        return 1
    if printed is not None:
        print(printed)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
