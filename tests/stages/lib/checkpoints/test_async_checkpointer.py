"""Saving behind the training's back: what is written is the state at the moment of the save."""

import threading

import pytest
import torch

from stages.lib.checkpoints import dcp
from stages.lib.checkpoints.manager import AsyncCheckpointer
from stages.lib.distributed.process_group import process_group
from stages.lib.errors import UserError


@pytest.fixture(autouse=True)
def group_of_one():
    with process_group():
        yield


def held_back(monkeypatch):
    """Saves that begin to write only when the returned event is set."""
    may_write, save = threading.Event(), dcp.save

    def waiting(*arguments):
        assert may_write.wait(20)
        return save(*arguments)

    monkeypatch.setattr(dcp, "save", waiting)
    return may_write


def test_state_may_change_as_soon_as_an_asynchronous_save_returns(tmp_path, monkeypatch):
    may_write, checkpointer, done = held_back(monkeypatch), AsyncCheckpointer(asynchronous=True), []
    state = {"model": {"a": torch.arange(6.0), "b": torch.ones(2, 3)}}
    checkpointer.save(tmp_path / "00000001", state, {"step": 1}, None, done.append)
    state["model"]["a"].zero_()
    assert not done and not (tmp_path / "00000001").exists()
    may_write.set()
    checkpointer.wait()
    assert len(done) == 1
    assert torch.equal(dcp.load_tensors(tmp_path / "00000001", ["model.a"])["model.a"], torch.arange(6.0))


def test_next_save_waits_for_the_one_before(tmp_path, monkeypatch):
    may_write, checkpointer, done = held_back(monkeypatch), AsyncCheckpointer(asynchronous=True), []
    state = {"a": torch.zeros(3)}
    checkpointer.save(tmp_path / "00000001", state, {"step": 1}, None, lambda _: done.append(1))
    state["a"] += 1
    threading.Timer(0.2, may_write.set).start()
    checkpointer.save(tmp_path / "00000002", state, {"step": 2}, None, lambda _: done.append(2))
    assert done[:1] == [1]
    checkpointer.wait()
    for step in (1, 2):
        found = dcp.load_tensors(tmp_path / f"{step:08d}", ["a"])["a"]
        assert torch.equal(found, torch.full((3,), step - 1.0))


@pytest.mark.parametrize("asynchronous", [True, False])
def test_save_that_fails_says_so_once_and_is_not_done(tmp_path, asynchronous):
    (tmp_path / "file").touch()
    checkpointer, done = AsyncCheckpointer(asynchronous), []
    with pytest.raises(UserError, match="could not be written"):
        checkpointer.save(tmp_path / "file/00000001", {"a": torch.zeros(3)}, {"step": 1}, None, done.append)
        checkpointer.wait()
    assert not checkpointer.failed() and not done
    checkpointer.save(tmp_path / "00000001", {"a": torch.zeros(3)}, {"step": 1}, None, done.append)
    checkpointer.wait()
    assert len(done) == 1
