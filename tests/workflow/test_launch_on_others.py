"""The launcher in jobs of LSF and Flux, with fake commands: no server of either can be installed for tests."""

import time

import pytest

from tests.workflow.checkout import launch_in_job, told, write_commands

COMMANDS = {
    "bjobs": 'echo "$@" >> asked; echo "1:30 L"',
    "bhist": 'for start in 1 2 3; do echo "Mon Nov 23 06:00:0$start: Starting (Pid 7);"; done',
    "blaunch": 'echo "$1" >> launched; shift; exec "$@"',
    "brequeue": 'echo "$@" >> requeued; kill -TERM -- "-$JOB"',
    "flux": """
        case "$1 $2" in
            "hostlist --expand") echo "127.0.0.1 127.0.0.2" ;;
            "job id") echo 4818 ;;
            "job timeleft") echo 5400 ;;
            "run --nodes=2")
                while [[ $1 == --* || $1 == run ]]; do shift; done
                FLUX_TASK_RANK=1 "$@" &
                FLUX_TASK_RANK=0 "$@"
                wait ;;
        esac
    """,
}
JOBS = {
    "LSF": {"LSB_JOBID": "4818", "LSB_MCPU_HOSTS": "127.0.0.1 4 127.0.0.2 4"},
    "Flux": {"FLUX_JOB_ID": "f2oLkTLb"},
}


@pytest.fixture
def launch(tmp_path):
    """A function that runs the launcher in a job; returns (exit code, stderr)."""
    write_commands(tmp_path / "bin", COMMANDS)
    return lambda scheduler, code=0, nodes=2: launch_in_job(tmp_path, nodes, code, JOBS[scheduler])


@pytest.mark.parametrize(("scheduler", "restarts"), [("LSF", "2"), ("Flux", "0")])
def test_each_node_has_a_launcher_that_knows_the_job(launch, tmp_path, scheduler, restarts):
    begun = time.time()
    assert launch(scheduler)[0] == 0
    for rank in (0, 1):
        environment = told(tmp_path, rank)
        expected = {"CARAVAN_NODE_RANK": str(rank), "CARAVAN_NUM_NODES": "2", "CARAVAN_PORT": "24818"}
        expected |= {"CARAVAN_HEAD": "127.0.0.1", "MASTER_ADDR": "127.0.0.1", "CARAVAN_JOB_RESTARTS": restarts}
        assert environment | expected == environment
        assert -1 <= int(environment["CARAVAN_DEADLINE"]) - begun - 5370 <= 30
        assert environment["CARAVAN_JOB_ID"] in JOBS[scheduler].values()


def test_lsf_requeues_a_job_that_ran_out_of_time(launch, tmp_path):
    assert launch("LSF", code=75)[0] == -15
    assert (tmp_path / "requeued").read_text() == "4818\n"


def test_flux_does_not_requeue(launch):
    code, said = launch("Flux", code=75)
    assert code == 75
    assert said.endswith(  # the agents of two nodes end at their own times, of which torch may warn before
        "launch: job f2oLkTLb was not requeued (Flux has no command for it): Snakemake submits it again as often as "
        "`retries` of the profile allows\n"
    )


@pytest.mark.parametrize("scheduler", JOBS)
def test_job_with_another_number_of_nodes_is_refused(launch, scheduler):
    code, said = launch(scheduler, nodes=3)
    assert code == 2 and " must have as many nodes as --nodes, 3, got 2" in said
