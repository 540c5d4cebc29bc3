"""A stand-in for PBS, see stand_in.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import processes
from tests.pbs import stand_in


class Pbs:
    """The stand-in in a directory, and the environment of its user."""

    def __init__(self, folder):
        self.folder = folder
        other = ("SLURM", "CARAVAN", "PBS")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(other)}
        self.environment = kept | stand_in.install(folder)

    def run(self, *command, stdin="", **variables):
        """Run a command of PBS; returns the ended process."""
        return subprocess.run(
            [self.folder / "bin" / command[0], *map(str, command[1:])],
            env=self.environment | variables,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def submit(self, script, *options, **variables):
        """Submit a script in the environment of this Python; returns the id of the job."""
        path = f"{self.folder / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
        done = self.run("qsub", "-V", *options, stdin=script, **{"PATH": path} | variables)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def attributes(self, job):
        """Return what the stand-in knows of a job."""
        return stand_in.json.loads((self.folder / "jobs" / job / "job.json").read_text())

    def jobs(self):
        """Return the ids of all jobs, in the order of submission."""
        found = (path.parent.name for path in (self.folder / "jobs").glob("*/job.json"))
        return sorted(found, key=lambda job: int(job.split(".")[0]))

    def wait(self, job, seconds=60):
        """Wait for the end of a job; returns (exit code, output)."""
        processes.wait_until(lambda: self.attributes(job)["state"] == "F", seconds, f"job {job} ended")
        return self.attributes(job)["code"], (self.folder / "jobs" / job / "output").read_text()

    def stop(self):
        """Kill what is left of all jobs."""
        for job in self.jobs():
            processes.kill(processes.with_one_of(f"PBS_JOBID={job}"))


@pytest.fixture
def pbs(tmp_path):
    """A stand-in for PBS with two nodes, without jobs."""
    made = Pbs(tmp_path / "pbs")
    yield made
    made.stop()
