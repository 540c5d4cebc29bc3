"""A stand-in for PBS on this machine: its commands, and jobs that run as processes. It is not PBS.

It does what tests of Caravan depend on, as OpenPBS documents it: options and messages of qsub, qstat, qdel, qrerun and
pbsdsh; PBS's variables and node file; SIGTERM, then SIGKILL, at the walltime and on qdel; rerun with `run_count`; tasks
of pbsdsh that start with an empty environment in the home directory, and whose exit code is lost. Each job starts at
once. State is in the directory PBS_STAND_IN; the nodes are addresses of this machine.
"""

import argparse
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

from tests.helpers import processes

HOME = Path(__file__).resolve().parents[2]
COMMANDS = ("qsub", "qstat", "qdel", "qrerun", "pbsdsh")
NODES = ("127.0.0.21", "127.0.0.22")
KILL_DELAY = 10.0  # PBS' default
UNKNOWN, FINISHED, REFUSED = 153, 35, 159
EXIT_CODE_OF_SIGNAL = 256


def install(folder):
    """Write the commands below a directory; returns the variables of a user of this PBS."""
    bin_ = folder / "bin"
    bin_.mkdir(parents=True)
    (folder / "jobs").mkdir()
    for name in COMMANDS:
        command = f"PYTHONPATH={shlex.quote(str(HOME))} exec {sys.executable} -m tests.pbs.stand_in {name}"
        (bin_ / name).write_text(f'#!/bin/bash\nexport PBS_STAND_IN={shlex.quote(str(folder))}\n{command} "$@"\n')
        (bin_ / name).chmod(0o755)
    return {"PATH": f"{bin_}:/usr/local/bin:/usr/bin:/bin"}


def _folder():
    return Path(os.environ["PBS_STAND_IN"])


def _job_folder(job):
    return _folder() / "jobs" / job


def _read(job):
    """Return what is known of a job; None for an unknown one."""
    path = _job_folder(job) / "job.json"
    return json.loads(path.read_text()) if path.exists() else None


def _write(job, **attributes):
    path = _job_folder(job) / "job.json"
    path.with_suffix(".new").write_text(json.dumps((_read(job) or {}) | attributes))
    path.with_suffix(".new").replace(path)


def _refuse(command, text, code):
    print(f"{command}: {text}", file=sys.stderr)
    return code


def qsub(argv):
    """Submit the script on stdin, or in a file."""
    parser = argparse.ArgumentParser("qsub", allow_abbrev=False)
    for option in "ANqrjoW":
        parser.add_argument(f"-{option}")
    parser.add_argument("-V", action="store_true")
    parser.add_argument("-l", action="append", default=[])
    parser.add_argument("script", nargs="?")
    asked = parser.parse_args(argv)
    resources = dict(part.split("=", 1) for given in asked.l for part in given.split(","))
    nodes = int(resources.get("select", "1").split(":")[0])
    if nodes > len(NODES):
        return _refuse("qsub", "Job violates queue and/or server resource limits", 188)
    with open(_folder() / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # `launch` takes its port from the number: another server's jobs beside these have others
        number = 1000 + zlib.crc32(str(_folder()).encode()) % 8000 + len(list((_folder() / "jobs").iterdir()))
        job = f"{number}.stand-in"
        _job_folder(job).mkdir()
    script = Path(asked.script).read_text() if asked.script else sys.stdin.read()
    (_job_folder(job) / "script").write_text(script)
    (_job_folder(job) / "nodes").write_text("".join(f"{node}\n" for node in NODES[:nodes]))
    kept = {name: os.environ[name] for name in os.environ if asked.V or name in ("HOME", "PATH", "LANG")}
    kept.pop("PBS_STAND_IN")
    variables = {"PBS_JOBID": job, "PBS_JOBNAME": asked.N or "STDIN", "PBS_ENVIRONMENT": "PBS_BATCH"}
    variables |= {"PBS_NODEFILE": str(_job_folder(job) / "nodes"), "PBS_O_WORKDIR": os.getcwd()}
    known = {"name": asked.N, "argv": argv, "resources": resources, "output": asked.o, "rerunnable": asked.r != "n"}
    _write(job, state="Q", runs=0, environment=kept | variables, **known)
    with open(_folder() / "errors", "a") as errors:
        command = [sys.executable, "-m", "tests.pbs.stand_in", "run", job]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": errors}
        subprocess.Popen(command, cwd=HOME, start_new_session=True, **streams)
    print(job)
    return 0


def run(argv):
    """Run a job to its end, and again on qrerun."""
    (job,) = argv
    again = True
    while again:
        again = _run_once(job)


def _run_once(job):
    known, folder = _read(job), _job_folder(job)
    _write(job, state="R", runs=known["runs"] + 1, stime=time.time())
    with open(folder / "output", "a" if known["runs"] else "w") as output:
        process = subprocess.Popen(
            ["/bin/bash", folder / "script"],
            cwd=Path.home(),
            env=known["environment"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        end = time.monotonic() + seconds_of(known["resources"].get("walltime", "24:00:00"))
        request = ""
        while process.poll() is None and not request:
            time.sleep(0.05)
            request = "walltime" if time.monotonic() > end else _request(folder)
        _end_processes(job, process, KILL_DELAY if request in ("walltime", "delete") else 0)
        if request == "walltime":
            output.write("=>> PBS: job killed: walltime exceeded limit\n")
    code = process.wait()
    again = request == "rerun"
    _write(job, state="Q" if again else "F", code=code if code >= 0 else EXIT_CODE_OF_SIGNAL - code)
    if known["output"] and not again:
        Path(known["output"]).write_bytes((folder / "output").read_bytes())
    return again


def _request(folder):
    path = folder / "request"
    if not path.exists():
        return ""
    request = path.read_text()
    path.unlink()
    return request


def _of_job(job):
    return processes.with_one_of(f"PBS_JOBID={job}")


def _end_processes(job, process, delay):
    """End all processes of a job on all nodes: SIGTERM, and after the delay SIGKILL. They are over if the shell is."""
    if process.poll() is None and delay:
        processes.kill(_of_job(job), signal.SIGTERM)
    end = time.monotonic() + delay
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    while left := _of_job(job):
        processes.kill(left)
        process.poll()


def seconds_of(walltime):
    """Return HH:MM:SS in seconds."""
    hours, minutes, seconds = map(int, walltime.split(":"))
    return hours * 3600 + minutes * 60 + seconds


def qstat(argv):
    """Print the attributes of a job."""
    parser = argparse.ArgumentParser("qstat")
    parser.add_argument("-x", action="store_true")
    parser.add_argument("-f", action="store_true", required=True)
    parser.add_argument("job")
    asked = parser.parse_args(argv)
    if (_folder() / "silent").exists():
        return _refuse("qstat", "cannot connect to server stand-in (errno=111)", 1)
    known = _read(asked.job)
    forgotten = known and known["state"] == "F" and (_folder() / "no_history").exists()
    if known is None or forgotten:
        return _refuse("qstat", f"Unknown Job Id {asked.job}", UNKNOWN)
    if known["state"] == "F" and not asked.x:
        text = f"{asked.job} Job has finished, use -x or -H to obtain historical job information"
        return _refuse("qstat", text, FINISHED)
    attributes = {"Job_Name": known["name"], "job_state": known["state"], "run_count": known["runs"]}
    attributes |= {f"Resource_List.{name}": value for name, value in known["resources"].items()}
    if "stime" in known:
        attributes["stime"] = time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(known["stime"]))
    if known["state"] == "F":
        attributes["Exit_status"] = known["code"]
    print(f"Job Id: {asked.job}")
    print("".join(f"    {name} = {value}\n" for name, value in attributes.items()))
    return 0


def _requests(command, request, jobs):
    code = 0
    for job in jobs:
        known = _read(job)
        if known is None:
            code = _refuse(command, f"Unknown Job Id {job}", UNKNOWN)
        elif known["state"] == "F":
            code = _refuse(command, f"Job has finished {job}", FINISHED)
        elif request == "rerun" and not (_folder() / "operator").exists():
            code = _refuse(command, f"Unauthorized Request  {job}", REFUSED)
        elif request == "rerun" and not known["rerunnable"]:
            code = _refuse(command, f"Job is not rerunnable  {job}", REFUSED)
        else:
            (_job_folder(job) / "request.new").write_text(request)
            (_job_folder(job) / "request.new").rename(_job_folder(job) / "request")
    return code


def qdel(jobs):
    """Delete jobs."""
    return _requests("qdel", "delete", jobs)


def qrerun(jobs):
    """Requeue running jobs; only operators may, and a file `operator` makes the user one."""
    return _requests("qrerun", "rerun", jobs)


def pbsdsh(argv):
    """Run a command on the node of a line of the node file."""
    parser = argparse.ArgumentParser("pbsdsh")
    parser.add_argument("-n", type=int, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args(argv)
    job = os.environ["PBS_JOBID"]
    node = (_job_folder(job) / "nodes").read_text().split()[asked.n]
    environment = {"HOME": str(Path.home()), "PATH": "/usr/bin:/bin", "PBS_JOBID": job, "PBS_NODENUM": str(asked.n)}
    environment |= {"STAND_IN_NODE": node}
    task = subprocess.Popen(asked.command[1:], cwd=Path.home(), env=environment, start_new_session=True)
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(task.pid, signal.SIGTERM))
    task.wait()
    return 0


if __name__ == "__main__":
    name, *given = sys.argv[1:]
    sys.exit({"run": run, **{each.__name__: each for each in (qsub, qstat, qdel, qrerun, pbsdsh)}}[name](given))
