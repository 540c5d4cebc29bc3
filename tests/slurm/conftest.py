"""The private Slurm on which these tests run the workflow."""

import os

import pytest

from tests.slurm import accounting
from tests.slurm.cluster import NEEDED, Cluster, lacking
from tests.slurm.place import LOCAL, Place
from tests.test_end_to_end import CONFIG

LONGER = CONFIG.replace("steps: 12", "steps: 100\n      checkpoint: {every: 10}").replace("[6, 12]", "[100]")


def require(commands, packages):
    """Skip if commands are not installed; fail instead if CARAVAN_REQUIRE_SLURM is set."""
    if names := lacking(commands):
        reason = f"not installed (Debian's {packages}): {', '.join(names)} not found"
        (pytest.fail if os.environ.get("CARAVAN_REQUIRE_SLURM") else pytest.skip)(reason)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A running Slurm of four nodes."""
    require(NEEDED, "slurm-wlm")
    with Cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture(scope="session")
def accounted(tmp_path_factory):
    """A Slurm with accounting, which refuses jobs of an account that does not exist."""
    require([*NEEDED, *accounting.NEEDED], "slurm-wlm, slurmdbd and mariadb-server")
    with Cluster(tmp_path_factory.mktemp("slurm"), accounted=True) as made:
        yield made


@pytest.fixture(scope="session")
def without_requeue(cluster, tmp_path_factory):
    """A Slurm that does not requeue jobs."""
    with Cluster(tmp_path_factory.mktemp("slurm"), settings="JobRequeue=0") as made:
        yield made


@pytest.fixture
def place(cluster, tmp_path):
    """An empty working directory."""
    path = tmp_path / "a place"
    path.mkdir()
    made = Place(path, cluster)
    yield made
    made.abandon()


@pytest.fixture(scope="session")
def tokenized(cluster, tmp_path_factory):
    """A place in which only a training of 100 steps is missing; tests must not change it."""
    return Place(tmp_path_factory.mktemp("tokenized"), cluster).fill(LONGER).make("tokens", profile=LOCAL)


@pytest.fixture
def training(tokenized, tmp_path):
    """A copy of `tokenized`, to train in."""
    made = tokenized.copy(tmp_path / "a place")
    yield made
    made.abandon()


@pytest.fixture(scope="session")
def trained(tokenized, tmp_path_factory):
    """A place in which 2 processes trained undisturbed, without Slurm; tests must not change it."""
    place = tokenized.copy(tmp_path_factory.mktemp("undisturbed") / "a place")
    return place.make("models", profile=LOCAL)


@pytest.fixture(scope="session")
def undisturbed(trained):
    """The weights of `trained`."""
    return trained.weights()
