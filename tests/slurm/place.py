"""Working directories of the tiny workflow, the profile they use, and drivers that run there."""

import json
import os
import shutil
import signal
import subprocess
import sys

import yaml

from tests.helpers import processes
from tests.slurm.cluster import HOME
from tests.test_end_to_end import CONFIG, write_texts

LOCAL = HOME / "profiles/local"
SAID = "said.txt"
PATIENCE = 800  # seconds after which a driver that has not ended is a fault


class Place:
    """A working directory with a config and a copy of profiles/slurm; its results come from a cluster.

    `home` is the checkout that makes them, `environment` what its drivers have beside a person's own.
    """

    def __init__(self, path, cluster, home=HOME):
        self.path, self.cluster, self.home = path, cluster, home
        self.drivers, self.environment = [], {}

    def fill(self, config=CONFIG, nodes=1, ranks=2):
        """Write the texts, the config, and a profile with these numbers of nodes and ranks per node."""
        write_texts(self.path)
        (self.path / "my.yaml").write_text(config, encoding="utf-8")
        self.write_profile(nodes, ranks)
        return self

    def write_recipe(self, **keys):
        """Change keys of the training's recipe."""
        config = yaml.safe_load((self.path / "my.yaml").read_text(encoding="utf-8"))
        config["runs"]["tiny"]["pretrain"] |= keys
        (self.path / "my.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")

    def write_profile(self, nodes, ranks):
        """Write profiles/slurm with the sizes of a test; all else is unchanged."""
        settings = yaml.safe_load((self.home / "profiles/slurm/profile.yaml").read_text(encoding="utf-8"))
        sizes = {"nodes": nodes, "ranks": ranks, "gres": f"'gpu:{ranks}'", "omp_threads": 1}
        for rule in ("pretrain", "finetune"):
            settings["set-resources"][rule] |= sizes
        settings["latency-wait"] = 5
        (self.path / "profile").mkdir(exist_ok=True)
        (self.path / "profile/profile.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")

    def change_profile(self, resources=None, training=None, **settings):
        """Change settings of the profile: resources of all jobs, those of the training, or others."""
        path = self.path / "profile/profile.yaml"
        found = yaml.safe_load(path.read_text(encoding="utf-8")) | settings
        found["default-resources"] += [f"{name}={value}" for name, value in (resources or {}).items()]
        found["set-resources"]["pretrain"] |= training or {}
        path.write_text(yaml.safe_dump(found), encoding="utf-8")
        return self

    def copy(self, path, cluster=None):
        """Copy the place with its results; its next jobs may run on another cluster."""
        shutil.copytree(self.path, path)
        return Place(path, cluster or self.cluster, self.home)

    def files(self):
        """Return the files of the workflow in it, without those of Snakemake and its drivers."""
        found = {path.relative_to(self.path) for path in self.path.rglob("*") if path.is_file()}
        return {path for path in found if path.parts[0] not in (".snakemake", SAID)}

    def start(self, *arguments, profile="profile"):
        """Start a driver, without an activated virtual environment."""
        self.drivers.append(Driver(self, [*arguments, "--profile", profile]))
        return self.drivers[-1]

    def abandon(self):
        """End drivers and jobs that a failed test left."""
        for driver in self.drivers:
            driver.kill()
        self.cluster.cancel_all()

    def make(self, *arguments, profile="profile"):
        """Run a driver to its end; it must succeed."""
        driver = self.start(*arguments, profile=profile)
        assert driver.end() == 0, driver.said()
        return self

    def weights(self):
        """{milestone: {tensor file: sha256}}: equal bits have equal hashes."""
        found = {}
        for path in sorted((self.path / "results/runs/tiny/models").glob("*.json")):
            outputs = json.loads(path.read_text())["identity"]["outputs"]
            found[path.name] = {name: file["sha256"] for name, file in outputs.items() if name.endswith(".distcp")}
        return found

    def steps(self):
        """The steps in metrics.jsonl, in the order in which they were written."""
        return [entry["step"] for entry in self._entries("metrics.jsonl") if "loss" in entry]

    def events(self, kind):
        """Return the entries of events.jsonl of a kind."""
        return [entry for entry in self._entries("events.jsonl") if entry["event"] == kind]

    def job_at_step(self, step):
        """Wait until the training has done a step; returns the id of its job."""
        processes.wait_until(lambda: max(self.steps(), default=0) >= step, 120, f"step {step} was done")
        return self.lease()["job"]

    def lease(self):
        """Return the lease of the run directory."""
        (path,) = self._of_run("lease.json")
        return json.loads(path.read_text())

    def nodes_of_training(self):
        """The number of nodes on which the last milestone was trained."""
        path = max(self.path.glob("results/runs/tiny/models/*.json"))
        names = json.loads(path.read_text())["record"]["environment"]["SLURM_JOB_NODELIST"]
        return len(self.cluster.run("scontrol", "show", "hostnames", names).split())

    def submitted(self, rule):
        """The arguments of each sbatch by which a job of this rule and directory was submitted."""
        calls = [call for call in self.cluster.submissions() if str(self.path) in call and "--comment" in call]
        calls = [call for call in calls if "--test-only" not in call]
        return [call for call in calls if call[call.index("--comment") + 1].startswith(f"rule_{rule}_")]

    def text_of(self, name):
        """Return the text of a file; an empty one if it does not exist."""
        path = self.path / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def _entries(self, name):
        """Return the entries of a journal without an incomplete last line."""
        lines = [line for path in self._of_run(name) for line in path.read_text().splitlines(keepends=True)]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def _of_run(self, name):
        return self.path.glob(f"results/runs/tiny/train/*/{name}")


class Driver:
    """A running Snakemake in its own session; its output goes to a file."""

    def __init__(self, place, arguments):
        self._said = place.path / SAID
        environment = {
            key: value for key, value in place.cluster.environment.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH")
        } | place.environment
        command = [sys.executable, HOME / "tests/slurm/snakemake_soon.py", *arguments]
        command += ["--snakefile", place.home / "workflow/Snakefile", "--configfile", "my.yaml"]
        with open(self._said, "a", encoding="utf-8") as said:
            self.process = subprocess.Popen(
                command, cwd=place.path, env=environment, stdout=said, stderr=said, start_new_session=True
            )

    def end(self, patience=PATIENCE):
        """Wait for the end; returns the exit code."""
        return self.process.wait(patience)

    def said(self):
        """Return the output of this directory's drivers."""
        return self._said.read_text(encoding="utf-8")

    def interrupt(self):
        """Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self):
        """SIGKILL: its jobs belong to Slurm, and keep running."""
        self.process.kill()
        self.process.wait()
