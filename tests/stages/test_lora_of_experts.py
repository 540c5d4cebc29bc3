"""LoRA on a sparse model: adapters beside attention; the router and its experts stay as they are."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers import training
from tests.helpers.training import MODEL, MODELS, milestone
from tests.stages import test_finetune
from tests.stages.test_finetune import BASE_STEPS, refused, tune
from tests.stages.test_lora import RECIPE, converted

STEPS = 4

made = test_finetune.made


@pytest.fixture(scope="module")
def base(made):
    """A sparse run on the same corpus."""
    run, recipe = made / "runs/sparse", training.RECIPE | {"model": MODEL | MODELS["mixtral"]}
    assert training.train(made / "tokens/main/manifest.json", run, BASE_STEPS, recipe=recipe, steps=BASE_STEPS) == 0
    return run


def test_adapters_beside_attention_are_exported_as_peft_loads_them(made, base, tmp_path):
    run, given = tmp_path / "run", {"--initial": milestone(base, BASE_STEPS)}
    assert tune(made, run, STEPS, recipe=RECIPE, given=given) == 0
    assert converted(made, run, tmp_path / "export", STEPS, merge=False) == 0
    report = json.loads((tmp_path / "export/parity.json").read_text())
    assert report["adapter"]["checks"] == ["config", "tensors", "logits of peft"]
    config = json.loads((tmp_path / "export/adapter/adapter_config.json").read_text())
    assert config["target_modules"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert converted(made, base, tmp_path / "base", BASE_STEPS) == 0
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "export"))
    changed = {name.split(".")[-2] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj"}


def test_projections_that_a_sparse_model_has_not_are_refused(made, base, tmp_path, capsys):
    recipe = RECIPE | {"lora": {"rank": 2, "target_modules": ["q_proj", "up_proj"]}}
    line = refused(capsys, made, tmp_path, recipe=recipe, given={"--initial": milestone(base, BASE_STEPS)})
    assert line.startswith("finetune: finetune.lora.target_modules must be all-linear or some of q_proj, ")
    assert line.endswith("that the model has, got 'up_proj', which matches no module of it")
