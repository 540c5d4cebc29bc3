"""Training on from another model: what is taken of it is what the recipe says."""

import json

import pytest

from stages import pretrain
from stages.lib import checkpoint
from tests.stages.training import (
    RECIPE,
    milestone,
    options,
    run_directory,
    steps_of,
    train,
    weights_of,
)

KEEP = {"optimizer": "keep", "schedule": "continue", "data": "continue"}
RESET = {"optimizer": "reset", "schedule": "reset", "data": "reset"}


@pytest.fixture(scope="module")
def base(corpus, tmp_path_factory):
    """A run of 30 steps with milestones at 20 and 30."""
    results = tmp_path_factory.mktemp("base")
    assert train(corpus, results, 20) == 0
    assert train(corpus, results, 30, previous=20) == 0
    return results


def train_from(initial, *arguments, how=RESET, recipe=RECIPE, **keywords):
    """Run the stage from another model; returns its exit code."""
    recipe = recipe | {"initial": how}
    return pretrain.main([*options(*arguments, recipe=recipe, **keywords), "--initial", str(initial)])


def tensors_of(results, step, prefix):
    directory = run_directory(results) / f"checkpoints/{step:08d}"
    keys = [key for key in checkpoint.keys_of(directory) if key.startswith(prefix)]
    return {name: tensor.numpy().tobytes() for name, tensor in checkpoint.load_tensors(directory, keys).items()}


def test_run_that_continues_all_is_the_run_that_went_on(corpus, base, tmp_path):
    # `steps` are added to the steps before: 20 + 10 is the horizon of the base
    assert train_from(milestone(base, 20), corpus, tmp_path, 10, how=KEEP, steps=10) == 0
    uncut, continued = [{entry["step"]: entry for entry in steps_of(results)} for results in (base, tmp_path)]
    for step in range(1, 11):
        for key in ("loss", "learning_rate", "grad_norm", "samples"):
            assert continued[step][key] == uncut[20 + step][key]
    for prefix in ("model.", "optimizer."):
        assert tensors_of(tmp_path, 10, prefix) == tensors_of(base, 30, prefix)


def test_reset_begins_schedule_data_and_averages_anew(corpus, base, tmp_path):
    assert train_from(milestone(base, 20), corpus, tmp_path, 5) == 0
    first, anew = steps_of(base)[0], steps_of(tmp_path)[0]
    for key in ("learning_rate", "samples"):
        assert anew[key] == first[key]
    assert anew["loss"] < first["loss"] - 0.5


def test_averages_alone_may_be_kept(corpus, base, tmp_path):
    losses = []
    for name, how in (("kept", RESET | {"optimizer": "keep"}), ("reset", RESET)):
        assert train_from(milestone(base, 20), corpus, tmp_path / name, 3, how=how) == 0
        losses.append([entry["loss"] for entry in steps_of(tmp_path / name)])
    assert losses[0][0] == losses[1][0]
    assert losses[0][1:] != losses[1][1:]


def test_continued_run_is_resumed_to_the_same_bits(corpus, base, tmp_path):
    how = RESET | {"schedule": "continue", "data": "continue"}
    assert train_from(milestone(base, 20), corpus, tmp_path / "uncut", 10, how=how) == 0
    assert train_from(milestone(base, 20), corpus, tmp_path / "cut", 4, how=how) == 0
    assert train_from(milestone(base, 20), corpus, tmp_path / "cut", 10, how=how, previous=4) == 0
    assert weights_of(tmp_path / "uncut", 10) == weights_of(tmp_path / "cut", 10)
    identity = json.loads(milestone(tmp_path / "cut", 10).read_text())["identity"]
    assert identity["recipe"]["initial"] == how and len(identity["initial"]) == 64


def test_another_initial_model_is_another_run(corpus, base, tmp_path):
    assert train_from(milestone(base, 20), corpus, tmp_path, 2) == 0
    assert train_from(milestone(base, 30), corpus, tmp_path, 2) == 0
    assert len(list((tmp_path / "train").iterdir())) == 2


def test_what_does_not_fit_is_refused_in_one_line(corpus, base, tmp_path, capsys):
    start = milestone(base, 20)
    wider = RECIPE | {"model": RECIPE["model"] | {"hidden": 64}}
    other_seed = RECIPE | {"seed": 9}
    cases = [
        (train_from(start, corpus, tmp_path, 2, recipe=wider), r"pretrain.model.hidden must be that of --initial"),
        (train_from(start, corpus, tmp_path, 2, how=KEEP, recipe=other_seed), "pretrain.initial.data must be reset"),
        (train_from(tmp_path / "none", corpus, tmp_path, 2), "none must be a milestone's manifest"),
        (train(corpus, tmp_path, 2, recipe=RECIPE | {"initial": RESET}), "--initial is missing"),
        (pretrain.main([*options(corpus, tmp_path, 2), "--initial", str(start)]), "pretrain.initial is missing"),
        (train(corpus, tmp_path, 2, recipe=RECIPE | {"initial": {"data": "reset"}}), "pretrain.initial.optimizer is"),
    ]
    lines = capsys.readouterr().err.splitlines()
    assert [code for code, _ in cases] == [2] * len(cases)
    assert len(lines) == len(cases)
    for line, (_, message) in zip(lines, cases, strict=True):
        assert message in line
    assert not (tmp_path / "train").exists()


def test_hugging_face_llama_is_trained_on(corpus, base, tmp_path, capsys):
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = RECIPE["model"]
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=shape["width"],
        intermediate_size=shape["hidden"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        max_position_embeddings=shape["max_positions"],
        tie_word_embeddings=shape["tie"],
        rms_norm_eps=1e-5,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "hf")
    capsys.readouterr()
    assert train_from(tmp_path / "hf", corpus, tmp_path, 20, how=RESET | {"optimizer": "keep"}) == 2
    assert "pretrain.initial.optimizer must be reset for a Hugging Face model" in capsys.readouterr().err
    assert train_from(tmp_path / "hf", corpus, tmp_path, 20) == 0
    losses = [entry["loss"] for entry in steps_of(tmp_path)]
    assert losses[-1] < losses[0] - 0.5
