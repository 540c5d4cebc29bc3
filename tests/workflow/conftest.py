"""Checkouts for tests of the workflow."""

import copy
import shutil

import pytest

from tests.workflow.checkout import FAKE_STAGE, STAGES, Checkout, copy_project


@pytest.fixture(scope="session")
def finished_checkout(tmp_path_factory):
    """A checkout in which all of the embedded default is made; not to be changed."""
    path = tmp_path_factory.mktemp("finished") / "a checkout of 'mine'"
    path.mkdir()
    made = copy_project(path)
    made.pretend_all_is_made()
    return made


@pytest.fixture
def finished(finished_checkout, tmp_path):
    """A checkout in which all is made, for one test to change."""
    path = tmp_path / "a copy"
    shutil.copytree(finished_checkout.path, path, symlinks=True)
    return Checkout(path)


@pytest.fixture
def config(finished_checkout):
    """The embedded default, for one test to change."""
    return copy.deepcopy(finished_checkout.default_config)


@pytest.fixture
def pretending(tmp_path):
    """A checkout whose stages only pretend, in a path that a shell can trip over."""
    path = tmp_path / "it's a $HOME; path"
    path.mkdir()
    made = copy_project(path)
    for stage in STAGES:
        (path / f"stages/{stage}.py").write_text(FAKE_STAGE, encoding="utf-8")
    return made
