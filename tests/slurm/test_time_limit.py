"""Trainings that are longer than the time limit of their jobs: they save in time, resume, and lose nothing."""

import signal
import time

import pytest

from tests.helpers import processes

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

OF_A_MINUTE = {"runtime": 1, "slurm_extra": "'--ntasks-per-node=1'"}
SITE = "sleep 31\n"
"""Commands of a site before its jobs, here for longer than a job of a minute can do without."""


def check(place, steps, weights):
    """Check that each step was taken once, that the bits are right, and that no job is left."""
    assert place.weights() == weights
    assert place.steps() == list(range(1, steps + 1))
    stops = [event["reason"] for event in place.events("stop")]
    assert all(reason.startswith("stopped by the deadline") for reason in stops), stops
    place.cluster.wait_until_empty()


def test_training_of_several_time_limits_loses_nothing_and_uses_no_attempt(training, undisturbed):
    extra = OF_A_MINUTE["slurm_extra"].replace("node=1", "node=1 --requeue")
    driver = training.change_profile(training=OF_A_MINUTE | {"slurm_extra": extra}, retries=0).start("models")
    pause(training.cluster.ranks_of(training.job_at_step(15)), 30)  # half of the minute is margin
    assert driver.end(600) == 0, driver.said()
    check(training, 100, undisturbed)
    assert training.events("resume")
    assert len(training.submitted("pretrain")) == 1


def test_without_requeue_a_time_limit_uses_one_of_the_retries(tokenized, without_requeue, undisturbed, tmp_path):
    place = tokenized.copy(tmp_path / "a place", without_requeue).change_profile(training=OF_A_MINUTE, retries=5)
    driver = place.start("models")
    job = place.job_at_step(15)
    pause(without_requeue.ranks_of(job), 20)
    assert driver.end() == 0, driver.said()
    check(place, 100, undisturbed)
    assert len(place.submitted("pretrain")) == 1 + len(place.events("stop"))
    assert f"launch: job {job} was not requeued (Requested operation is presently disabled" in driver.said()


def pause(ranks, seconds):
    """Stop processes for so long: the next step is over when the time is."""
    processes.kill(ranks, signal.SIGSTOP)
    time.sleep(seconds)
    processes.kill(ranks, signal.SIGCONT)


def test_time_limit_shorter_than_a_step_is_reported_in_one_sentence(training):
    site = training.path / "environment.sh"
    site.write_text(SITE)
    training.environment["CARAVAN_SITE"] = str(site)
    driver = training.change_profile(training=OF_A_MINUTE, retries=0).start("models")
    assert driver.end() == 1
    said = [line for line in driver.said().splitlines() if "no step fits in before the deadline" in line]
    assert said, driver.said()
    assert all("raise the job's time limit (`runtime` in a profile)" in line for line in said)
    assert not training.steps()
    training.cluster.wait_until_empty()
