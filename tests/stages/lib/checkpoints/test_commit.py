"""The commit format: complete, torn, damaged and removed checkpoints."""

import shutil

import pytest

from stages.lib import manifest
from stages.lib.checkpoints.commit import (
    clear_leftovers,
    complete_steps,
    directory_beside,
    directory_of,
    publish,
    read_commit,
    remove,
    verify,
    write_commit,
)
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


def test_killed_removal_leaves_nothing_that_the_next_start_does_not_delete(checkpoint, tmp_path, monkeypatch):
    assert complete_steps(tmp_path) == [3]
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # killed before it
        remove(checkpoint)
    (left,) = checkpoint.parent.iterdir()
    assert (left / NAME).exists()
    assert complete_steps(tmp_path) == []
    clear_leftovers(tmp_path)
    assert list(checkpoint.parent.iterdir()) == []


def written_beside(checkpoint):
    """Write another complete checkpoint of the same step beside it, as a save does before its last rename."""
    making = directory_beside(checkpoint)
    shutil.copytree(checkpoint, making)
    (making / "new").touch()
    return making


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_checkpoint_that_is_saved_again_stays_a_milestone(checkpoint, tmp_path):
    (checkpoint / "milestone.json").write_text("kept")
    publish(written_beside(checkpoint), checkpoint)
    assert names(checkpoint.parent) == [checkpoint.name]
    assert names(checkpoint) == [NAME, "commit.json", "milestone.json", "new"]
    assert (checkpoint / "milestone.json").read_text() == "kept"


def test_complete_checkpoint_that_a_kill_left_beside_a_free_place_takes_it(checkpoint, tmp_path):
    written_beside(checkpoint)
    clear_leftovers(tmp_path)
    assert names(checkpoint.parent) == [checkpoint.name]
    assert "new" not in names(checkpoint)
    written_beside(checkpoint)
    checkpoint.rename(tmp_path / "moved")
    clear_leftovers(tmp_path)
    assert names(checkpoint.parent) == [checkpoint.name]
    assert "new" in names(checkpoint)


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": 2, "files": {}}', "not JSON"])
def test_marker_that_is_not_valid_is_refused(checkpoint, content):
    (checkpoint / "commit.json").write_text(content)
    with pytest.raises(UserError, match="commit.json (must|is not valid JSON)"):
        read_commit(checkpoint)


def test_missing_or_changed_file_or_marker_is_named(checkpoint):
    path, commit = checkpoint / "commit.json", read_commit(checkpoint)
    content = path.read_text()
    path.write_text(content.replace('"samples": 36', '"samples": 37'))
    with pytest.raises(UserError, match="commit.json changed since it was written"):
        read_commit(checkpoint)
    path.write_text(content)
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
