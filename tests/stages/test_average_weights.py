"""Averaged weights: a model like any other, whose tensors are the means of those of milestones."""

import json
import shutil

import numpy as np
import pytest
import torch

from stages import average_weights, pretrain
from stages.lib import manifest
from stages.lib.checkpoints import dcp, find_model
from stages.lib.model import key_table
from tests.helpers import training
from tests.helpers.faults import flip_bit
from tests.helpers.training import BASE_STEPS, milestone
from tests.stages import test_finetune
from tests.stages.test_finetune import converted, tune

made = test_finetune.made


@pytest.fixture(scope="module")
def base(made, tmp_path_factory):
    """A run with milestones at three steps, beside the results with its corpus."""
    run = tmp_path_factory.mktemp("base")
    for previous, until in ((None, 4), (4, 6), (6, BASE_STEPS)):
        assert training.train(made / "tokens/main/manifest.json", run, until, previous=previous, steps=BASE_STEPS) == 0
    return run


def averaged(models, home, count=None):
    """Run the stage; return its exit code."""
    output = milestone(home, BASE_STEPS)
    words = ["--models", *models, "--directory", home / "average", "--output", output, "--log", home / "log"]
    recipe = {"num_milestones": count or len(models)}
    return average_weights.main([*map(str, words), "--recipe", json.dumps(recipe)])


def tensors_of(directory):
    keys = [key for key in dcp.keys_of(directory) if key.startswith("model.")]
    return {key: tensor.numpy() for key, tensor in dcp.load_tensors(directory, keys).items()}


def test_tensors_are_the_means_of_the_milestones_and_equal_bits_again(made, base, tmp_path):
    models = [milestone(base, step) for step in (BASE_STEPS, 4, 6)]
    assert averaged(models, tmp_path) == 0
    checkpoint = tmp_path / f"average/checkpoints/{BASE_STEPS:08d}"
    (train,) = (base / "train").iterdir()
    several = [tensors_of(train / f"checkpoints/{step:08d}") for step in (4, 6, BASE_STEPS)]
    means = tensors_of(checkpoint)
    assert means.keys() == several[0].keys() == {*dcp.keys_of(checkpoint)}
    for key, mean in means.items():
        exact = np.mean([tensors[key].astype(np.float64) for tensors in several], axis=0)
        assert mean.dtype == several[0][key].dtype
        assert np.array_equal(mean, exact.astype(mean.dtype)), key
    first = manifest.read(milestone(tmp_path, BASE_STEPS), *manifest.MODELS)
    shutil.copytree(checkpoint, checkpoint.with_name(f".{checkpoint.name}.0.making"))  # as a kill leaves it
    (checkpoint.with_name(f".{checkpoint.name}.0.making") / "commit.json").unlink()
    assert averaged(models, tmp_path) == 0
    assert manifest.read(first.path).digest == first.digest
    assert [path.name for path in checkpoint.parent.iterdir()] == [checkpoint.name]


def test_the_mean_is_exported_with_parity_and_trainings_start_from_it(made, base, tmp_path, capsys):
    assert averaged([milestone(base, step) for step in (6, BASE_STEPS)], tmp_path) == 0
    mean = milestone(tmp_path, BASE_STEPS)
    assert converted(made, mean, tmp_path / "export") == 0
    assert json.loads((tmp_path / "export/parity.json").read_text())["passed"] is True
    assert tune(made, tmp_path / "tuned", 2, given={"--initial": mean}) == 0
    tuned = manifest.read(milestone(tmp_path / "tuned", 2), "finetune")
    assert tuned.identity["initial"] == manifest.checkpoint_digest(manifest.read(mean))
    recipe = training.RECIPE | {"initial": {"optimizer": "keep", "schedule": "reset", "data": "reset"}}
    options = training.options(made / "tokens/main/manifest.json", tmp_path / "again", 2, recipe=recipe)
    assert pretrain.main([*options, "--initial", str(mean)]) == 2
    assert "pretrain.initial.optimizer must be reset for averaged weights" in capsys.readouterr().err


def test_of_a_run_with_lora_the_weights_with_the_adapters_added_are_averaged(made, tmp_path):
    run, recipe = made / "runs/averaged_lora", test_finetune.RECIPE | {"lora": {"rank": 2}}
    for previous, until in ((None, 2), (2, BASE_STEPS)):
        assert tune(made, run, until, recipe=recipe, previous=previous) == 0
    models = [milestone(run, step) for step in (2, BASE_STEPS)]
    assert averaged(models, tmp_path) == 0
    found = [find_model.find(path) for path in (*models, milestone(tmp_path, BASE_STEPS))]
    assert found[2].adapter is None
    for weight in key_table.build(found[2].model_config, found[2].vocab_size).weights:
        first, second, mean = (one.read([weight.key])[weight.key] for one in found)
        assert torch.equal(mean, ((first.double() + second) / 2).to(mean.dtype)), weight.key


def test_models_that_are_no_milestones_of_one_run_or_changed_are_refused(made, base, tmp_path, capsys):
    others = tmp_path / "others"
    corpus, recipe = made / "tokens/main/manifest.json", training.RECIPE | {"seed": 1}
    assert training.train(corpus, others, 2, recipe=recipe, steps=BASE_STEPS) == 0
    first, last = milestone(base, 4), milestone(base, BASE_STEPS)
    cases = (
        ([first, milestone(others, 2)], 2, f"--models must be milestones of one run, and {milestone(others, 2)} has "),
        ([first, last], 3, "--models must name num_milestones (3) manifests, got 2"),
        ([first, first], 2, "--models must be milestones of different steps, got the steps 4, 4"),
    )
    for models, count, sentence in cases:
        assert averaged(models, tmp_path / "mean", count) == 2
        assert sentence in capsys.readouterr().err
    copied = shutil.copytree(base, tmp_path / "copied")
    (train,) = (copied / "train").iterdir()
    models, before = [milestone(copied, step) for step in (6, BASE_STEPS)], tensors_of(next(train.glob("*/*8")))
    words = ["--models", *models, "--recipe", '{"num_milestones": 2}', "--log", tmp_path / "log"]
    elsewhere, taken = tmp_path / "elsewhere", f"--directory {train} has a milestone that is averaged"
    for more, sentence in (
        (["--directory", train, "--output", elsewhere / "1.json"], taken),
        (["--directory", elsewhere, "--output", models[0]], f"--output {models[0]} is one of --models"),
    ):
        assert average_weights.main([*map(str, words), *map(str, more)]) == 2
        assert sentence in capsys.readouterr().err
    assert tensors_of(next(train.glob("*/*8"))).keys() == before.keys() and not elsewhere.exists()
    (file,) = copied.glob("train/*/checkpoints/00000004/*.distcp")
    flip_bit(file)
    assert averaged([milestone(copied, 4), milestone(copied, 6)], tmp_path / "mean") == 2
    assert f"{file.name} changed since it was written" in capsys.readouterr().err
    assert not (tmp_path / "mean/average").exists() and not milestone(tmp_path / "mean", BASE_STEPS).exists()
