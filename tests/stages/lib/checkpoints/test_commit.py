"""The commit format: complete, torn, damaged and removed checkpoints."""

import shutil

import pytest

from stages.lib import manifest
from stages.lib.checkpoints.commit import complete_steps, directory_of, read_commit, remove, verify, write_commit
from stages.lib.errors import UserError

NAME = "__0_0.distcp"


@pytest.fixture
def checkpoint(tmp_path):
    """The directory of a complete checkpoint of step 3."""
    directory = directory_of(tmp_path, 3)
    directory.mkdir(parents=True)
    (directory / NAME).write_bytes(b"tensors")
    write_commit(directory, {"step": 3, "samples": 36}, {NAME: manifest.describe(directory / NAME)})
    return directory


def test_commit_is_read_as_it_was_written(checkpoint):
    described = manifest.describe(checkpoint / NAME)
    assert read_commit(checkpoint) == {"format": 1, "step": 3, "samples": 36, "files": {NAME: described}}


def test_killed_removal_leaves_no_complete_checkpoint(checkpoint, tmp_path, monkeypatch):
    assert complete_steps(tmp_path) == [3]
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # killed before it
    remove(checkpoint)
    assert (checkpoint / NAME).exists()
    assert complete_steps(tmp_path) == []


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": 2, "files": {}}', "not JSON"])
def test_marker_that_is_not_valid_is_refused(checkpoint, content):
    (checkpoint / "commit.json").write_text(content)
    with pytest.raises(UserError, match="commit.json (must|is not valid JSON)"):
        read_commit(checkpoint)


def test_marker_with_a_changed_number_is_refused(checkpoint):
    path = checkpoint / "commit.json"
    path.write_text(path.read_text().replace('"samples": 36', '"samples": 37'))
    with pytest.raises(UserError, match="commit.json changed since it was written"):
        read_commit(checkpoint)


def test_missing_or_changed_file_is_named(checkpoint):
    commit = read_commit(checkpoint)
    verify(checkpoint, commit)
    (checkpoint / NAME).write_bytes(b"tensorS")
    assert read_commit(checkpoint) == commit
    with pytest.raises(UserError, match="__0_0.distcp changed since it was written"):
        verify(checkpoint, commit)
    (checkpoint / NAME).unlink()
    with pytest.raises(UserError, match="__0_0.distcp must have 7 bytes by commit.json, found None"):
        read_commit(checkpoint)
    with pytest.raises(UserError, match="__0_0.distcp could not be read"):
        verify(checkpoint, commit)
