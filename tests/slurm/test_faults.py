"""Faults of a training on a real Slurm: it ends in the same bits, and leaves nothing behind."""

import signal

import pytest

from tests.helpers import processes

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

MILESTONE = "results/runs/tiny/models/00000100.json"


def check(place, undisturbed):
    """Check that the disturbed training ends as the undisturbed one."""
    assert place.weights() == undisturbed
    assert len(place.events("resume")) >= 1
    assert not list(place.path.glob("results/runs/tiny/train/*/*lease*"))
    place.cluster.wait_until_empty()


@pytest.mark.landing
def test_requeued_training_resumes_and_uses_no_attempt(training, cluster, undisturbed):
    training.write_profile(nodes=2, ranks=1)
    driver = training.start("models")
    cluster.run("scontrol", "requeue", training.job_at_step(15))
    assert driver.end() == 0, driver.said()
    check(training, undisturbed)
    assert len(training.submitted("pretrain")) == 1


def test_interrupted_driver_cancels_its_jobs_and_the_next_one_resumes(training, cluster, undisturbed):
    driver = training.start("models")
    job = training.job_at_step(15)
    driver.interrupt()
    assert driver.end() == 1, driver.said()
    cluster.wait_until_empty()
    assert cluster.state_of(job) == "CANCELLED"
    training.make("models")
    check(training, undisturbed)


def test_training_whose_first_node_dies_resumes_elsewhere_and_uses_no_attempt(training, cluster, undisturbed):
    assert submissions_when_a_node_dies(training, 0) == 1
    check(training, undisturbed)


def test_training_whose_last_node_dies_resumes_elsewhere(training, cluster, undisturbed):
    # The first node's ranks may notice before Slurm does, and end the job: that is one of the attempts.
    assert submissions_when_a_node_dies(training, -1) <= 2
    check(training, undisturbed)


def submissions_when_a_node_dies(place, which):
    """Number of times that the training was submitted, one of whose two nodes died."""
    place.write_profile(nodes=2, ranks=1)
    driver = place.start("models")
    node = place.cluster.nodes_of(place.job_at_step(15))[which]
    place.cluster.kill_node(node)
    try:
        assert driver.end() == 0, driver.said()
    finally:
        place.cluster.start_node(node)
        place.cluster.wait_for_nodes()
    return len(place.submitted("pretrain"))


def test_cancelled_training_is_not_submitted_again_and_the_next_start_resumes(training, cluster, undisturbed):
    driver = training.start("models")
    cluster.run("scancel", training.job_at_step(15))
    assert driver.end() == 1, driver.said()
    assert len(training.submitted("pretrain")) == 1
    training.make("models")
    check(training, undisturbed)


@pytest.mark.landing
def test_job_whose_driver_was_killed_is_never_joined_by_a_second_trainer(training, cluster, undisturbed):
    driver = training.start("models")
    orphan = training.job_at_step(15)
    driver.kill()
    ranks = cluster.ranks_of(orphan)
    processes.kill(ranks, signal.SIGSTOP)  # it must still be there when the second comes
    assert training.start("models").end() == 1
    assert "LockException" in driver.said()
    training.make("--unlock")
    second = training.start("models")
    log = "results/logs/pretrain/tiny/00000100.log"
    processes.wait_until(lambda: f", job {orphan}" in training.text_of(log), 120, "the second trainer saw the first")
    processes.kill(ranks, signal.SIGCONT)
    assert second.end() == 0, second.said()
    assert training.weights() == undisturbed
    assert training.steps() == list(range(1, 101))
    assert len(training.submitted("pretrain")) == 2
    cluster.wait_until_empty()


def test_failed_job_prints_its_reason(training, cluster):
    shard = next(training.path.glob("results/tokens/main/*/*/train-*.arrow"))
    shard.write_bytes(shard.read_bytes()[:-8])
    driver = training.start("models")
    assert driver.end() == 1
    said = driver.said().splitlines()
    assert said[-1].startswith("pretrain: ") and f"{shard.name} has " in said[-1], driver.said()
    assert not (training.path / MILESTONE).exists()
    assert cluster.queue() == {}
