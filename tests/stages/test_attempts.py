"""Automatic attempts of a scheduler: a third is refused after two crashes at one step."""

import time

import pytest

from stages import pretrain
from tests.helpers.training import events_of, options, steps_of, train, weights_of


@pytest.fixture
def breaking(monkeypatch):
    """Return a function that makes training crash at the start of a step, counted from 0."""
    from stages.lib.training.step import Stepper

    take = Stepper.take

    def at(step):
        def crash(self, number, *batch):
            if number == step:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return take(self, number, *batch)

        monkeypatch.setattr(Stepper, "take", crash)

    return at


def attempt(number, corpus, results):
    """Return the exit code of a scheduler's attempt to reach step 30."""
    return pretrain.main([*options(corpus, results, 30), "--attempt", str(number)])


def test_third_attempt_after_two_crashes_at_one_step_is_refused_with_the_reason(corpus, tmp_path, breaking, capsys):
    breaking(7)
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


def test_person_may_try_again_and_ends_in_the_same_bits(corpus, uninterrupted, tmp_path, breaking):
    breaking(7)
    assert [attempt(number, corpus, tmp_path) for number in (1, 2, 3)] == [1, 1, 2]
    breaking(None)
    assert train(corpus, tmp_path, 30) == 0
    assert weights_of(tmp_path, 30) == weights_of(uninterrupted, 30)


def test_crashes_with_new_steps_between_are_not_counted(corpus, tmp_path, breaking):
    for number, step in enumerate([7, 8, 12, None], 1):
        breaking(step)
        assert attempt(number, corpus, tmp_path) == (0 if step is None else 1)


def test_requeued_job_is_an_automatic_attempt(corpus, tmp_path, breaking, monkeypatch):
    breaking(3)
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
