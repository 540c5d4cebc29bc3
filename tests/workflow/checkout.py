"""Copies of the project for tests of the workflow, and fake stages that write their outputs at once."""

import atexit
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import yaml

HOME = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PATH": "/usr/local/bin:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}
COPIED = ("workflow", "stages", "tools", "config", "profiles")

# Imports Snakemake once, and runs each command line that it reads in a fork: an import takes as long as a small plan.
# So does the process of tools.check, which compiles the copy's modules: this project's own are called in its place.
PRELOADED = """
import atexit, contextlib, io, json, os, subprocess, sys, traceback
import smart_open, snakemake.cli, snakemake.profiles, snakemake.report.html_reporter, snakemake.storage, yte
import snakemake.executors.touch

snakemake.executors.touch.Executor.SLEEPING_TIME = 0  # else 0.1 s a job, so that no two have the same time
sys.path.insert(1, sys.argv[1])
from stages.lib.huggingface import config_json
from stages.registry import STAGES
from tools.check import __main__ as check
for stage in STAGES.values():
    stage.recipe_type
sys.path.remove(sys.argv[1])
start = subprocess.run

def run(command, *arguments, **options):
    if command[1:] != ["-m", "tools.check"]:
        return start(command, *arguments, **options)
    sys.stdin = io.StringIO(options["input"])
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        code = check.main([])
    return subprocess.CompletedProcess(command, code, out.getvalue(), errors.getvalue())

for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        subprocess.run = run
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(asked["stdout"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(os.open(asked["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        sys.path[0] = asked["cwd"]  # as `python -m` sets it
        sys.argv = ["snakemake", *asked["arguments"]]
        code = 1
        try:
            snakemake.cli.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):  # as Python prints it
                print(end.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # at once: the end of an interpreter takes longer than a plan
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@functools.cache
def _preloaded():
    """Process of PRELOADED; it ends with this one."""
    process = subprocess.Popen(
        [sys.executable, "-c", PRELOADED, str(HOME)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
    )
    atexit.register(process.stdin.close)
    return process


class Checkout:
    """A copy of the project, and its Snakemake."""

    def __init__(self, path):
        self.path = path

    @property
    def default_config(self):
        """The embedded default config."""
        return yaml.safe_load((self.path / "config/config.yaml").read_text(encoding="utf-8"))

    def snakemake(self, *arguments, cwd=None, environment=None, check=True):
        """Run Snakemake as without an active virtual environment, in a fork of a process that has imported it."""
        environment = ENVIRONMENT | (environment or {})
        asked = {"arguments": list(map(str, arguments)), "cwd": str(cwd or self.path), "environment": environment}
        with tempfile.TemporaryDirectory() as folder:
            printed = {name: os.path.join(folder, name) for name in ("stdout", "stderr")}
            process = _preloaded()
            print(json.dumps(asked | printed), file=process.stdin, flush=True)
            code = int(process.stdout.readline())
            texts = {name: Path(path).read_text(encoding="utf-8") for name, path in printed.items()}
        assert not check or code == 0, texts["stdout"] + texts["stderr"]
        return subprocess.CompletedProcess(asked["arguments"], code, **texts)

    def dry_run(self, *arguments, check=True):
        """Run `snakemake -n`."""
        return self.snakemake("-n", *arguments, check=check)

    def python(self, *arguments, cwd=None, environment=None, check=True):
        """Run this Python as a user would without an active virtual environment."""
        environment = ENVIRONMENT | (environment or {})
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(
            command, cwd=cwd or self.path, env=environment, capture_output=True, text=True, timeout=200, check=False
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def plan(self, *arguments, config=None):
        """Return the jobs of a dry run: `{output, or the name of a target: rule}`."""
        given = ["--configfile", self.write_config(config)] if config else []
        return self.jobs(self.dry_run(*(arguments or ["all"]), *given).stdout)

    def refusal(self, *arguments, config=None):
        """Return the line with which a dry run is refused."""
        given = ["--configfile", self.write_config(config)] if config else []
        done = self.dry_run(*arguments, *given, check=False)
        assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
        return done.stderr.splitlines()[-1]

    @staticmethod
    def jobs(text):
        """Return the jobs in the output of a dry run: `{output, or the name of a target: rule}`."""
        jobs = re.findall(r"^(?:local)?(?:rule|checkpoint) (\w+):\n((?:    .*\n)*)", text, re.M)
        assert jobs or "Nothing to be done" in text, text
        planned = {}
        for rule, details in jobs:
            outputs = re.search(r"^    output: (.*)$", details, re.M)
            planned |= dict.fromkeys(outputs[1].split(", ") if outputs else [rule], rule)
        return planned

    def write_config(self, config, name="changed.yaml"):
        """Write a config file and return its path."""
        path = self.path / name
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return path

    def pretend_all_is_made(self, config=None):
        """Write every declared output that is missing, and let Snakemake record its provenance."""
        for name in self.plan("-F", "all", config=config):
            if "/" in name and not (self.path / name).exists():
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                (self.path / name).write_text("{}", encoding="utf-8")
        given = ["--configfile", self.write_config(config)] if config else []
        self.snakemake("--touch", "-F", "--cores", 1, "all", *given)

    def pretend(self, *stages, code=None):
        """Give stages other code, by default such that they write their outputs at once; they keep their recipes."""
        for module in {stage.module for stage in stages}:
            path = self.path / f"{module.replace('.', '/')}.py"
            real = path.with_name(f"real_{path.name}")
            if not real.exists():
                path.rename(real)
            recipe = f"if __name__ != '__main__':\n    from stages.{real.stem} import *\nelse:\n"
            path.write_text(recipe + textwrap.indent(code or FAKE_STAGE, "    "), encoding="utf-8")

    def append(self, name, text):
        """Append to a file of the copy."""
        with open(self.path / name, "a", encoding="utf-8") as file:
            file.write(text)


@functools.cache
def _planned():
    """A copy of the project in which a plan was made: it has compiled files and fingerprints, which take a second."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    checkout = Checkout(_copy(HOME, Path(folder.name), "__pycache__"))
    checkout.dry_run("all")
    return checkout.path


def _copy(source, path, *ignored):
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, path / name, ignore=shutil.ignore_patterns(*ignored))
        else:
            shutil.copy2(source / name, path / name)
    return path


def copy_project(path):
    """Copy the files of the workflow."""
    return Checkout(_copy(_planned(), path))


def rules_of(plan):
    """Return the rules of the jobs of a plan."""
    return set(plan.values())


def outputs_of(plan, *rules):
    """Return the outputs of the jobs of some rules in a plan, sorted."""
    return sorted(output for output, rule in plan.items() if rule in rules)


def write_commands(folder, commands):
    """Write scripts of bash in place of a scheduler's commands: `{name: script}`."""
    folder.mkdir(exist_ok=True)
    for name, script in commands.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
        (folder / name).chmod(0o755)


WORKER = """
import json, os, sys
from pathlib import Path

known = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")
told = {name: value for name, value in os.environ.items() if name.startswith("CARAVAN_") or name in known}
Path("told" + os.environ["RANK"]).write_text(json.dumps(told))
if os.environ["RANK"] == "0" and sys.argv[-1] != "0":
    Path(os.environ["CARAVAN_EXIT_FILE"]).write_text(sys.argv[-1])
"""


def launch_in_job(folder, nodes, code, environment):
    """Run WORKER by workflow/launch in a job whose commands are in folder/bin; return (exit code, stderr)."""
    (folder / "worker.py").write_text(WORKER, encoding="utf-8")
    schedulers = ("SLURM", "CARAVAN", "PBS", "LSB", "FLUX")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(schedulers)}
    path = f"{folder}/bin:{Path(sys.executable).parent}:/usr/bin:/bin"
    shell = 'export JOB=$$; "$@"; code=$?; exit $code'  # of the job, around the launcher
    launch = [HOME / "workflow/launch", "--nodes", str(nodes), "--cpus", "1", "1", "-m", "worker", "--", str(code)]
    done = subprocess.run(
        ["bash", "-c", shell, "job", *launch],
        cwd=folder,
        env=clean | {"PATH": path, "PYTHONPATH": str(folder)} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        start_new_session=True,
    )
    return done.returncode, done.stderr


def told(folder, rank=0):
    """Return the variables that WORKER had on a rank."""
    return json.loads((folder / f"told{rank}").read_text())


def wait_for_ranks(folder, count=2):
    """Wait until the ranks have written the files rank0, rank1 and so on, and return the process ids in them."""
    files = [folder / f"rank{rank}" for rank in range(count)]
    deadline = time.monotonic() + 60
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < deadline, "the ranks did not start"
        time.sleep(0.05)
    return [int(file.read_text().split()[0]) for file in files]


FAKE_STAGE = '''
"""A stage that writes its declared outputs at once, and into them how it was called."""

import json
import os
import sys
import time
from pathlib import Path

options = {name: value for name, value in zip(sys.argv, sys.argv[1:], strict=False) if name.startswith("--")}
argv = [Path(word).read_text() if word.endswith(".expect") else word for word in sys.argv[1:]]
said = {"argv": argv, "python": sys.executable, "file": __file__, "cwd": os.getcwd()}
said["ranks"], said["threads"] = os.environ.get("WORLD_SIZE"), os.environ["OMP_NUM_THREADS"]
written = [options[name] for name in ("--output", "--scores", "--text", "--page", "--log") if name in options]
if "--figures" in options:
    written += [f"{options['--figures']}/{name}.svg" for name in ("loss", "bits_per_byte", "accuracy")]
if "--pages" in options:
    pages = ("answer", "data", "training", "scores", "provenance")
    written += [f"{options['--pages']}/{name}.html" for name in pages]
for path in map(Path, written if os.environ.get("RANK", "0") == "0" else ()):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(said), encoding="utf-8")
'''
