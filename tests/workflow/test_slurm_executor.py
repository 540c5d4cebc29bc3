"""Jobs under `executor: slurm` with fake Slurm commands: none is lost, and the reason of a failure is printed."""

import asyncio
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts.executors import slurm as slurm_executor
from tests.workflow.checkout import write_commands

TARGET = "results/tokenizers/main/manifest.json"
COMMANDS = {
    # `./run` is what the job does; its id is 7
    "sbatch": """
        if [[ $* == *--test-only* ]]; then
            [[ $* != *"--mem 9999"* ]] || echo "allocation failure: Requested node configuration is not available" >&2
            [[ $* != *"--mem 9998"* ]] || echo "allocation failure: Invalid feature specification" >&2
            [[ $* != *"--mem 999"* ]]
            exit
        fi
        echo "$@" >> submitted
        while [[ $1 != --output ]]; do shift; done
        log=${2/\\%j/7}
        . ./run > "$log" 2>&1
        echo 7
    """,
    # each answer is a line of `answers`, the last one for ever; `fail` is no answer
    "squeue": """
        answer=$(head -n 1 answers)
        [[ $(wc -l < answers) == 1 ]] || sed -i 1d answers
        [[ $answer != fail ]] || { echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }
        [[ -z $answer ]] || echo "$answer"
    """,
    "scontrol": """
        if [[ $2 == config ]]; then echo "MinJobAge = 300 sec"; exit; fi
        [[ -f known ]] && cat known
    """,
    "sinfo": """
        [[ $* != *--Node* ]] || { [[ $* == *%T* ]] && cat states || printf 'n1\\nn2\\nn3\\n'; }
    """,
    "sacct": "exit 1",
    "scancel": ":",
}
SOON = """
import sys
from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor

Executor.next_seconds_between_status_checks = property(lambda _: 0.05, lambda *_: None)
sys.exit(main())
"""


@pytest.fixture
def slurm(pretending):
    """A function that makes TARGET under profiles/slurm, and returns (exit code, what was printed)."""
    write_commands(pretending.path / "bin", COMMANDS)

    def make(run, answers, *options):
        (pretending.path / "run").write_text(run, encoding="utf-8")
        (pretending.path / "answers").write_text("\n".join(answers) + "\n", encoding="utf-8")
        environment = {"PATH": f"{pretending.path}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"}
        quick = ("--latency-wait", 1, "--retries", 0, "--max-jobs-per-timespan", "9/1s")
        options = ("--profile", "profiles/slurm", *quick, *options)
        done = pretending.python("-c", SOON, TARGET, *options, environment=environment, check=False)
        return done.returncode, done.stdout + done.stderr

    return make


MAKES = f"mkdir -p $(dirname {TARGET}); echo {{}} > {TARGET}"
FAILS = "mkdir -p results; echo 'module: cuda/12.8 not found' >&2"
KNOWN = (
    "JobId=7 JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0 RunTime=00:00:03 Partition=gpu NodeList=n1 NumNodes=1"
)


def test_queries_without_an_answer_lose_no_job(slurm, pretending):
    code, said = slurm(MAKES, ["fail"] * 12 + ["7|RUNNING", "fail", "7|RUNNING", "7|COMPLETED"])
    assert code == 0, said
    assert said.count("Slurm does not answer `squeue`; its jobs are polled until it does.") == 2
    assert said.count("Slurm answers again.") == 2
    assert "--job-name train_tokenizer_main " in (pretending.path / "submitted").read_text()


def test_resources_that_sbatch_refuses_are_one_sentence(slurm, pretending):
    code, said = slurm(MAKES, [""], "--default-resources", "mem_mb=9999")
    assert code == 1
    assert said.splitlines()[-1] == (
        "slurm: sbatch refuses the resources that the profile sets for train_tokenizer: "
        "Requested node configuration is not available"
    )
    assert not (pretending.path / "submitted").exists()
    # it uses the same words while nodes are drained, and sbatch then queues the job
    (pretending.path / "states").write_text("n1|idle\nn1|mixed-\nn2|idle~\nn3|drained\nn4|down*\n")
    code, said = slurm(MAKES, ["7|COMPLETED"], "--default-resources", "mem_mb=9999")
    assert code == 0, said
    assert (
        "slurm: sbatch refuses the resources that the profile sets for train_tokenizer: Requested node configuration "
        "is not available; it may wait for nodes that are not available: n3 drained, n4 down*"
    ) in said
    code, said = slurm(MAKES, [""], "--default-resources", "mem_mb=9998", "--force")
    assert code == 1 and said.endswith("for train_tokenizer: Invalid feature specification\n")  # also with all nodes


@pytest.mark.long
def test_job_that_ended_and_was_forgotten_is_judged_by_its_outputs(slurm):
    code, said = slurm(MAKES, ["7|RUNNING", "fail", "fail", ""])
    assert code == 0, said
    code, said = slurm(":", ["7|RUNNING", "fail", "fail", ""], "--force")  # the output is of the run before
    assert code == 1, said
    assert "SLURM-job '7' failed" in said


def test_reason_of_an_early_death_is_on_the_screen(slurm, pretending):
    (pretending.path / "known").write_text(KNOWN)
    code, said = slurm(FAILS, ["7|FAILED"], "--retries", 2)
    assert code == 1, said
    reason = "Slurm job 7 ended as FAILED (exit code 1) on n1 after 3 s.\n        module: cuda/12.8 not found"
    assert said.count(reason) == 3
    assert "Two jobs ended on node n1 before their stages began: it gets no more jobs of this run." in said
    excluded = ["--exclude=n1" in line for line in (pretending.path / "submitted").read_text().splitlines()]
    assert excluded == [False, False, True]


def test_cancelled_job_is_not_submitted_again(slurm, pretending):
    (pretending.path / "known").write_text("JobId=7 JobState=CANCELLED ExitCode=0:0 RunTime=00:00:00 NumNodes=1")
    code, said = slurm("", ["7|PENDING", "7|CANCELLED"], "--retries", 2)
    assert code == 1, said
    assert (
        "Slurm job 7 ended as CANCELLED (exit code 0) on no node after 0 s.\n"
        "        It was cancelled, so it is not submitted again by this run."
    ) in said
    assert (pretending.path / "submitted").read_text().count("\n") == 1


def test_next_query_comes_soon_after_the_outputs_of_a_job(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_executor, "SHORTEST_SECONDS", 0.02)
    executor = object.__new__(slurm_executor.Executor)
    executor._next_seconds_between_status_checks, executor.wait = 1.5, True
    job = SimpleNamespace(jobid=1, output=[str(tmp_path / "made")])
    executor.active_jobs, executor._submitted = [SimpleNamespace(job=job)], {1: time.time()}

    def seconds():
        begun = time.monotonic()
        asyncio.run(executor.sleep())
        return time.monotonic() - begun

    assert seconds() >= 1.5
    executor.wait = False  # shutdown waits for it
    assert seconds() < 1
    executor.wait = True
    (tmp_path / "made").write_text("{}")
    assert seconds() < 1
    executor._submitted[1] += 100  # the output is of an earlier run
    assert seconds() >= 1.5
