"""Pretraining: the same bits after every kill, the same losses on every world size, one line per mistake."""

import json
import socket
import subprocess
import sys
from itertools import pairwise
from statistics import median

import pytest

from stages import pretrain
from stages.lib import manifest
from stages.lib.checkpoints import dcp
from tests.helpers.data_fixtures import tiny_corpus
from tests.helpers.faulty_ranks import SLEEP
from tests.helpers.training import (
    HOME,
    MODEL,
    MODELS,
    OPERATION,
    RECIPE,
    environment,
    events_of,
    kill_all,
    launch,
    milestone,
    options,
    recorded_batches,
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


def test_ledger_names_the_samples_that_were_trained_on(corpus, tmp_path, monkeypatch):
    from stages.lib.tokens.corpus import Corpus
    from stages.lib.tokens.loader import Samples

    trained_on = recorded_batches(monkeypatch)
    for until in (7, 15):
        assert train(corpus, tmp_path, until) == 0
    samples = Samples(Corpus(corpus), RECIPE["weights"], RECIPE["seq_len"], 0)
    for entry in steps_of(tmp_path):
        inputs, targets = samples.batch(range(*entry["samples"]))
        assert trained_on[entry["step"]] == (inputs.tolist(), targets.tolist())


@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic_kernels_are_used_if_the_recipe_sets_them(corpus, tmp_path, monkeypatch, deterministic):
    import torch

    from stages.lib.training.step import Stepper

    take, seen = Stepper.take, []

    def recording(*arguments):
        seen.append(torch.are_deterministic_algorithms_enabled())
        return take(*arguments)

    monkeypatch.setattr(Stepper, "take", recording)
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


THREE = {"num_key_value_heads": 3}


@pytest.mark.parametrize(
    ("recipe", "operation", "message"),
    [
        ({"lerning_rate": 1}, {}, "unknown key pretrain.lerning_rate"),
        ({"seq_len": 65}, {}, "pretrain.seq_len must be at most model.max_position_embeddings (64), got 65"),
        ({"model": MODEL | THREE}, {}, "model.num_key_value_heads must divide num_attention_heads (4)"),
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


def test_shard_that_changed_or_vanished_is_named(tmp_path, capsys):
    corpus = tiny_corpus(tmp_path / "corpus")
    (shard,) = json.loads(corpus.read_text())["identity"]["sources"]["a"]["train"]["shards"][:1]
    path = corpus.parent / shard["path"]
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert train(corpus, tmp_path, 4) == 2
    assert f"{path} has {len(content) - 1} bytes, but" in capsys.readouterr().err
    path.unlink()
    assert train(corpus, tmp_path, 4) == 2
    assert f"{path} is missing, but" in capsys.readouterr().err


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
