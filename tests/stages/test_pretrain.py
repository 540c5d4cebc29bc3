"""Pretraining: the same bits after every kill, the same losses on every world size, its data, one line per mistake."""

import json
import socket
import subprocess
import sys
from itertools import pairwise
from statistics import median

import numpy as np
import pytest

from stages import pretrain
from stages.lib import manifest
from stages.lib.checkpoints import dcp
from stages.lib.model.loss import IGNORED
from stages.lib.tokens.corpus import Corpus
from stages.lib.tokens.loader import Samples
from tests.helpers.faulty_ranks import SLEEP
from tests.helpers.training import (
    HOME,
    MODEL,
    MODELS,
    OPERATION,
    RECIPE,
    before_each_step,
    check_two_ranks,
    environment,
    events_of,
    kill_all,
    launch,
    milestone,
    options,
    refused,
    run_directory,
    run_on,
    steps_of,
    train,
    train_on,
    wait_until,
    weights_of,
)


@pytest.fixture(scope="module")
def uninterrupted_on_two(corpus, tmp_path_factory):
    """The same on two ranks."""
    results = tmp_path_factory.mktemp("uninterrupted_on_two")
    code, error = train_on(2, corpus, results, 30)
    assert code == 0, error
    return results


def test_loss_falls_and_every_step_is_in_the_ledger(uninterrupted):
    entries = steps_of(uninterrupted)
    assert [entry["step"] for entry in entries] == list(range(1, 31))
    assert [entry["samples"] for entry in entries] == [[12 * n, 12 * n + 12] for n in range(30)]
    assert entries[-1]["tokens"] == 30 * 12 * 32
    assert entries[-1]["loss"] < entries[0]["loss"] - 0.5
    for name in ("learning_rate", "grad_norm", "tokens_per_second", "data_wait", "memory_mb", "seconds"):
        assert entries[-1][name] >= 0
    validation = json.loads(milestone(uninterrupted, 30).read_text())["record"]["validation"]
    assert set(validation) == {"a", "b"}
    assert all(0 < scores["loss_bits_per_byte"] < 8 for scores in validation.values())


@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic_kernels_are_used_if_the_recipe_sets_them(corpus, tmp_path, monkeypatch, deterministic):
    import torch

    seen = []
    before_each_step(monkeypatch, lambda *_: seen.append(torch.are_deterministic_algorithms_enabled()))
    assert train(corpus, tmp_path, 3, deterministic=deterministic) == 0
    assert seen == [deterministic] * 3


@pytest.mark.long
def test_compiled_blocks_train_as_others_do(corpus, uninterrupted, tmp_path):
    assert train(corpus, tmp_path, 8, compile=True) == 0
    for entry, other in zip(steps_of(tmp_path), steps_of(uninterrupted), strict=False):
        assert entry["loss"] == pytest.approx(other["loss"], rel=1e-4 if entry["step"] <= 5 else 1e-1)


@pytest.mark.parametrize("kind", ["full", "selective", "offload"])
def test_activation_checkpointing_changes_no_bit(corpus, uninterrupted, tmp_path, kind):
    assert train(corpus, tmp_path, 30, activation_checkpointing={"mode": kind}) == 0
    assert weights_of(tmp_path, 30) == weights_of(uninterrupted, 30)


def test_run_cut_into_milestones_ends_in_the_same_bits(corpus, uninterrupted, tmp_path):
    for previous, until in pairwise([None, 10, 17, 30]):
        assert train(corpus, tmp_path, until, previous=previous) == 0
    assert weights_of(tmp_path, 30) == weights_of(uninterrupted, 30)
    identities = [json.loads(milestone(path, 30).read_text())["identity"] for path in (tmp_path, uninterrupted)]
    assert identities[0] == identities[1]


VARIANTS = {
    "llama": {},
    "mixtral": {"model": MODEL | MODELS["mixtral"]},
    "normuon": {"optimizer": {"name": "normuon", "learning_rate": 1e-2}},
}


@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(name, marks=pytest.mark.long) for name in ("mixtral", "normuon"))]
)
def test_killed_run_goes_on_to_the_same_bits(corpus, uninterrupted_on_two, tmp_path, name):
    recipe, whole = RECIPE | VARIANTS[name], uninterrupted_on_two
    if name != "llama":
        whole = tmp_path / "whole"
        code, error = train_on(2, corpus, whole, 30, recipe=recipe)
        assert code == 0, error
    tmp_path = tmp_path / "killed"
    process = launch(2, options(corpus, tmp_path, 30, recipe=recipe))
    wait_until(lambda: len(steps_of(tmp_path)) >= 13, process)
    kill_all(process)
    killed_at = steps_of(tmp_path)[-1]["step"]
    code, error = train_on(2, corpus, tmp_path, 30, recipe=recipe)
    assert code == 0, error
    assert killed_at < 30
    assert [event["event"] for event in events_of(tmp_path)][:2] == ["attempt", "start"]
    (resumed,) = [event["step"] for event in events_of(tmp_path) if event["event"] == "resume"]
    assert 5 <= resumed <= killed_at
    assert weights_of(tmp_path, 30) == weights_of(whole, 30)


@pytest.mark.long
def test_initial_weights_are_those_of_any_world_size(tmp_path):
    script = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    found = []
    for ranks in (1, 2, 3):
        directory = tmp_path / str(ranks)
        command = [*script, f"--nproc-per-node={ranks}", "-m", "tests.helpers.write_initial_weights", str(directory)]
        subprocess.run(command, check=True, env=environment(), cwd=HOME, capture_output=True)
        tensors = dcp.load_tensors(directory, dcp.keys_of(directory))
        found.append({name: tensor.numpy().tobytes() for name, tensor in tensors.items()})
    assert len(found[0]) == 15
    assert found[0] == found[1] == found[2]


def test_bfloat16_trains_and_keeps_float32_weights(corpus, tmp_path):
    recipe = {name: value for name, value in RECIPE.items() if name != "dtype"}
    assert train(corpus, tmp_path, 30, recipe=recipe) == 0
    entries = steps_of(tmp_path)
    assert entries[-1]["loss"] < entries[0]["loss"] - 0.5
    directory = run_directory(tmp_path) / "checkpoints/00000030"
    dtypes = {str(tensor.dtype) for tensor in dcp.load_tensors(directory, ["model.head.weight"]).values()}
    assert dtypes == {"torch.float32"}


@pytest.mark.parametrize(
    ("recipe", "operation", "message"),
    [
        ({"lerning_rate": 1}, {}, "unknown key pretrain.lerning_rate"),
        ({"seq_len": 65}, {}, "pretrain.seq_len must be at most model.max_position_embeddings (64), got 65"),
        ({"weights": {"c": 1}}, {}, "pretrain.weights.c must name a source of the corpus (a, b)"),
        ({"weights": {"a": 1, "b": 1e-6}}, {}, "pretrain.weights.b must be at least 1/4096"),
        ({}, {"micro_batch_size": 5}, "pretrain.micro_batch_size must divide the 12 samples per rank"),
        ({}, {"steps": 3}, "--until must be at most pretrain.steps (3), got 4"),
    ],
)
def test_mistake_is_one_line_and_leaves_nothing(corpus, tmp_path, capsys, recipe, operation, message):
    assert message in refused(capsys, corpus, tmp_path, recipe=RECIPE | recipe, **operation)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--until", "0", "--until must be at least 1, got 0"),
        ("--attempt", "0", "--attempt must be at least 1, got 0"),
        ("--profile-steps", "6:7", "--profile-steps must begin at or before step 5"),
        *(("--minutes", minutes, "--minutes must be greater than 0") for minutes in ("0", "-1", "nan", "inf")),
    ],
)
def test_option_out_of_range_is_one_line(corpus, tmp_path, capsys, option, value, message):
    assert pretrain.main([*options(corpus, tmp_path, 5), option, value]) == 2
    assert message in capsys.readouterr().err


def test_global_batch_that_ranks_cannot_share_is_one_line(corpus, tmp_path):
    code, error = train_on(2, corpus, tmp_path, 4, recipe=RECIPE | {"global_batch_size": 15}, micro_batch_size=1)
    assert code == 2
    (line,) = error.splitlines()
    assert "pretrain.global_batch_size must be divisible by the number of ranks (2), got 15" in line
    assert "1, 3, 5, 15 ranks" in line


def test_rank_that_works_longer_is_told_from_those_that_wait_for_it(corpus, tmp_path):
    run_on(2, "tests.helpers.faulty_ranks", "slow_rank", *options(corpus, tmp_path, 8))
    ranks = [entry["ranks"] for entry in steps_of(tmp_path) if entry.get("ranks", {}).get("max")]
    slept = SLEEP * MODEL["num_hidden_layers"] * RECIPE["global_batch_size"] / 2 / OPERATION["micro_batch_size"]
    # of two ranks the median is the mean: half of what one is slower
    assert median(times["max"] - times["median"] for times in ranks) > 0.4 * slept
    assert {times["slowest"] for times in ranks} == {socket.gethostname()}


def test_unknown_option_is_one_line_from_all_ranks(corpus, tmp_path):
    process = launch(2, [*options(corpus, tmp_path, 4), "--lerning-rate", "3"])
    _, error = process.communicate(timeout=120)
    assert process.returncode == 2
    assert error == "python -m stages.pretrain: unrecognized arguments: --lerning-rate 3 (see --help)\n"


def test_rank_that_fails_alone_ends_the_others_at_once():
    # gloo waits 30 minutes
    command = ["timeout", "60", HOME / "workflow/launch", "2", "-m", "tests.helpers.faulty_ranks", "fail_alone"]
    ended = subprocess.run(command, env=environment(), cwd=HOME, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "fail_alone: the second rank cannot go on\n" in ended.stderr
    assert "internal error" not in ended.stderr


def test_the_shape_is_that_of_the_file_but_for_keys_of_the_recipe(corpus, tmp_path):
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 9, "rms_norm_eps": 1e-5}
    (tmp_path / "config.json").write_text(json.dumps(config | MODEL | {"num_hidden_layers": 9}))
    arguments = options(corpus, tmp_path, 1, recipe=RECIPE | {"model": {"num_hidden_layers": 2}})
    assert pretrain.main([*arguments, "--model-config", str(tmp_path)]) == 0
    assert manifest.read(milestone(tmp_path, 1)).identity["recipe"]["model"] == MODEL


PHASES = [{"step": 4, "weights": {"b": 1}}, {"step": 7, "weights": {"a": 1, "b": 2}}]
HISTORY = [(0, {"a": 3.0, "b": 1.0}), (48, {"b": 1.0}), (84, {"a": 1.0, "b": 2.0})]


def packed(packing):
    """Return a recipe with packed documents and data stages."""
    return RECIPE | {"packing": packing, "document_mask": True, "data_stages": PHASES}


@pytest.mark.parametrize("packing", ["chunk", "concat", "best_fit"])
def test_run_cut_in_a_phase_ends_in_the_same_bits_and_metrics_say_what_each_source_gave(corpus, tmp_path, packing):
    recipe = packed(packing)
    assert train(corpus, tmp_path / "uncut", 10, recipe=recipe) == 0
    for until in (5, 10):
        assert train(corpus, tmp_path / "cut", until, recipe=recipe) == 0
    assert weights_of(tmp_path / "uncut", 10) == weights_of(tmp_path / "cut", 10)
    entries = steps_of(tmp_path / "uncut")
    assert entries[-1]["loss"] < entries[0]["loss"] - 0.5
    samples = Samples(Corpus(corpus), HISTORY, RECIPE["seq_len"], 0, packing=packing)
    sources, targets = samples.locate(np.arange(120))[0], samples.batch(np.arange(120))[1]
    for entry in entries:
        end = entry["samples"][1]
        for number, name in enumerate("ab"):
            of_source = sources[:end] == number
            assert entry["source_tokens"][name] == np.count_nonzero(targets[:end][of_source] != IGNORED)
            assert entry["source_epochs"][name] == of_source.sum() / samples.rows[number]


@pytest.mark.long
def test_two_ranks_train_on_what_one_does_though_they_mask_unequally(corpus, tmp_path):
    check_two_ranks(corpus, tmp_path, packed("best_fit"))


def test_record_says_what_the_weights_were_rounded_to(corpus, tmp_path):
    assert train(corpus, tmp_path, 8, recipe=RECIPE | {"weights": {"a": 2, "b": 1}, "data_stages": PHASES[:1]}) == 0
    data = json.loads(milestone(tmp_path, 8).read_text())["record"]["data"]
    slots = {entry["from_sample"]: entry["slots"] for entry in data["mixture"]}
    assert slots == {0: {"a": 2731, "b": 1365}, 48: {"b": 4096}}
    assert set(data["rows"]) == {"a", "b"}
    (path, *_) = (run_directory(tmp_path) / "checkpoints").glob("*/commit.json")
    assert json.loads(path.read_text())["data"]["history"] == [[0, {"a": 2.0, "b": 1.0}], [48, {"b": 1.0}]]


def test_what_cannot_be_is_refused_in_one_line(corpus, tmp_path, capsys):
    for stages, said in (
        (PHASES[::-1], "[1].step must be greater than 7 and less than steps (30)"),
        ([{"step": 30, "weights": {"a": 1}}], "[0].step must be greater than 0 and less"),
        ([{"step": 3, "weights": {}}], "[0].weights must give at least one source"),
        ([{"step": 3, "weights": {"a": 1, "b": 1e-5}}], "[0].weights.b must be at least 1/4"),
        ([{"step": 3, "weights": {"c": 1}}], "[0].weights.c must name a source of the corpus (a, b)"),
    ):
        line = refused(capsys, corpus, tmp_path, recipe=RECIPE | {"data_stages": stages})
        assert f"pretrain.data_stages{said}" in line


MUON = RECIPE | {"optimizer": {"name": "muon", "learning_rate": 1e-2}}
KEEP = {"optimizer": "keep", "schedule": "continue", "data": "continue"}


@pytest.fixture(scope="module")
def muon(corpus, tmp_path_factory):
    """A run with Muon of 30 steps on one rank, cut at step 10."""
    results = tmp_path_factory.mktemp("muon")
    assert train(corpus, results, 10, recipe=MUON) == 0
    assert train(corpus, results, 30, recipe=MUON, previous=10) == 0
    return results


def test_loss_falls_with_muon_and_the_checkpoint_has_one_momentum_per_matrix(muon):
    entries = steps_of(muon)
    assert entries[-1]["loss"] < entries[0]["loss"] - 0.5
    directory = run_directory(muon) / "checkpoints/00000030"
    state = [key.removeprefix("optimizer.") for key in dcp.keys_of(directory) if key.startswith("optimizer.")]
    momenta = {key.removesuffix(".momentum_buffer") for key in state if key.endswith(".momentum_buffer")}
    assert len(momenta) == 4 * RECIPE["model"]["num_hidden_layers"]
    assert all(".layers." in name and "ln" not in name for name in momenta)
    assert not any(key.startswith(f"{name}.exp_avg") for key in state for name in momenta)


def test_muon_run_cut_into_milestones_ends_in_the_same_bits(corpus, muon, tmp_path):
    assert train(corpus, tmp_path, 30, recipe=MUON) == 0
    assert weights_of(tmp_path, 30) == weights_of(muon, 30)


def test_run_that_continues_one_of_muon_keeps_its_momentum(corpus, muon, tmp_path):
    recipe = MUON | {"initial": KEEP}
    arguments = options(corpus, tmp_path, 20, recipe=recipe, steps=20)
    assert pretrain.main([*arguments, "--initial", str(milestone(muon, 10))]) == 0
    assert [step["loss"] for step in steps_of(tmp_path)] == [step["loss"] for step in steps_of(muon)[10:]]


def test_state_of_another_optimizer_is_refused(corpus, muon, tmp_path, capsys):
    arguments = options(corpus, tmp_path, 20, recipe=RECIPE | {"initial": KEEP})
    assert pretrain.main([*arguments, "--initial", str(milestone(muon, 10))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "trained with the optimizer muon, and pretrain.optimizer.name is adamw; set it to reset" in line
    assert not (tmp_path / "train").exists()
