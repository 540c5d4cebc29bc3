"""A training that hangs ends by itself, to be started again, and says what each rank was doing."""

import ctypes
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from stages.lib import log, recipe, stage
from stages.lib.distributed.process_group import enable_flight_recorder, process_group
from stages.lib.training import watchdog
from tests.helpers.training import HOME, environment

SECOND = 1 / 60  # of a limit, in minutes
MODULE = ["-m", "tests.stages.lib.training.test_watchdog"]


def start(ranks, directory, behaviour, **limits):
    """Start the ranks behind the launcher; without it, on one rank, for 0."""
    command = [HOME / "workflow/launch", str(ranks), *MODULE] if ranks else [sys.executable, *MODULE]
    command += [str(directory), behaviour, json.dumps(limits)]
    return subprocess.Popen(command, cwd=HOME, env=environment(), stderr=subprocess.PIPE, text=True)


def end(process):
    """(exit code, standard error) of what was started."""
    _, error = process.communicate(timeout=120)
    return process.returncode, error


def stacks(directory):
    """{rank: text} of the stacks that were written."""
    found = {path.stem.rpartition("-rank")[2]: path.read_text() for path in (directory / "hang").glob("*-rank?.txt")}
    return dict(sorted(found.items()))


def is_alive(directory, rank):
    """Return whether a rank that was there still runs."""
    return os.path.exists(f"/proc/{(directory / f'pid{rank}').read_text()}")


@pytest.fixture(scope="module")
def hung(tmp_path_factory):
    """The place where the second of two ranks slept forever in its third step, and (exit code, standard error)."""
    directory = tmp_path_factory.mktemp("hung")
    return directory, *end(start(2, directory, "sleep", step=1.5 * SECOND))


def test_stacks_and_last_collectives_of_all_ranks_are_written_when_one_hangs(hung):
    directory, _, _ = hung
    written = stacks(directory)
    assert list(written) == ["0", "1"]
    assert "in all_reduce" in written["0"] and "sleep_for_ever" not in written["0"]
    assert "in sleep_for_ever" in written["1"] and "in train" in written["1"]
    assert all("rank 0 of 2" in written["0"] and " MainThread\n" in text for text in written.values())
    seen = []
    for rank in (0, 1):
        (path,) = (directory / "hang").glob(f"*-gloo-rank{rank}")
        seen.append([entry["profiling_name"] for entry in pickle.loads(path.read_bytes())["entries"]])
    assert seen[0].count("gloo:all_reduce") == seen[1].count("gloo:all_reduce") + 1 == 3


def test_hang_is_one_event_and_the_exit_code_says_start_me_again_in_one_sentence(hung):
    directory, code, error = hung
    assert code == 75
    (line,) = error.splitlines()
    assert line.startswith("hang: no step for ")
    assert " s at step 2 (rank " in line and line.endswith("-rank*.txt")
    assert str(directory / "hang") in line
    assert not is_alive(directory, 0) and not is_alive(directory, 1)
    (event,) = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    assert (event["event"], event["phase"], event["step"], event["world_size"]) == ("hang", "step", 2, 2)
    assert 1.5 <= event["seconds"] < 10


def test_training_that_moves_is_left_alone_and_leaves_nothing(tmp_path):
    assert end(start(2, tmp_path, "none", start=60 * SECOND, step=0.9 * SECOND)) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pid0", "pid1"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("behaviour", "sentence"),
    [
        ("start", "no first step for 1 s since the start, at step 0"),
        ("save", "a save, or a pass of an evaluation, did not end within 1 s"),
    ],
)
def test_start_and_save_have_limits_of_their_own(tmp_path, behaviour, sentence):
    limits = {"start": None, "save": None} | {behaviour: SECOND}
    code, error = end(start(0, tmp_path, behaviour, **limits))
    assert code == 75
    assert error.startswith(f"hang: {sentence}")
    assert "in sleep_for_ever" in stacks(tmp_path)["0"]


def test_time_in_which_the_process_was_suspended_is_no_hang(tmp_path):
    process = start(0, tmp_path, "none", step=SECOND)
    until = time.monotonic() + 60
    while not list(tmp_path.glob(".watchdog.*")):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.5)
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.5)
    process.send_signal(signal.SIGCONT)
    assert end(process) == (0, "")


def test_call_of_another_start_is_not_heard_and_stays(tmp_path):
    call = json.dumps({"stamp": "20260101T000000Z", "rank": 1, "host": "x", "phase": "step", "step": 1, "seconds": 1})
    other = tmp_path / f".watchdog.{'0' * 32}"
    other.write_text(f"{call}\n")
    assert end(start(0, tmp_path, "none", step=0.6 * SECOND)) == (0, "")
    assert [path.name for path in tmp_path.glob(".watchdog*")] == [other.name]


@pytest.mark.long
def test_rank_that_keeps_the_interpreters_lock_is_ended_too(tmp_path):
    code, error = end(start(2, tmp_path, "lock", step=SECOND))
    assert code == 75
    assert error.startswith("hang: no step for ")
    assert "in all_reduce" in stacks(tmp_path)["0"]
    assert "in sleep_with_the_lock" in error  # by the interpreter itself, where no thread can
    assert not is_alive(tmp_path, 0) and not is_alive(tmp_path, 1)


@pytest.mark.long
def test_process_alone_that_keeps_the_interpreters_lock_is_ended(tmp_path):
    code, error = end(start(0, tmp_path, "lock", step=SECOND))
    assert code == 1
    assert "in sleep_with_the_lock" in error


def sleep_for_ever():
    """Hang like a rank that waits for a file system."""
    time.sleep(1000)


def sleep_with_the_lock():
    """Hang in C, with the GIL held, so that no thread of this process can run."""
    ctypes.PyDLL(None).sleep(1000)


def train(dog, behaviour):
    """Take six steps and a save, one of which does not end."""
    last = dist.get_rank() == dist.get_world_size() - 1
    for step in range(6):
        dog.phase("step", step)
        if behaviour == "sleep" and step == 2 and last:
            sleep_for_ever()
        if behaviour == "lock" and step == 2 and last:
            sleep_with_the_lock()
        dist.all_reduce(torch.ones(1))
        time.sleep(0.2)
    dog.phase("save", 6)
    if behaviour == "save":
        sleep_for_ever()


def main(directory, behaviour, limits):
    """Be a rank of a training that hangs."""
    log.to(None)
    enable_flight_recorder()
    with process_group():
        (directory / f"pid{dist.get_rank()}").write_text(str(os.getpid()), encoding="utf-8")
        limits_recipe = recipe.load(watchdog.WatchdogRecipe, limits, "watchdog")
        dog = watchdog.Watchdog(limits_recipe, directory, lambda message: stage.out_of_time("hang", message))
        try:
            if behaviour == "start":
                sleep_for_ever()
            train(dog, behaviour)
        finally:  # as a trainer does: a rank that another's hang ends prints nothing
            dog.close()
    stage.leave(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
