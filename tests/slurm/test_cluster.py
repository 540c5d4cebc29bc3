"""The private Slurm itself: its GPUs, and its complete removal."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import processes
from tests.slurm import cluster as slurm
from tests.slurm.cluster import HOME, NODES

SESSION = """
import subprocess, sys, time
from tests.slurm.cluster import Cluster

with Cluster(sys.argv[1]) as cluster:
    cluster.run("sbatch", "--nodes=2", "--ntasks-per-node=1", "-o", "/dev/null", "--wrap", "srun sleep 300")
    driver = subprocess.Popen(["sleep", "300"], env=cluster.environment, start_new_session=True)
    while list(cluster.queue().values()) != ["RUNNING"]:
        time.sleep(0.05)
    print(cluster.prefix, flush=True)
    time.sleep(300)
"""


def test_a_job_sees_as_many_gpus_of_each_node_as_requested(cluster):
    script = "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $SLURM_GPUS_ON_NODE"
    said = cluster.run("srun", "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:3", "sh", "-c", script)
    assert sorted(said.splitlines()) == [f"{node} 0,1,2 3" for node in NODES[:2]]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.timeout(120)
def test_nothing_is_left_of_a_session_that_is_ended(cluster, tmp_path, number):
    command = [sys.executable, "-c", SESSION, str(tmp_path)]
    session = subprocess.Popen(command, cwd=HOME, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    prefix = session.stdout.readline().strip()
    processes.wait_until(lambda: len(slurm.running(prefix)) > 10, 20, "the job's step ran")
    session.send_signal(number)
    session.wait(30)
    processes.wait_until(lambda: not slurm.running(prefix), 40, "all of it ended")
    processes.wait_until(lambda: not Path(prefix).exists(), 10, "its directory was deleted")


def test_commands_that_are_not_installed_are_named():
    assert slurm.lacking(("sh", "no-such-command")) == ["no-such-command"]
