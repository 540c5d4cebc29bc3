"""What several tests of training use, made once; no test changes it."""

import pytest

from tests.stages.data_fixtures import tiny_corpus
from tests.stages.training import train


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """The manifest of a tiny corpus."""
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def uninterrupted(corpus, tmp_path_factory):
    """A run of 30 steps on one rank that nothing disturbed."""
    results = tmp_path_factory.mktemp("uninterrupted")
    assert train(corpus, results, 30) == 0
    return results
