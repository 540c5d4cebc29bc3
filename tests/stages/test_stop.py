"""A training that is asked to stop saves, prints the reason, exits with 75, and resumes to the same bits."""

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


def by_signal(number):
    def ask(results, process):
        os.kill(ranks_of(results)[-1], number)  # one rank alone: the others learn of it through the gather

    return ask


def by_file(results, process):
    (run_directory(results) / "stop").touch()


def by_the_launcher(results, process):
    process.send_signal(signal.SIGTERM)


ASKED = {
    "SIGUSR1": by_signal(signal.SIGUSR1),
    "SIGTERM": by_signal(signal.SIGTERM),
    "the file stop in the run directory": by_file,
    "SIGTERM to the launcher": by_the_launcher,
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
    from stages.lib.training.step import Stepper

    take, grace = Stepper.take, tmp_path / "grace"
    graces = []

    def slow(self, step, *batch):
        graces.append(int(grace.read_text()))
        if step == 1:
            time.sleep(5)  # so that a first step of some seconds, on a busy machine, is less by a tenth
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return take(self, step, *batch)

    monkeypatch.setattr(Stepper, "take", slow)
    monkeypatch.setenv("CARAVAN_GRACE_FILE", str(grace))
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert train(corpus, tmp_path, 10, watchdog={"start": 2}) == 75
    assert 150 < graces[0] < 155  # the watchdog's limit holds until a step was measured
    assert 30 <= graces[1] < graces[2] and 45 <= graces[2] < 65  # 30 s, and 1.5 times two steps and two saves
    sentence = f"pretrain: SIGTERM: the training finishes its step and saves, which takes at most {grace.read_text()}"
    assert capfd.readouterr().err.startswith(sentence.strip())
