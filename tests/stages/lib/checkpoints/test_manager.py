"""The checkpoints of a run: a trainer that lost its lease deletes none."""

import threading

import pytest
import torch

from stages.lib.checkpoints import dcp
from stages.lib.checkpoints.commit import complete_steps
from stages.lib.checkpoints.manager import AsyncCheckpointer, CheckpointManager
from stages.lib.errors import UserError
from stages.lib.run_directory.run_identity import RunIdentity

pytestmark = pytest.mark.usefixtures("group_of_one")

IDENTITY = RunIdentity(recipe={}, corpus="c", tokenizer="t", vocab_size=8, model={})


class Lease:
    """A lease that is lost after some checks."""

    left = 1000

    def check(self):
        self.left -= 1
        if self.left < 0:
            raise UserError("taken over")


@pytest.fixture
def manager(tmp_path):
    """The manager of a run that has the checkpoints 1 and 2, and keeps one of each new save."""
    made = CheckpointManager(tmp_path, IDENTITY, 2, AsyncCheckpointer(asynchronous=True), Lease())
    save(made, 1)
    save(made, 2)
    made.keep = 1
    return made


def save(manager, step):
    manager.save(step, {"a": torch.zeros(3)}, {"samples": step}, lambda _: None)
    manager.checkpointer.wait()


@pytest.mark.parametrize(("checks", "left"), [(0, [1, 2]), (1, [1, 2]), (2, [1, 2, 3]), (3, [2, 3])])
def test_save_of_a_trainer_that_lost_its_lease_deletes_nothing(manager, tmp_path, checks, left):
    manager.lease.left = checks
    with pytest.raises(UserError, match="taken over"):
        save(manager, 3)
    assert complete_steps(tmp_path) == left


def test_rollback_and_start_of_a_trainer_that_lost_its_lease_delete_nothing(manager, tmp_path):
    (tmp_path / "checkpoints/00000004").mkdir()
    manager.lease.left = 0
    for delete in (lambda: manager.forget_after(0, 2), manager.clear_leftovers):
        with pytest.raises(UserError, match="taken over"):
            delete()
    assert complete_steps(tmp_path) == [1, 2]
    assert (tmp_path / "checkpoints/00000004").exists()


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
