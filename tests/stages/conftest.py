"""Fixtures of the tests of stages."""

import pytest


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """The manifest of a tokenizer of 320 ids."""
    from tests.helpers.data_fixtures import small_tokenizer

    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory):
    """A directory of results for tests that tune: a corpus, its tokenizer, and a run `base` on it."""
    from tests.helpers import training
    from tests.helpers.data_fixtures import tiny_corpus

    results = tmp_path_factory.mktemp("pretrained") / "results"
    run = results / "runs/base"
    assert training.train(tiny_corpus(results), run, training.BASE_STEPS, steps=training.BASE_STEPS) == 0
    return results


@pytest.fixture(scope="session")
def evaluated(tmp_path_factory):
    """An export and its local scores, for tests that only read: evaluate's options. The path has a space."""
    from tests.helpers import evaluations

    options = evaluations.export(tmp_path_factory.mktemp("with a space"))
    evaluations.scored(options)
    return options


@pytest.fixture
def group_of_one():
    """A process group of this process alone."""
    from stages.lib.distributed.process_group import process_group

    with process_group():
        yield
