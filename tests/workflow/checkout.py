"""Copies of the checkout in which the workflow plans, and jobs whose stages write their outputs at once."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml

HOME = Path(__file__).resolve().parents[2]
DATA_STAGES = ("list", "train_tokenizer", "hash_documents", "find_duplicates", "tokenize", "index")
STAGES = (*DATA_STAGES, "pretrain", "finetune", "convert", "evaluate", "summarize")
COPIED = ("workflow", "stages", "tools", "config", "profiles", "environment.yml")

TOUCH = """
import sys
import snakemake.cli
import snakemake.executors.touch
snakemake.executors.touch.Executor.SLEEPING_TIME = 0  # else 0.1 s a job, so that no two have the same time
sys.exit(snakemake.cli.main())
"""


class Checkout:
    """A copy of the project, and what its Snakemake says."""

    def __init__(self, path):
        self.path = path

    @property
    def default_config(self):
        """The embedded default, as data."""
        return yaml.safe_load((self.path / "config/config.yaml").read_text(encoding="utf-8"))

    def snakemake(self, *arguments, cwd=None, environment=None, check=True):
        """Run Snakemake as a person does who has not activated the virtual environment."""
        return self.python("-m", "snakemake", *arguments, cwd=cwd, environment=environment, check=check)

    def python(self, *arguments, cwd=None, environment=None, check=True):
        """Run this Python likewise."""
        environment = {**os.environ, "PATH": "/usr/local/bin:/usr/bin:/bin", **(environment or {})}
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(
            command, cwd=cwd or self.path, env=environment, capture_output=True, text=True, timeout=200, check=False
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def plan(self, *arguments, config=None):
        """What a dry run would run: `{output, or the name of a target: rule}`."""
        given = ["--configfile", self.write_config(config)] if config else []
        text = self.snakemake("-n", *(arguments or ["all"]), *given).stdout
        jobs = re.findall(r"^(?:local)?(?:rule|checkpoint) (\w+):\n((?:    .*\n)*)", text, re.M)
        assert jobs or "Nothing to be done" in text, text
        planned = {}
        for rule, details in jobs:
            outputs = re.search(r"^    output: (.*)$", details, re.M)
            planned |= dict.fromkeys(outputs[1].split(", ") if outputs else [rule], rule)
        return planned

    def write_config(self, config, name="changed.yaml"):
        """Write a config file; returns its path."""
        path = self.path / name
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return path

    def pretend_all_is_made(self, config=None):
        """Write every declared output that is not there, and have Snakemake record what it was made from."""
        for name in self.plan("-F", "all", config=config):
            if "/" in name and not (self.path / name).exists():
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                (self.path / name).write_text("{}", encoding="utf-8")
        given = ["--configfile", self.write_config(config)] if config else []
        self.python("-c", TOUCH, "--touch", "-F", "--cores", 1, "all", *given)

    def append(self, name, text):
        """Append to a file of the copy."""
        with open(self.path / name, "a", encoding="utf-8") as file:
            file.write(text)


def copy_project(path):
    """Copy what the workflow consists of."""
    for name in COPIED:
        source = HOME / name
        if source.is_dir():
            shutil.copytree(source, path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, path / name)
    return Checkout(path)


def wait_for_ranks(folder):
    """The process ids of two ranks, each of which writes its own into a file rank0 or rank1 of a folder."""
    files = [folder / "rank0", folder / "rank1"]
    deadline = time.monotonic() + 60
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < deadline, "the ranks did not start"
        time.sleep(0.05)
    return [int(file.read_text().split()[0]) for file in files]


def is_alive(process):
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


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
written = [options[name] for name in ("--output", "--scores", "--text", "--log") if name in options]
if "--figures" in options:
    written += [f"{options['--figures']}/{name}.svg" for name in ("loss", "bits_per_byte", "accuracy")]
for path in map(Path, written if os.environ.get("RANK", "0") == "0" else ()):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(said), encoding="utf-8")
'''
