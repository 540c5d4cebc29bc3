"""Checkouts for tests of the workflow."""

import copy
import shutil

import pytest

from stages.registry import STAGES
from tests.workflow.checkout import HOME, Checkout, copy_project

DEFAULT_CONFIG = Checkout(HOME).default_config


@pytest.fixture(scope="session")
def finished_checkout(tmp_path_factory):
    """A checkout with all outputs of the embedded default; read-only."""
    path = tmp_path_factory.mktemp("finished") / "a checkout of 'mine'"
    path.mkdir()
    made = copy_project(path)
    made.pretend_all_is_made()
    return made


@pytest.fixture
def finished(finished_checkout, tmp_path):
    """A checkout with all outputs, for one test to change."""
    path = tmp_path / "a copy"
    shutil.copytree(finished_checkout.path, path, symlinks=True)
    return Checkout(path)


@pytest.fixture
def config():
    """The embedded default, for one test to change."""
    return copy.deepcopy(DEFAULT_CONFIG)


@pytest.fixture
def small(config):
    """A config with one job per rule, except for two milestones."""
    config["corpora"]["main"] |= {"sources": ["code"], "tokenize": {"parts": 1}}
    config["tokenizers"]["main"]["sample"] = {"code": 1}
    short = {"steps": 2, "milestones": [1, 2], "schedule": {"warmup_steps": 1}, "validation": {"tokens": 256}}
    config["runs"]["base"]["pretrain"] |= short | {"weights": {"code": 1}}
    config["runs"]["statements"]["initial"]["step"] = 2
    config["runs"]["statements"]["finetune"] |= short
    return config


@pytest.fixture
def pretending(tmp_path):
    """A checkout with fake stages, in a path that needs quoting in a shell."""
    path = tmp_path / "it's a $HOME; path"
    path.mkdir()
    made = copy_project(path)
    made.pretend(*STAGES.values())
    return made
