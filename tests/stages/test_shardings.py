"""Every sharding, world size and accumulation trains the same model."""

import pytest
import torch

from stages.lib.checkpoints import dcp
from tests.helpers.training import (
    MODEL,
    MODELS,
    RECIPE,
    options,
    run_directory,
    run_on,
    steps_of,
    train,
    train_on,
    weights_of,
)

STEPS = 50
OPTIMIZERS = ("adamw", "muon")
HYBRID = {"sharding": "hybrid-full", "shard_degree": 2}
HYBRID_GRAD = HYBRID | {"sharding": "hybrid-grad"}
# (ranks, operation) of each run that must agree
RUNS = {
    1: [{}, {"micro_batch_size": 1}, {"micro_batch_size": 12}],
    2: [{"sharding": "full"}, {"sharding": "grad"}, {"sharding": "none"}, {"sharding": "none", "micro_batch_size": 3}],
    3: [{"sharding": "full", "micro_batch_size": 4}],
    4: [{"sharding": "full", "micro_batch_size": 3}, HYBRID, HYBRID_GRAD, {"sharding": "none", "micro_batch_size": 1}],
}
# Fewer runs, for what shares most of its code with the first
FEWER = {1: [{}], 2: [{"sharding": "none"}], 3: [{"sharding": "full", "micro_batch_size": 4}], 4: [HYBRID]}


def trained(corpus, directory, runs, steps, **recipe):
    """Return the results directories of runs {ranks: [operation]}, by their names."""
    made = {}
    for ranks, operations in runs.items():
        names = [f"{ranks} ranks, {operation}" for operation in operations]
        made |= {name: directory / f"{ranks}-{number}" for number, name in enumerate(names)}
        for name, operation in zip(names, operations, strict=True):
            keys = {"recipe": RECIPE | recipe, "steps": steps, "micro_batch_size": 1} | operation
            run_on(ranks, "stages.pretrain", *options(corpus, made[name], steps, **keys))
    return made


@pytest.mark.long
@pytest.mark.parametrize(("architecture", "optimizer"), [*((name, "adamw") for name in MODELS), ("llama", "muon")])
def test_losses_agree_in_float64(corpus, tmp_path, architecture, optimizer):
    runs = RUNS if (architecture, optimizer) == ("llama", "adamw") else FEWER
    keys = {"model": MODEL | MODELS[architecture], "optimizer": RECIPE["optimizer"] | {"name": optimizer}}
    found = trained(corpus, tmp_path, runs, STEPS, dtype="float64", **keys)
    losses = {name: [entry["loss"] for entry in steps_of(results)] for name, results in found.items()}
    first = losses.pop(next(iter(losses)))
    assert len(first) == STEPS
    for name, other in losses.items():
        assert max(abs(a - b) for a, b in zip(first, other, strict=True)) < 1e-9, name


def test_equal_shardings_give_equal_bits_and_one_norm(corpus, tmp_path):
    runs = {1: [{}], 2: [{"sharding": "full"}, {"sharding": "grad"}, {"sharding": "none"}], 4: [HYBRID, HYBRID_GRAD]}
    alone, full, grad, none, hybrid, hybrid_grad = trained(corpus, tmp_path, runs, 8, dtype="float32").values()
    assert weights_of(full, 8) == weights_of(grad, 8)
    assert weights_of(hybrid, 8) == weights_of(hybrid_grad, 8)
    norms = [steps_of(results)[0]["grad_norm"] for results in (alone, full, none, hybrid)]
    assert max(norms) / min(norms) - 1 < 1e-7


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_none_is_distributed_data_parallel_bit_for_bit(corpus, tmp_path, optimizer):
    recipe = RECIPE | {"optimizer": RECIPE["optimizer"] | {"name": optimizer}}
    code, error = train_on(2, corpus, tmp_path / "none", 8, recipe=recipe, sharding="none", steps=30)
    assert code == 0, error
    run_on(2, "tests.helpers.train_ddp", corpus, 8, tmp_path / "ddp.pt", optimizer)
    theirs = torch.load(tmp_path / "ddp.pt", weights_only=True)
    directory = run_directory(tmp_path / "none") / "checkpoints/00000008"
    ours = dcp.load_tensors(directory, [f"model.{name}" for name in theirs])
    for name, tensor in theirs.items():
        assert torch.equal(tensor, ours[f"model.{name}"]), name


@pytest.mark.long
@pytest.mark.parametrize(("architecture", "optimizer"), [("llama", "adamw"), ("mixtral", "adamw"), ("llama", "muon")])
def test_sharding_ranks_and_micro_batch_may_change_in_the_middle(corpus, tmp_path, architecture, optimizer):
    uncut, changed = tmp_path / "uncut", tmp_path / "changed"
    keys = {"model": MODEL | MODELS[architecture], "optimizer": RECIPE["optimizer"] | {"name": optimizer}}
    recipe = RECIPE | {"dtype": "float64"} | keys
    assert train(corpus, uncut, 30, recipe=recipe) == 0
    plans = [(10, 4, HYBRID | {"micro_batch_size": 1}), (20, 2, {"sharding": "none", "micro_batch_size": 6})]
    plans, previous = [*plans, (30, 3, {})], None
    for until, ranks, operation in plans:
        code, error = train_on(ranks, corpus, changed, until, recipe=recipe, previous=previous, **operation)
        assert code == 0, error
        previous = until
    ledgers = [[(entry["step"], entry["samples"]) for entry in steps_of(results)] for results in (uncut, changed)]
    assert ledgers[0] == ledgers[1]
    for figure in ("loss", "aux_loss") if architecture == "mixtral" else ("loss",):
        losses = [[entry[figure] for entry in steps_of(results)] for results in (uncut, changed)]
        assert max(abs(a - b) for a, b in zip(*losses, strict=True)) < 1e-9


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ({"sharding": "hybrid-full", "shard_degree": 3}, "needs at least two groups of at least two ranks"),
        ({"sharding": "hybrid-grad"}, "must be one of none for 2 ranks, got 2"),
        ({"sharding": "full", "shard_degree": 2}, "must be left out except for hybrid-full and hybrid-grad"),
        ({"cpu_offload": True}, "cpu_offload must be false without a GPU"),
    ],
)
def test_what_cannot_be_sharded_is_refused_in_one_line(corpus, tmp_path, capfd, operation, message):
    if "hybrid" in operation.get("sharding", ""):
        code, error = train_on(2, corpus, tmp_path, 10, **operation)
    else:
        code, error = train(corpus, tmp_path, 10, **operation), capfd.readouterr().err
    assert code == 2
    (line,) = error.splitlines()
    assert message in line
