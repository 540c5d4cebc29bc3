"""The commands of profiles/pbs, on a stand-in for PBS."""

import json
import subprocess
import sys

import pytest

from tests.helpers import processes
from tests.pbs.stand_in import HOME

PROPERTIES = {
    "rule": "pretrain",
    "wildcards": {"run": "a run", "step": "00000012"},
    "threads": 4,
    "resources": {"nodes": 2, "runtime": 90, "mem_mb": 500, "ngpus": 2},
}


@pytest.fixture
def jobs(pbs, tmp_path):
    """A function that calls the commands in a working directory; returns (exit code, stdout, stderr)."""

    def call(*arguments):
        command = [sys.executable, HOME / "profiles/pbs/jobs.py", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=pbs.environment, capture_output=True, text=True, check=False, timeout=60
        )
        return done.returncode, done.stdout.strip(), done.stderr

    return call


@pytest.fixture
def submit(jobs, tmp_path):
    """A function that submits a script with these resources; returns what the command returned."""

    def call(script="true", output=(), **resources):
        properties = PROPERTIES | {"output": list(output), "resources": PROPERTIES["resources"] | resources}
        path = tmp_path / "jobscript"
        path.write_text(
            f"#!/bin/sh\n# properties = {json.dumps(properties)}\ncd {tmp_path}\n{script}\n", encoding="utf-8"
        )
        return jobs("submit", path)

    return call


def submitted(pbs, answer):
    """Return the arguments of qsub."""
    code, job, said = answer
    assert (code, said) == (0, "")
    return pbs.attributes(job)["argv"]


def test_resources_become_options_of_qsub(pbs, submit, tmp_path):
    assert submitted(pbs, submit()) == [
        *("-V", "-r", "y", "-j", "oe", "-o", f"{tmp_path}/results/logs/pbs/pretrain_a_run_00000012.log"),
        *("-N", "pretrain_a_run_00000012", "-l", "select=2:ncpus=4:mem=500mb:ngpus=2", "-l", "place=scatter"),
        *("-l", "walltime=01:30:00"),
    ]


def test_whole_nodes_are_requested_as_polaris_wants_them(pbs, submit):
    polaris = {"pbs_select": "system=polaris", "pbs_filesystems": "home:eagle", "pbs_queue": "debug"}
    options = submitted(pbs, submit(nodes=1, pbs_account="mine", pbs_extra="-W 'group_list=a b'", **polaris))
    assert options[9:] == [
        *("-l", "select=1:system=polaris", "-l", "walltime=01:30:00", "-q", "debug", "-A", "mine"),
        *("-l", "filesystems=home:eagle", "-W", "group_list=a b"),
    ]


def test_resource_that_is_not_a_number_and_a_refused_job_are_one_sentence(submit):
    sentence = "pbs: the profile's `runtime` of pretrain must be a whole number, got '90m'\n"
    assert submit(runtime="90m") == (1, "", sentence)
    code, printed, said = submit(nodes=3)
    assert (code, printed) == (1, "")
    assert said.startswith("pbs: `qsub -V -r y ")
    assert said.endswith("` failed: qsub: Job violates queue and/or server resource limits\n")


@pytest.mark.parametrize("history", [True, False])
def test_status_follows_a_job_to_its_end(pbs, jobs, submit, history):
    if not history:
        (pbs.folder / "no_history").touch()
    _, good, _ = submit("while [[ ! -e go ]]; do sleep 0.05; done")
    assert jobs("status", good) == (0, "running", "")
    (pbs.folder.parent / "go").touch()
    _, bad, _ = submit("echo no such module; exit 3", nodes=1)
    for job in (good, bad):
        pbs.wait(job)
    code, printed, said = jobs("status", bad)
    assert (code, printed) == (0, "failed")
    assert said.startswith(f"pbs: job {bad} ended with exit code 3; see ") and said.endswith("    no such module\n")


def test_job_that_still_runs_for_the_same_outputs_is_not_submitted_again(jobs, submit, tmp_path):
    outputs = ["results/a.json"], ["results/b.json"]
    first, other = (submit("sleep 3", output=output)[1] for output in outputs)
    assert (submit(output=outputs[0])[1], submit(output=outputs[1])[1]) == (first, other)
    processes.wait_until(lambda: jobs("status", first)[1] == "success", 60, "the job ended")
    assert submit(output=outputs[0])[1] not in (first, other)


def test_silence_loses_no_job_and_an_unknown_or_deleted_one_has_failed(pbs, jobs, submit):
    deleted, job = (submit("exec sleep 60")[1] for _ in range(2))
    assert jobs("cancel", deleted) == (0, "", "")
    pbs.wait(deleted)
    assert jobs("status", deleted)[1] == "failed"
    assert jobs("cancel", deleted, "77.stand-in") == (0, "", "")
    (pbs.folder / "silent").touch()
    assert [jobs("status", job) for _ in range(5)] == [(0, "running", "")] * 5
    (pbs.folder / "silent").unlink()
    (pbs.folder / "jobs" / job / "job.json").rename(pbs.folder / "elsewhere")
    assert [jobs("status", job)[1] for _ in range(3)] == ["running", "running", "failed"]


def test_job_that_ran_out_of_time_is_submitted_again(pbs, jobs, submit):
    marker = '[[ -e again ]] || { touch again; touch "$CARAVAN_PREEMPTED_FILE"; exit 1; }'
    _, job, _ = submit(marker)
    pbs.wait(job)
    assert jobs("status", job) == (0, "running", "")
    first, second = pbs.jobs()
    pbs.wait(second)
    assert jobs("status", job) == (0, "success", "")
    assert pbs.attributes(first)["argv"] == pbs.attributes(second)["argv"]
