"""Jobs that users submit: the doctor on the nodes of a training, and Snakemake itself."""

import shlex
import sys
from pathlib import Path

import pytest

from tests.helpers import processes
from tests.slurm.cluster import HOME

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def submitted(cluster, directory, script, *options):
    """Run a script as a job to its end; returns (its state, its output)."""
    python = shlex.quote(str(Path(sys.executable).parent))
    command = f"export PATH={python}:$PATH PYTHONPATH={shlex.quote(str(HOME))}; {script}"
    places = ("--chdir", str(directory), "--output", str(directory / "job.txt"))
    job = cluster.run("sbatch", "--parsable", *options, *places, "--wrap", command).strip()
    processes.wait_until(lambda: job not in cluster.queue(), 300, "the job ended")
    return cluster.state_of(job), (directory / "job.txt").read_text(encoding="utf-8")


def test_doctor_looks_at_two_nodes(cluster, tmp_path):
    script = (
        f"{shlex.quote(str(HOME / 'workflow/launch'))} --nodes 2 --cpus 4 2 -m tools.doctor --slurm --partition all"
    )
    state, said = submitted(cluster, tmp_path, script, "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4")
    assert state == "COMPLETED", said
    lines = {line.split()[1]: line for line in said.splitlines()}
    assert lines["nodes"].split(maxsplit=2)[2] == "4 ranks on 2 hosts: 127.0.0.11, 127.0.0.12"
    assert all(lines[check].startswith("ok ") for check in ("filesystem", "clocks", "network", "collectives", "slurm"))
    assert lines["for"].startswith("fit for a run: ")


def test_snakemake_may_be_a_job_itself(training, cluster, undisturbed):
    driver = [sys.executable, HOME / "tests/slurm/snakemake_soon.py", "models", "--profile", "profile"]
    driver += ["--snakefile", HOME / "workflow/Snakefile", "--configfile", "my.yaml"]
    state, said = submitted(cluster, training.path, shlex.join(map(str, driver)), "--nodes=1", "--mem=4G")
    assert state == "COMPLETED", said
    assert training.weights() == undisturbed
    assert len(training.submitted("pretrain")) == 1
