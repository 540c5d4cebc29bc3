"""A training that is asked to stop saves and resumes to the same bits; the third try after two crashes is refused."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages import pretrain
from tests.helpers.training import (
    before_each_step,
    environment,
    events_of,
    launch,
    options,
    run_directory,
    steps_of,
    train,
    train_on,
    wait_until,
    weights_of,
)

STEPS = 100  # the file `stop` is looked for once per second


@pytest.fixture(scope="module")
def undisturbed(corpus, tmp_path_factory):
    results = tmp_path_factory.mktemp("undisturbed")
    code, error = train_on(2, corpus, results, STEPS, **operation())
    assert code == 0, error
    return results


def operation(**changes):
    """Return keys of a recipe without regular checkpoints."""
    return {"steps": STEPS, "checkpoint": {"every": 1000, "keep": 2}} | changes


def begun(results, process, steps=5):
    """Wait until a training took some steps."""
    wait_until(lambda: len(steps_of(results)) >= steps, process)


def ranks_of(results):
    """Return the process ids of the ranks of a training."""
    found = subprocess.run(["pgrep", "-f", f"stages.pretrain.*{results}"], capture_output=True, text=True, check=False)
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in found.stdout.split()}
    return [
        int(pid)
        for pid, command in commands.items()
        if "torch.distributed.run" not in command and "launch" not in command
    ]


ASKED = {
    # one rank alone: the others learn of it through the gather
    "SIGUSR1": lambda results, _: os.kill(ranks_of(results)[-1], signal.SIGUSR1),
    "SIGTERM": lambda results, _: os.kill(ranks_of(results)[-1], signal.SIGTERM),
    "the file stop in the run directory": lambda results, _: (run_directory(results) / "stop").touch(),
    "SIGTERM to the launcher": lambda _, process: process.send_signal(signal.SIGTERM),
}


@pytest.mark.long
@pytest.mark.parametrize("reason", ASKED)
def test_training_that_is_asked_to_stop_saves_and_resumes_to_the_same_bits(corpus, undisturbed, tmp_path, reason):
    process = launch(2, options(corpus, tmp_path, STEPS, **operation()))
    begun(tmp_path, process)
    ASKED[reason](tmp_path, process)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 75, error
    marker = json.loads((run_directory(tmp_path) / "stopped.json").read_text())
    said = reason.removesuffix(" to the launcher")
    assert marker["reason"] == said
    line = error.splitlines()[-1]
    assert line.endswith(f"stopped by {said}, saved at step {marker['step']}; start it again to resume")
    assert 5 <= marker["step"] < STEPS
    assert not (run_directory(tmp_path) / "stop").exists()
    code, error = train_on(2, corpus, tmp_path, STEPS, **operation())
    assert code == 0, error
    assert not (run_directory(tmp_path) / "stopped.json").exists()
    (resumed,) = [event["step"] for event in events_of(tmp_path) if event["event"] == "resume"]
    assert resumed == marker["step"]
    assert [entry["step"] for entry in steps_of(tmp_path)] == list(range(1, STEPS + 1))  # no step was taken twice
    assert weights_of(tmp_path, STEPS) == weights_of(undisturbed, STEPS)


def test_deadline_ends_the_training_in_time(corpus, tmp_path):
    more = ["--minutes", "0.05"]
    before = time.monotonic()
    assert pretrain.main([*options(corpus, tmp_path, 10**6, **operation(steps=10**6)), *more]) == 75
    assert time.monotonic() - before < 10  # 3 seconds, and time to save
    first = json.loads((run_directory(tmp_path) / "stopped.json").read_text())
    assert first["reason"] == "the deadline"
    assert pretrain.main([*options(corpus, tmp_path, 10**6, **operation(steps=10**6)), *more]) == 75
    assert json.loads((run_directory(tmp_path) / "stopped.json").read_text())["step"] > first["step"]


def test_stop_request_interrupts_an_evaluation(corpus, tmp_path, monkeypatch):
    from stages.lib.training import validation

    asked = validation.Validation.evaluate
    forwards = []

    def evaluate(self, objective, model, micro_batch_size, device, before_pass):
        def counting(done, total):
            forwards.append(1)
            if len(forwards) == 3:
                os.kill(os.getpid(), signal.SIGUSR1)
            before_pass(done, total)

        return asked(self, objective, model, micro_batch_size, device, counting)

    monkeypatch.setattr(validation.Validation, "evaluate", evaluate)
    assert train(corpus, tmp_path, 10, validation={"every": 5, "tokens": 10**6}) == 75
    assert len(forwards) < 6
    assert json.loads((run_directory(tmp_path) / "stopped.json").read_text())["step"] == 5


def test_ctrl_c_on_a_single_process_is_a_stop_request(corpus, tmp_path):
    command = [sys.executable, "-m", "stages.pretrain", *options(corpus, tmp_path, STEPS, **operation())]
    process = subprocess.Popen(command, env=environment(), text=True, stderr=subprocess.PIPE)
    begun(tmp_path, process)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 75
    first, last = error.splitlines()
    assert first.startswith("pretrain: Ctrl-C: the training finishes its step and saves, which takes at most ")
    assert "stopped by Ctrl-C, saved at step" in last


def test_grace_follows_the_slowest_step_and_is_known_to_the_launcher(corpus, tmp_path, monkeypatch, capfd):
    grace, graces = tmp_path / "grace", []

    def slow(step, *_):
        graces.append(int(grace.read_text()))
        if step == 1:
            time.sleep(5)  # so that a first step of some seconds, on a busy machine, is less by a tenth
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    before_each_step(monkeypatch, slow)
    monkeypatch.setenv("CARAVAN_GRACE_FILE", str(grace))
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert train(corpus, tmp_path, 10, watchdog={"start": 2}) == 75
    assert 150 < graces[0] < 155  # the watchdog's limit holds until a step was measured
    assert 30 <= graces[1] < graces[2] and 45 <= graces[2] < 65  # 30 s, and 1.5 times two steps and two saves
    sentence = f"pretrain: SIGTERM: the training finishes its step and saves, which takes at most {grace.read_text()}"
    assert capfd.readouterr().err.startswith(sentence.strip())


@pytest.fixture
def breaking(monkeypatch):
    """A list to which a test appends steps, counted from 0: training crashes at the start of the last one."""
    steps = []

    def crash(step, *_):
        if steps[-1:] == [step]:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    before_each_step(monkeypatch, crash)
    return steps


def attempt(number, corpus, results):
    """Return the exit code of a scheduler's attempt to reach step 30."""
    return pretrain.main([*options(corpus, results, 30), "--attempt", str(number)])


def test_third_attempt_after_two_crashes_at_one_step_is_refused_and_a_person_may_try_again(
    corpus, uninterrupted, tmp_path, breaking, capsys
):
    breaking.append(7)
    assert [attempt(number, corpus, tmp_path) for number in (1, 2)] == [1, 1]
    capsys.readouterr()
    taken = len(steps_of(tmp_path))
    assert [attempt(number, corpus, tmp_path) for number in (3, 4)] == [2, 2]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[0] == lines[1]
    assert "crashed twice without a step after step 6" in lines[0]
    assert "the last attempt: stopped with RuntimeError: CUDA error: an illegal memory access" in lines[0]
    assert len(steps_of(tmp_path)) == taken
    assert not list(tmp_path.glob("train/*/lease.json"))
    breaking.append(None)
    assert train(corpus, tmp_path, 30) == 0
    assert weights_of(tmp_path, 30) == weights_of(uninterrupted, 30)


def test_crashes_with_new_steps_between_are_not_counted(corpus, tmp_path, breaking):
    for number, step in enumerate([7, 8, 12, None], 1):
        breaking.append(step)
        assert attempt(number, corpus, tmp_path) == (0 if step is None else 1)


def test_requeued_job_is_an_automatic_attempt(corpus, tmp_path, breaking, monkeypatch):
    breaking.append(3)
    assert [attempt(1, corpus, tmp_path) for _ in range(2)] == [1, 1]
    monkeypatch.setenv("CARAVAN_JOB_RESTARTS", "1")  # Slurm's own variable does not reach the ranks
    assert attempt(1, corpus, tmp_path) == 2


def test_stop_request_is_not_a_crash(corpus, tmp_path, monkeypatch):
    from stages.lib.training.stop_requests import StopRequests

    with monkeypatch.context() as patch:
        patch.setattr(StopRequests, "code", lambda _: 3)
        assert [attempt(number, corpus, tmp_path) for number in (1, 2, 3)] == [75, 75, 75]
    assert attempt(4, corpus, tmp_path) == 0
    assert [event["event"] for event in events_of(tmp_path)].count("attempt") == 4


def test_end_of_the_job_around_it_is_a_deadline(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("CARAVAN_DEADLINE", str(time.time() + 4))
    assert pretrain.main(options(corpus, tmp_path, 10**6, steps=10**6)) == 75
    assert steps_of(tmp_path)


def test_deadline_before_which_no_step_fits_is_refused_for_good(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CARAVAN_DEADLINE", "1")  # was over in 1970
    assert attempt(1, corpus, tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no step fits in before the deadline" in line
