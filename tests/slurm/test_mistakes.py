"""What a person sees who asks a real Slurm for what it does not have: one sentence, before anything is submitted."""

from pathlib import Path

import pytest

from tests.slurm.cluster import CLIENTS

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


def refused(place, sentence):
    """The driver ends at once with the sentence, and nothing was submitted or written."""
    before = place.files()
    driver = place.start("models")
    assert driver.end() == 1
    assert f"slurm: {sentence}" in driver.said().splitlines(), driver.said()
    assert "Traceback" not in driver.said()
    assert place.files() == before
    assert not place.submitted("pretrain")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            {"slurm_partition": "'nope'"},
            "the profile's `slurm_partition` of pretrain must be one of all, short, got nope",
        ),
        (
            {"gres": "'gpu:8'"},
            "the profile's `gres` of pretrain asks for 8 GPUs a node, and this cluster has at most 4",
        ),
        ({"nodes": 5}, "the profile's `nodes` of pretrain asks for 5 nodes, and this cluster has at most 4 that fit"),
        (
            {"slurm_partition": "'short'", "runtime": 61},
            "the profile's `runtime` of pretrain asks for 61 minutes, and partition short has at most 60",
        ),
        (
            {"mem_mb": 256_001},
            "the profile's `mem_mb` of pretrain asks for 256001 MB a node, and this cluster has at most 256000",
        ),
    ],
)
def test_what_the_cluster_does_not_have_is_said_before_it_is_asked_for(training, wrong, sentence):
    refused(training.change_profile(training=wrong), sentence)


def without_slurm(directory):
    """A PATH of all commands of this machine but Slurm's."""
    directory.mkdir()
    for command in Path("/usr/bin").iterdir():
        if command.name not in CLIENTS:
            (directory / command.name).symlink_to(command)
    return str(directory)


def test_machine_without_slurm_is_said_and_can_plan(training, tmp_path):
    training.environment["PATH"] = without_slurm(tmp_path / "bin")
    refused(
        training,
        "the profile's `executor: slurm` needs the command sbatch, and PATH has none: call snakemake on a login node "
        "of the cluster, or take --profile profiles/local",
    )
    training.make("models", "--dry-run")


def test_what_is_not_submitted_is_not_asked_about(place):
    place.fill().change_profile(training={"gres": "'gpu:8'"}).make("results/sources/a/list.json")
