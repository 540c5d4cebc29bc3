"""The launcher in jobs of a stand-in for PBS."""

import json
import shlex
import time

import pytest

from tests.helpers import mpi, processes
from tests.pbs.stand_in import NODES
from tests.workflow.checkout import HOME

LAUNCH = HOME / "workflow/launch"
WORKER = """
import json, os, signal, sys, time
from pathlib import Path

names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "STAND_IN_NODE", "OF_THE_SITE")
told = {name: value for name, value in os.environ.items() if name.startswith("CARAVAN_") or name in names}
behaviour, restarts = sys.argv[-1], int(told["CARAVAN_JOB_RESTARTS"])
Path(f"told{told['RANK']}.{restarts}").write_text(json.dumps(told))
if behaviour == "crash" and told["RANK"] == "1":
    sys.exit(9)
if behaviour == "preempted" and restarts == 0:
    if told["RANK"] == "0":
        Path(told["CARAVAN_EXIT_FILE"]).write_text("75")
    sys.exit(0)
if behaviour == "save":
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), Path(f"saved{told['RANK']}").touch(), sys.exit(0)))
while behaviour in ("crash", "save"):
    time.sleep(0.05)
"""


@pytest.fixture
def folder(tmp_path):
    """A working directory with a space in its name."""
    made = tmp_path / "a place"
    made.mkdir()
    (made / "worker.py").write_text(WORKER, encoding="utf-8")
    return made


@pytest.fixture
def submit(pbs, folder):
    """A function that submits a launcher of one rank per node; returns the id of its job."""

    def launch(behaviour="end", nodes=2, select=2, walltime="00:10:00", **variables):
        command = shlex.join([str(LAUNCH), "--nodes", str(nodes), "--cpus", "1", "1", "-m", "worker", "--", behaviour])
        options = ["-r", "y", "-l", f"select={select}:ncpus=1", "-l", f"walltime={walltime}"]
        script = f"trap : TERM\ncd {shlex.quote(str(folder))}\n{command}\n"
        return pbs.submit(script, *options, PYTHONPATH=str(folder), OF_THE_SITE="a 'b' $c", **variables)

    return launch


def told(folder, rank, restarts=0):
    """Return the environment that a rank had."""
    return json.loads((folder / f"told{rank}.{restarts}").read_text())


def check_two_nodes(folder, job):
    """Check the environment of both ranks."""
    for rank in (0, 1):
        environment = told(folder, rank)
        expected = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "CARAVAN_NODE_RANK": str(rank)}
        expected |= {"MASTER_ADDR": NODES[0], "CARAVAN_JOB_ID": job, "OF_THE_SITE": "a 'b' $c"}
        expected |= {"MASTER_PORT": str(20000 + int(job.split(".")[0])), "CARAVAN_JOB_RESTARTS": "0"}
        assert environment | expected == environment


def test_two_nodes_of_a_job_have_a_launcher_each(pbs, submit, folder):
    job = submit()
    code, printed = pbs.wait(job)
    assert code == 0, printed
    check_two_nodes(folder, job)
    assert [told(folder, rank)["STAND_IN_NODE"] for rank in (0, 1)] == list(NODES)
    end = int(pbs.attributes(job)["stime"]) + 600
    assert int(told(folder, 1)["CARAVAN_DEADLINE"]) == end - 30
    assert not [path for path in folder.iterdir() if path.name.startswith(".caravan")]


def test_sites_mpiexec_starts_the_launchers(pbs, submit, folder, tmp_path):
    mpi.require()
    # for this mpiexec, both nodes are this machine
    wrapper = tmp_path / "mpiexec"
    wrapper.write_text('#!/bin/bash\n[[ "$1 $2 $3" == "-n 2 --hostfile" ]] && exec mpiexec -n 2 "${@:5}"\nexit 3\n')
    wrapper.chmod(0o755)
    job = submit(CARAVAN_MPIEXEC=str(wrapper), **mpi.ALLOWED)
    code, printed = pbs.wait(job)
    assert code == 0, printed
    check_two_nodes(folder, job)


def test_job_that_ran_out_of_time_requeues_itself_if_it_may(pbs, submit, folder):
    (pbs.folder / "operator").touch()
    job = submit("preempted", nodes=1, select=1)
    assert pbs.wait(job)[0] == 0
    assert pbs.attributes(job)["runs"] == 2
    assert told(folder, 0, restarts=1)["CARAVAN_JOB_RESTARTS"] == "1"


def test_job_that_may_not_requeue_itself_exits_with_75(pbs, submit, folder):
    job = submit("preempted", nodes=1, select=1)
    sentence = f"launch: job {job} was not requeued (Unauthorized Request  {job}): Snakemake submits it again "
    assert pbs.wait(job) == (75, f"{sentence}as often as `retries` of the profile allows\n")
    marker = folder / "preempted"
    again = submit("preempted", nodes=1, select=1, CARAVAN_PREEMPTED_FILE=str(marker))
    assert pbs.wait(again)[1].endswith(": Snakemake submits it again without using `retries`\n")
    assert marker.exists()


def test_crash_on_one_node_ends_the_other(pbs, submit):
    job = submit("crash")
    assert pbs.wait(job)[0] == 1
    assert not processes.with_one_of(f"PBS_JOBID={job}")


@pytest.mark.parametrize("nodes", [1, 2])
def test_deleted_job_lets_the_ranks_of_all_nodes_save(pbs, submit, folder, nodes):
    job = submit("save", nodes=nodes, select=nodes)
    files = [folder / f"told{rank}.0" for rank in range(nodes)]
    processes.wait_until(lambda: all(file.exists() for file in files), 60, "all ranks started")
    time.sleep(0.5)  # ranks install their handlers after they write their files
    assert pbs.run("qdel", job).returncode == 0
    pbs.wait(job)
    assert all((folder / f"saved{rank}").exists() for rank in range(nodes))


def test_node_file_that_does_not_match_the_nodes_is_one_sentence(pbs, submit):
    job = submit(nodes=2, select=1)
    path = pbs.folder / "jobs" / job / "nodes"
    assert pbs.wait(job) == (
        2,
        f"launch: job {job} must have as many nodes as --nodes, 2, got 1 in {path}; the job needs `-l select=2` and "
        "`-l place=scatter`\n",
    )


def test_server_that_does_not_answer_is_one_sentence(pbs, submit, tmp_path):
    (pbs.folder / "silent").touch()
    (pbs.folder / "bin/sleep").write_text("#!/bin/bash\n")
    (pbs.folder / "bin/sleep").chmod(0o755)
    job = submit(nodes=1, select=1)
    assert pbs.wait(job) == (1, f"launch: PBS did not answer `qstat -f {job}` three times\n")
