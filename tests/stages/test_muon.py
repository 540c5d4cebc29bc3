"""Pretraining with Muon: a kill, other ranks and shardings in the middle, and a start from another model."""

import pytest

from stages import pretrain
from stages.lib.checkpoints import dcp
from tests.helpers.training import (
    RECIPE,
    events_of,
    kill_all,
    launch,
    milestone,
    options,
    run_directory,
    saved,
    steps_of,
    train,
    train_on,
    wait_until,
    weights_of,
)

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


@pytest.mark.long
def test_killed_run_resumes_to_the_same_bits(corpus, tmp_path):
    killed, uncut = tmp_path / "killed", tmp_path / "uncut"
    process = launch(2, options(corpus, killed, 30, recipe=MUON))
    wait_until(lambda: saved(killed), process)
    kill_all(process)
    assert steps_of(killed)[-1]["step"] < 30
    for results in (killed, uncut):
        code, error = train_on(2, corpus, results, 30, recipe=MUON)
        assert code == 0, error
    (resumed,) = [event["step"] for event in events_of(killed) if event["event"] == "resume"]
    assert resumed >= 5
    assert weights_of(killed, 30) == weights_of(uncut, 30)


@pytest.mark.long
def test_checkpoint_of_one_rank_is_resumed_on_others_in_float64(corpus, tmp_path):
    recipe = MUON | {"dtype": "float64"}
    uncut, changed = tmp_path / "uncut", tmp_path / "changed"
    assert train(corpus, uncut, 12, recipe=recipe) == 0
    hybrid = {"sharding": "hybrid-full", "shard_degree": 2, "micro_batch_size": 3}
    plans = [(4, 1, {}), (8, 4, hybrid), (12, 2, {"sharding": "none"})]
    previous = None
    for until, ranks, operation in plans:
        code, error = train_on(ranks, corpus, changed, until, recipe=recipe, previous=previous, **operation)
        assert code == 0, error
        previous = until
    losses = [[entry["loss"] for entry in steps_of(results)] for results in (uncut, changed)]
    assert max(abs(a - b) for a, b in zip(*losses, strict=True)) < 1e-9


def test_run_that_continues_another_keeps_its_momentum(corpus, base, tmp_path):
    recipe = MUON | {"initial": KEEP}
    arguments = options(corpus, tmp_path, 20, recipe=recipe, steps=20)
    assert pretrain.main([*arguments, "--initial", str(milestone(base, 10))]) == 0
    assert [step["loss"] for step in steps_of(tmp_path)] == [step["loss"] for step in steps_of(base)[10:]]


@pytest.mark.parametrize(
    ("optimizer", "start", "sentence"),
    [
        ({}, True, "trained with the optimizer muon, and pretrain.optimizer.name is adamw; set it to reset"),
        ({"muon": {"momentum": 0.9}}, False, "pretrain.optimizer.muon must be left out for name adamw"),
    ],
)
def test_mistake_is_one_line_and_leaves_nothing(corpus, base, tmp_path, capsys, optimizer, start, sentence):
    recipe = RECIPE | {"optimizer": optimizer} | ({"initial": KEEP} if start else {})
    given = ["--initial", str(milestone(base, 10))] if start else []
    assert pretrain.main([*options(corpus, tmp_path, 20, recipe=recipe), *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line
    assert not (tmp_path / "train").exists()
