"""Requests that a real Slurm cannot fulfill: one sentence before anything is submitted."""

from pathlib import Path

import pytest

from tests.slurm.cluster import CLIENTS

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def refused(place, sentence):
    """Check that the driver ends at once with the sentence, and that nothing was submitted or written."""
    before = place.files()
    driver = place.start("models")
    assert driver.end() == 1
    assert f"slurm: {sentence}" in driver.said().splitlines(), driver.said()
    assert "Traceback" not in driver.said()
    assert place.files() == before
    assert not place.submitted("pretrain")


MISTAKES = [
    # sbatch's own, or words after the profile's
    ({"slurm_partition": "'nope'"}, "`slurm_partition` of pretrain must be one of all, short, got nope"),
    ({"gres": "'gpu:8'"}, "`gres` of pretrain requests 8 GPUs per node, but this cluster has at most 4"),
    ({"nodes": 5}, "`nodes` of pretrain requests 5 nodes, but this cluster has at most 4 that fit"),
    ({"nodes": 2, "gres": "''"}, "`tasks` of pretrain must be its `nodes`, 2, since it has no GPUs in `gres`, got 1"),
    (
        {"constraint": "'a100'"},
        "sbatch refuses the resources that the profile sets for pretrain: Invalid feature specification",
    ),
    (
        {"slurm_partition": "'short'", "runtime": 61},
        "`runtime` of pretrain requests 61 minutes, but partition short has at most 60",
    ),
    ({"mem_mb": 256_001}, "`mem_mb` of pretrain requests 256001 MB per node, but this cluster has at most 256000"),
]


@pytest.mark.parametrize(("wrong", "sentence"), MISTAKES)
def test_missing_resources_of_the_cluster_are_reported_before_submission(training, wrong, sentence):
    training.write_recipe(global_batch_size=20, micro_batch_size=1)  # any number of ranks divides it
    refused(training.change_profile(training=wrong), "the profile's " * sentence.startswith("`") + sentence)


def without_slurm(directory):
    """Return a PATH of all commands of this machine except Slurm's."""
    directory.mkdir()
    for command in Path("/usr/bin").iterdir():
        if command.name not in CLIENTS:
            (directory / command.name).symlink_to(command)
    return str(directory)


def test_machine_without_slurm_is_said_and_can_plan(training, tmp_path):
    training.environment["PATH"] = without_slurm(tmp_path / "bin")
    refused(
        training,
        "the profile's `executor: slurm` needs the command sbatch, which is not on PATH: run snakemake on a login node "
        "of the cluster, or use --profile profiles/local",
    )
    training.make("models", "--dry-run")


def test_what_is_not_submitted_is_not_asked_about(place):
    place.fill().change_profile(training={"gres": "'gpu:8'"}).make("results/sources/a/list.json")
