"""The checkpoints of a run: a trainer that lost its lease deletes none."""

import pytest
import torch

from stages.lib.checkpoints.commit import complete_steps
from stages.lib.checkpoints.manager import AsyncCheckpointer, CheckpointManager
from stages.lib.distributed.process_group import process_group
from stages.lib.errors import UserError
from stages.lib.run_directory.run_identity import RunIdentity

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
    with process_group():
        made = CheckpointManager(tmp_path, IDENTITY, 2, AsyncCheckpointer(asynchronous=True), Lease())
        save(made, 1)
        save(made, 2)
        made.keep = 1
        yield made


def save(manager, step):
    manager.save(step, {"a": torch.zeros(3)}, {"samples": step}, lambda _: None)
    manager.checkpointer.wait()


def test_keep_deletes_the_oldest(manager, tmp_path):
    save(manager, 3)
    assert complete_steps(tmp_path) == [3]


@pytest.mark.parametrize(("checks", "left"), [(0, [1, 2]), (1, [1, 2]), (2, [1, 2, 3]), (3, [2, 3])])
def test_save_of_a_trainer_that_lost_its_lease_deletes_nothing(manager, tmp_path, checks, left):
    manager.lease.left = checks
    with pytest.raises(UserError, match="taken over"):
        save(manager, 3)
    assert complete_steps(tmp_path) == left


def test_rollback_of_a_trainer_that_lost_its_lease_deletes_nothing(manager, tmp_path):
    manager.lease.left = 0
    with pytest.raises(UserError, match="taken over"):
        manager.forget_after(0, 2)
    assert complete_steps(tmp_path) == [1, 2]


def test_start_of_a_trainer_that_lost_its_lease_deletes_nothing(manager, tmp_path):
    (tmp_path / "checkpoints/00000004").mkdir()
    manager.lease.left = 0
    with pytest.raises(UserError, match="taken over"):
        manager.clear_leftovers()
    assert (tmp_path / "checkpoints/00000004").exists()
