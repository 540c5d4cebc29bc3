"""The launcher in a Slurm job with fake Slurm commands; tests/slurm uses a real Slurm."""

import shutil
import socket
import subprocess
from datetime import datetime

import pytest

from scripts.commands import shell_prefix
from tests.workflow.checkout import HOME, launch_in_job, told, write_commands

COMMANDS = {
    # runs the command after its options, as the only node of the job, where no command of Slurm is on PATH
    "srun": """
        echo "$@" > srun.said
        while [[ $1 == --* ]]; do shift; done
        export SLURM_NODEID=0 PATH=${PATH/$PWD\\/bin:/}
        exec "$@"
    """,
    "scontrol": """
        if [[ "$1 $2" == "show hostnames" ]]; then echo ${HEAD-127.0.0.1}; exit; fi
        if [[ "$1 $2" == "show job" ]]; then
            echo asked >> asked
            [[ $(wc -l < asked) -gt ${SILENT:-0} ]] || { echo "Unable to contact slurm controller" >&2; exit 1; }
            echo "JobId=$4 JobName=a b Restarts=3 EndTime=$END NodeList=127.0.0.[1-2] NumNodes=${NODES:-1}"
            exit
        fi
        echo "$@" >> requeued
        [[ -z $FORBIDDEN ]] || { echo "slurm_requeue error: Requested operation is presently disabled" >&2; exit 1; }
        kill -TERM -- "-$JOB"  # as Slurm does
    """,
    "sleep": "echo $1 >> slept",
}


@pytest.fixture
def job(tmp_path):
    """A function that runs the launcher in a job and returns (exit code, stderr)."""
    write_commands(tmp_path / "bin", COMMANDS)
    given = {"SLURM_JOB_ID": "4711", "END": END, "FORBIDDEN": ""}
    return lambda code, **environment: launch_in_job(tmp_path, 1, code, given | environment)


END = "2033-05-18T05:33:20"


def test_ranks_get_the_job_from_variables_without_a_command_of_slurm_on_their_node(job, tmp_path):
    assert job(0) == (0, "")
    environment = told(tmp_path)
    expected = {
        "CARAVAN_NODE_RANK": "0",
        "CARAVAN_NUM_NODES": "1",
        "CARAVAN_HEAD": "127.0.0.1",
        "CARAVAN_PORT": "24711",
        "CARAVAN_JOB_ID": "4711",
        "CARAVAN_JOB_RESTARTS": "3",
        "CARAVAN_DEADLINE": str(int(datetime.fromisoformat(END).timestamp()) - 30),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "24711",
    }
    assert environment | expected == environment


def test_another_scheduler_sets_the_variables_itself(job, tmp_path):
    variables = {"NODE_RANK": "0", "NUM_NODES": "1", "HEAD": "127.0.0.1", "PORT": "29517"}
    environment = {f"CARAVAN_{name}": value for name, value in variables.items()}
    exit_file = tmp_path / "exit"
    assert job(75, **environment, CARAVAN_EXIT_FILE=str(exit_file))[0] == 75
    assert exit_file.read_text() == "75"
    assert told(tmp_path)["MASTER_PORT"] == "29517"
    assert not (tmp_path / "asked").exists()


def test_environment_file_of_the_site_is_read_once_per_job_and_keeps_this_python(job, tmp_path):
    write_commands(tmp_path / "modules", {"python": "exit 9"})
    site = tmp_path / "site.sh"
    site.write_text(
        f"echo read >> read; export GLOO_SOCKET_IFNAME=eth7$undefined CARAVAN_SRUN=--label\n"
        f"PATH={tmp_path}/modules:$PATH\n"
        "set -- nodes; nodes=7 ranks=9\n"
    )
    assert job(0, CARAVAN_SITE=str(site)) == (0, "")
    assert told(tmp_path)["GLOO_SOCKET_IFNAME"] == "eth7"
    assert " --label " in (tmp_path / "srun.said").read_text()
    assert (tmp_path / "read").read_text() == "read\n"
    missing = "launch: CARAVAN_SITE must be a file that can be read on"
    code, said = job(0, CARAVAN_SITE="/nowhere/site.sh")
    assert (code, said.startswith(missing), said.endswith(", got /nowhere/site.sh\n")) == (2, True, True), said


def test_first_node_without_an_address_is_refused_at_once(job, tmp_path):
    code, said = job(0, HEAD="no such node")
    assert (code, said.count("\n")) == (2, 1)
    assert " cannot resolve no such node, the name of the first node (" in said
    assert said.endswith("): add it to /etc/hosts of all nodes or to the name server\n")
    assert not (tmp_path / "told0").exists()
    assert job(0, HEAD="") == (2, "launch: job 4711 must have a first node with a name, and Slurm reports none\n")


def test_port_in_use_is_not_taken(job, tmp_path):
    with socket.create_server(("", 24711)):
        assert job(0) == (0, "")
        assert told(tmp_path)["MASTER_PORT"] == "24712"
        variables = {"NODE_RANK": "0", "NUM_NODES": "1", "HEAD": "127.0.0.1", "PORT": "24711"}
        code, said = job(0, **{f"CARAVAN_{name}": value for name, value in variables.items()})
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("launch: port 24711 of ")
    assert said.endswith(" cannot be used (Address already in use): start the job again\n")


def test_job_without_a_time_limit_has_no_deadline(job, tmp_path):
    assert job(0, END="Unknown", CARAVAN_DEADLINE="1")[0] == 0
    assert "CARAVAN_DEADLINE" not in told(tmp_path)


def test_busy_controller_is_asked_three_times_and_another_number_of_nodes_is_refused(job, tmp_path):
    assert job(0, NODES="2") == (
        2,
        "launch: job 4711 must have as many nodes as --nodes, 1, got 2; without `gres`, the profile needs `tasks` with "
        "the number of `nodes`\n",
    )
    assert not (tmp_path / "srun.said").exists()
    (tmp_path / "asked").unlink()
    assert job(0, SILENT="2")[0] == 0
    assert (tmp_path / "slept").read_text().split()[-3:] == ["0", "5", "15"]
    (tmp_path / "asked").unlink()
    assert job(0, SILENT="3") == (1, "launch: Slurm did not answer `scontrol show job 4711` three times\n")


def test_preempted_job_is_requeued_or_exits_with_75_if_that_is_forbidden(job, tmp_path):
    assert job(75) == (-15, "")
    assert (tmp_path / "requeued").read_text() == "requeue 4711\n"
    assert not list(tmp_path.glob(".caravan-exit*"))
    assert job(75, FORBIDDEN="yes") == (
        75,
        "launch: job 4711 was not requeued (Requested operation is presently disabled): Snakemake submits it again "
        "as often as `retries` of the profile allows\n",
    )


def test_error_is_passed_on_and_not_requeued(job, tmp_path):
    assert [job(code)[0] for code in (1, 2)] == [1, 2]
    assert not (tmp_path / "requeued").exists()


def test_container_runs_the_ranks_and_its_options_reach_srun(job, tmp_path):
    write_commands(tmp_path / "bin", {"container": 'echo "$1 $2" > contained\nshift\nexec "$@"'})
    mounts = "--container-image=a.sqsh --container-mounts=/b"
    assert job(0, CARAVAN_CONTAINER=f"{tmp_path}/bin/container --nv", CARAVAN_SRUN=mounts) == (0, "")
    assert (tmp_path / "contained").read_text() == "--nv python\n"
    assert f" {mounts} " in (tmp_path / "srun.said").read_text()


def test_a_container_without_srun_is_one_sentence(job, tmp_path):
    for name in ("bash", "dirname", "realpath"):  # no more is on the PATH
        (tmp_path / "tools").mkdir(exist_ok=True)
        (tmp_path / "tools" / name).symlink_to(shutil.which(name))
    (tmp_path / "tools/scontrol").symlink_to(tmp_path / "bin/scontrol")
    assert job(0, PATH=str(tmp_path / "tools"), SLURMD_NODENAME="node1") == (
        2,
        "launch: srun is not on the PATH of node1: if this is a container, start the jobs outside of it, with "
        "CARAVAN_CONTAINER or CARAVAN_SRUN in profiles/slurm/environment.sh\n",
    )


def test_pyxis_takes_python_of_other_jobs_to_the_container_too(tmp_path):
    write_commands(tmp_path, {"srun": 'echo "$@"'})
    prefix = shell_prefix(HOME).replace("{{", "{").replace("}}", "}")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "CARAVAN_SRUN": "--container-image=a.sqsh"}
    script = ["bash", "-c", f"set -euo pipefail; {prefix} PATH={tmp_path}:$PATH; python -m stages.tokenize"]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("--overlap --nodes=1 --ntasks=1 --cpus-per-task=")
    assert done.stdout.endswith(" --container-image=a.sqsh python -m stages.tokenize\n")


def test_a_training_on_hyperpod_resumes_by_srun_unless_the_site_says_otherwise(tmp_path):
    hyperpod = ["bwrap", "--dev-bind", "/", "/", "--tmpfs", "/opt", "--dir", "/opt/sagemaker_cluster"]
    if (
        shutil.which("bwrap") is None
        or subprocess.run([*hyperpod, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("bubblewrap is not installed, or may make no namespace here")
    write_commands(tmp_path, {"srun": 'echo "$@"', "scontrol": ""})
    script = f"nodes=2 cpus=1; . {HOME}/workflow/launchers/slurm.sh; start_on_each_node launch"

    def started(*prefix, **variables):
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", **variables}
        done = subprocess.run(
            [*prefix, "bash", "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        return [word for word in done.stdout.split() if word.startswith("--auto-resume")]

    assert started() == []
    assert started(*hyperpod) == ["--auto-resume=1"]
    assert started(*hyperpod, CARAVAN_SRUN="--label --auto-resume=0") == ["--auto-resume=0"]
