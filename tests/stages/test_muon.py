"""Pretraining with Muon: milestones, and a start from another model.

test_pretrain.py has a kill, test_shardings.py other ranks and shardings in the middle.
"""

import pytest

from stages import pretrain
from stages.lib.checkpoints import dcp
from tests.helpers.training import RECIPE, milestone, options, run_directory, steps_of, train, weights_of

MUON = RECIPE | {"optimizer": {"name": "muon", "learning_rate": 1e-2}}
KEEP = {"optimizer": "keep", "schedule": "continue", "data": "continue"}


@pytest.fixture(scope="module")
def base(corpus, tmp_path_factory):
    """A run of 30 steps on one rank, cut at step 10."""
    results = tmp_path_factory.mktemp("muon")
    assert train(corpus, results, 10, recipe=MUON) == 0
    assert train(corpus, results, 30, recipe=MUON, previous=10) == 0
    return results


def test_loss_falls_and_the_checkpoint_has_one_momentum_per_matrix(base):
    entries = steps_of(base)
    assert entries[-1]["loss"] < entries[0]["loss"] - 0.5
    directory = run_directory(base) / "checkpoints/00000030"
    state = [key.removeprefix("optimizer.") for key in dcp.keys_of(directory) if key.startswith("optimizer.")]
    momenta = {key.removesuffix(".momentum_buffer") for key in state if key.endswith(".momentum_buffer")}
    assert len(momenta) == 4 * RECIPE["model"]["num_hidden_layers"]
    assert all(".layers." in name and "ln" not in name for name in momenta)
    assert not any(key.startswith(f"{name}.exp_avg") for key in state for name in momenta)


def test_run_cut_into_milestones_ends_in_the_same_bits(corpus, base, tmp_path):
    assert train(corpus, tmp_path, 30, recipe=MUON) == 0
    assert weights_of(tmp_path, 30) == weights_of(base, 30)


def test_run_that_continues_another_keeps_its_momentum(corpus, base, tmp_path):
    recipe = MUON | {"initial": KEEP}
    arguments = options(corpus, tmp_path, 20, recipe=recipe, steps=20)
    assert pretrain.main([*arguments, "--initial", str(milestone(base, 10))]) == 0
    assert [step["loss"] for step in steps_of(tmp_path)] == [step["loss"] for step in steps_of(base)[10:]]


def test_state_of_another_optimizer_is_refused(corpus, base, tmp_path, capsys):
    arguments = options(corpus, tmp_path, 20, recipe=RECIPE | {"initial": KEEP})
    assert pretrain.main([*arguments, "--initial", str(milestone(base, 10))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "trained with the optimizer muon, and pretrain.optimizer.name is adamw; set it to reset" in line
    assert not (tmp_path / "train").exists()
