"""What holds for all tests."""

import os
import signal

import pytest

# Before torch is imported: the tests' models are tiny, and threads that wait for each other make them slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the tests in the background ignores SIGINT, and children inherit that: no Ctrl-C would reach them.
signal.signal(signal.SIGINT, signal.default_int_handler)

LAST = ("tests/benchmarks", "tests/workflow", "tests/test_", "tests/drill", "tests/slurm")


def pytest_collection_modifyitems(items):
    """Fast tests first: those of single stages, then those of the whole, a cluster last."""
    items.sort(key=_turn)


def _turn(item):
    return next((number for number, start in enumerate(LAST, 1) if item.nodeid.startswith(start)), 0)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """The manifest of a tiny corpus."""
    from tests.helpers.data_fixtures import tiny_corpus

    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def uninterrupted(corpus, tmp_path_factory):
    """A run of 30 steps on one rank that nothing disturbed."""
    from tests.helpers.training import train

    results = tmp_path_factory.mktemp("uninterrupted")
    assert train(corpus, results, 30) == 0
    return results
