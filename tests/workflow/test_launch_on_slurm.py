"""The launcher in a Slurm job with fake Slurm commands; tests/slurm uses a real Slurm."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.workflow.checkout import HOME

LAUNCH = HOME / "workflow/launch"
WORKER = """
import os, sys
from pathlib import Path

Path("told").write_text(os.environ.get("CARAVAN_DEADLINE", "nothing"))
if sys.argv[-1] != "0":
    Path(os.environ["CARAVAN_EXIT_FILE"]).write_text(sys.argv[-1])
"""
COMMANDS = {
    # runs the command after its options, as the only node of the job
    "srun": """
        echo "$@" > srun.said
        while [[ $1 == --* ]]; do shift; done
        export SLURM_NNODES=1 SLURM_NODEID=0 SLURM_JOB_NODELIST=127.0.0.1
        exec "$@"
    """,
    "squeue": """date --date="@$END" +%Y-%m-%dT%H:%M:%S""",
    "scontrol": """
        if [[ $1 == show ]]; then echo 127.0.0.1; exit; fi
        echo "$@" >> requeued
        [[ -z $FORBIDDEN ]] || { echo "slurm_requeue error: Requested operation is presently disabled" >&2; exit 1; }
        kill -TERM -- "-$JOB"  # as Slurm does
    """,
}


@pytest.fixture
def job(tmp_path):
    """A function that runs the launcher in a job and returns (exit code, stderr)."""
    (tmp_path / "worker.py").write_text(WORKER, encoding="utf-8")
    (tmp_path / "bin").mkdir()
    for name, script in COMMANDS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{script}", encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)

    def run(code, **environment):
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "CARAVAN"))}
        path = f"{tmp_path}/bin:{Path(sys.executable).parent}:/usr/bin:/bin"
        clean |= {"PATH": path, "PYTHONPATH": str(tmp_path), "SLURM_JOB_ID": "4711", "END": str(END), "FORBIDDEN": ""}
        command = 'export JOB=$$; "$@"; code=$?; exit $code'  # the shell of the job, around the launcher
        arguments = [str(LAUNCH), "--nodes", "1", "--cpus", "1", "1", "-m", "worker", "--", str(code)]
        done = subprocess.run(
            ["bash", "-c", command, "job", *arguments],
            cwd=tmp_path,
            env=clean | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            start_new_session=True,
        )
        return done.returncode, done.stderr

    return run


END = int(time.time()) + 3600


def test_stage_gets_the_end_of_the_job_as_deadline(job, tmp_path):
    assert job(0) == (0, "")
    assert (tmp_path / "told").read_text() == str(END - 30)


def test_newer_slurm_sets_the_end_in_the_environment(job, tmp_path):
    assert job(0, SLURM_JOB_END_TIME=str(END + 100))[0] == 0
    assert (tmp_path / "told").read_text() == str(END + 70)


def test_job_without_a_time_limit_has_no_deadline(job, tmp_path):
    assert job(0, END="no time")[0] == 0
    assert (tmp_path / "told").read_text() == "nothing"


def test_unknown_end_of_the_job_is_no_deadline(job, tmp_path):
    (tmp_path / "bin/squeue").write_text("#!/bin/bash\n")
    assert job(0)[0] == 0
    assert (tmp_path / "told").read_text() == "nothing"


def test_preempted_job_is_requeued(job, tmp_path):
    code, said = job(75)
    assert (code, said) == (-15, "")
    assert (tmp_path / "requeued").read_text() == "requeue 4711\n"
    assert not list(tmp_path.glob(".caravan-exit*"))


def test_job_exits_with_75_if_requeue_is_forbidden(job):
    code, said = job(75, FORBIDDEN="yes")
    assert code == 75
    assert said == (
        "launch: job 4711 was not requeued (Requested operation is presently disabled): Snakemake submits it again "
        "as often as `retries` of the profile allows\n"
    )


@pytest.mark.parametrize("code", [1, 2])
def test_error_is_passed_on_and_not_requeued(job, tmp_path, code):
    assert job(code)[0] == code
    assert not (tmp_path / "requeued").exists()


def test_container_runs_the_ranks_and_its_options_reach_srun(job, tmp_path):
    container = tmp_path / "bin" / "container"
    container.write_text('#!/bin/bash\necho "$1 $2" > contained\nshift\nexec "$@"\n')
    container.chmod(0o755)
    options = {"CARAVAN_CONTAINER": "container --nv", "CARAVAN_SRUN": "--container-image=a.sqsh --container-mounts=/b"}
    assert job(0, **options) == (0, "")
    assert (tmp_path / "contained").read_text() == "--nv python\n"
    assert " --container-image=a.sqsh --container-mounts=/b " in (tmp_path / "srun.said").read_text()
