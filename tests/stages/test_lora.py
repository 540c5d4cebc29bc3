"""LoRA by its command line: adapters on the same loop, shardings, checkpoints and resume as all other trainings."""

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from stages import pretrain
from stages.lib import manifest
from stages.lib.checkpoints import dcp, find_model
from stages.lib.huggingface import export
from stages.lib.model.architectures import LlamaRecipe
from stages.lib.model.lora import add_adapters
from stages.lib.model.transformer import Transformer
from stages.lib.parity import adapter_parity
from tests.helpers import export_cases, training
from tests.helpers.faults import flip_bit
from tests.helpers.training import MODEL, MODELS, events_of, milestone, run_directory, steps_of, weights_of
from tests.stages import test_finetune
from tests.stages.test_finetune import BASE_STEPS, converted, options, refused, tune
from tools.generate import __main__ as generate

LORA = {"rank": 4, "dropout": 0.1}
RECIPE = test_finetune.RECIPE | {"lora": LORA}
STEPS = 12

made = test_finetune.made


def checkpoint(run, step):
    """The directory of a checkpoint."""
    return run_directory(run) / "checkpoints" / f"{step:08d}"


@pytest.fixture(scope="module")
def uninterrupted(made):
    """A run that nothing disturbed, below the results, where tools find the tokenizer."""
    run = made / "runs/lora"
    assert tune(made, run, STEPS, recipe=RECIPE) == 0
    return run


def logits_with_adapters(found, base, tokens):
    """Logits of the model with its adapters beside the frozen matrices, as in training."""
    model = find_model.load(base, torch.float32, "cpu")
    add_adapters(model, found.adapter.recipe)
    keys = [name for name, parameter in model.named_parameters() if "lora_" in name]
    model.load_state_dict(found.adapter.tensors(keys), strict=False, assign=True)
    with torch.no_grad():
        return model.eval().logits(tokens)


def test_training_starts_at_the_base_and_learns_adapters_alone(made, uninterrupted, tmp_path):
    keys = dcp.keys_of(checkpoint(uninterrupted, STEPS))
    weights = [key for key in keys if not key.startswith(("optimizer.", "loss_guard.")) and key != "rng"]
    assert len(weights) == 2 * 2 * 7  # layers, matrices, projections
    assert all(".lora_" in key for key in keys if key.startswith(("adapter.", "optimizer.", "model.")))
    assert tune(made, tmp_path, 1) == 0  # without LoRA
    losses = [step["loss"] for step in steps_of(uninterrupted)]
    assert losses[0] == steps_of(tmp_path)[0]["loss"]
    assert losses[-1] < losses[0]
    (start,) = (event for event in events_of(uninterrupted) if event["event"] == "start")
    assert start["trained_parameters"] < start["parameters"]


def test_merged_model_equals_base_and_adapters(made, uninterrupted):
    found = find_model.find(milestone(uninterrupted, STEPS))
    base = find_model.find(milestone(made / "runs/base", BASE_STEPS))
    tokens = torch.randint(320, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        merged = find_model.load(found, torch.float32, "cpu").logits(tokens)
        before = find_model.load(base, torch.float32, "cpu").logits(tokens)
    assert (merged - before).abs().max() > 0.01
    assert (merged - logits_with_adapters(found, base, tokens)).abs().max() < 1e-5


def test_run_cut_into_milestones_ends_in_the_same_bits(made, uninterrupted, tmp_path):
    for previous, until in ((None, 7), (7, STEPS)):
        assert tune(made, tmp_path, until, recipe=RECIPE, previous=previous, micro_batch_size=2) == 0
    assert weights_of(tmp_path, STEPS) == weights_of(uninterrupted, STEPS)


HYBRID = {"sharding": "hybrid-full", "shard_degree": 2}
# (ranks, operation) of runs that must agree
ALL = [
    (1, {"micro_batch_size": 3}),
    (2, {"sharding": "full", "activation_checkpointing": {"mode": "full"}}),
    (1, {"micro_batch_size": 6, "activation_checkpointing": {"mode": "selective"}}),
    (2, {"sharding": "grad"}),
    (2, {"sharding": "none", "activation_checkpointing": {"mode": "offload"}}),
    (3, {"sharding": "full"}),
    (6, {"sharding": "full"}),
    (6, HYBRID),
    (6, HYBRID | {"sharding": "hybrid-grad"}),
]


@pytest.mark.long
def test_ranks_shardings_and_recomputation_change_nothing_in_float64(made, tmp_path):
    recipe, losses = RECIPE | {"dtype": "float64"}, []  # with dropout
    for number, (ranks, operation) in enumerate(ALL):
        run, keys = tmp_path / str(number), {"steps": 30, "micro_batch_size": 1} | operation
        training.run_on(ranks, "stages.finetune", *options(made, run, 30, recipe=recipe, **keys))
        losses.append([step["loss"] for step in steps_of(run)])
    assert len(losses[0]) == 30
    for other, run in zip(losses[1:], ALL[1:], strict=True):
        assert max(abs(a - b) for a, b in zip(losses[0], other, strict=True)) < 1e-9, run


@pytest.mark.long
def test_compiled_run_trains_the_same_adapters(made, tmp_path):
    losses = []
    for compiled in (False, True):
        run = tmp_path / str(compiled)
        operation = {"compile": compiled, "activation_checkpointing": {"mode": "full"}, "micro_batch_size": 3}
        assert tune(made, run, 4, recipe=RECIPE | {"dtype": "float64"}, **operation) == 0
        losses.append([step["loss"] for step in steps_of(run)])
    assert max(abs(a - b) for a, b in zip(*losses, strict=True)) < 1e-9


def test_adapters_are_exported_beside_the_merged_model_as_peft_loads_them(made, uninterrupted, tmp_path):
    assert converted(made, milestone(uninterrupted, STEPS), tmp_path, merge=False) == 0
    report = json.loads((tmp_path / "parity.json").read_text())
    assert report["adapter"]["checks"] == ["config", "tensors", "logits of peft"]
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(milestone(made / "runs/base", BASE_STEPS))
    assert {f"adapter/{name}" for name in ("adapter_config.json", "adapter_model.safetensors")} < {
        *manifest.read(tmp_path / "manifest.json").identity["outputs"]
    }

    base = tmp_path / "base"
    assert converted(made, milestone(made / "runs/base", BASE_STEPS), base) == 0
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = torch.randint(320, (2, 40), generator=torch.Generator().manual_seed(0))
    found = find_model.find(milestone(uninterrupted, STEPS))
    ours = logits_with_adapters(found, find_model.find(base), tokens)
    with torch.no_grad():
        for model in (theirs, merged):
            assert (model(tokens).logits - ours).abs().max() < 1e-5


def test_damaged_adapter_fails_the_parity_check(made, uninterrupted, tmp_path, monkeypatch):
    whole = export.peft_tensors

    def damaged(*arguments):
        return {key: tensor.flip(0) if "lora_B" in key else tensor for key, tensor in whole(*arguments).items()}

    for module in (export, adapter_parity):
        monkeypatch.setattr(module, "peft_tensors", damaged)
    assert converted(made, milestone(uninterrupted, STEPS), tmp_path, merge=False) == 1
    report = json.loads((tmp_path / "parity.json").read_text())
    assert report["failure"].startswith("logits differ by ")
    assert not (tmp_path / "manifest.json").exists()
    assert not (tmp_path / "adapter").exists()


def test_bfloat16_freezes_the_base_in_bfloat16(made, tmp_path):
    recipe = RECIPE | {"dtype": "bfloat16", "lora": LORA | {"target_modules": ["q_proj", "down_proj"]}}
    assert tune(made, tmp_path, 2, recipe=recipe) == 0
    paths = (milestone(tmp_path, 2), milestone(made / "runs/base", BASE_STEPS))
    found, base = map(find_model.find, paths)
    fused = "base_model.layers.0.attn.in_proj.qkv_fused.weight"
    merged, rounded = found.read([fused])[fused], base.read([fused])[fused].bfloat16().float()
    assert merged.dtype == torch.float32
    assert not torch.equal(merged[:32], rounded[:32])  # rows of queries
    assert torch.equal(merged[32:], rounded[32:])
    keys = [key for key in dcp.keys_of(checkpoint(tmp_path, 2)) if key.startswith("adapter.")]
    assert {key.split(".")[-2] for key in keys} == {"q_proj", "down_proj"}
    assert {tensor.dtype for tensor in dcp.load_tensors(checkpoint(tmp_path, 2), keys).values()} == {torch.float32}


def test_merged_model_is_tuned_further(made, uninterrupted, tmp_path):
    given = {"--initial": milestone(uninterrupted, STEPS)}
    for name, recipe in (("full", test_finetune.RECIPE), ("lora", RECIPE)):
        assert tune(made, tmp_path / name, 1, recipe=recipe, given=given) == 0
    losses = [steps_of(tmp_path / name)[0]["loss"] for name in ("full", "lora")]
    assert losses[0] == losses[1] < steps_of(uninterrupted)[0]["loss"]
    assert find_model.find(milestone(tmp_path / "lora", 1)).adapter.base == checkpoint(uninterrupted, STEPS)


def test_base_of_a_base_that_changed_is_not_exported(made, uninterrupted, tmp_path, capsys):
    assert tune(made, tmp_path, 1, recipe=RECIPE, given={"--initial": milestone(uninterrupted, STEPS)}) == 0
    (file,) = checkpoint(made / "runs/base", BASE_STEPS).glob("*.distcp")
    flip_bit(file)
    try:
        assert converted(made, milestone(tmp_path, 1), tmp_path / "export") == 2
    finally:
        flip_bit(file)
    assert f"{file} changed since it was written" in capsys.readouterr().err
    assert not (tmp_path / "export/manifest.json").exists()


def test_base_that_was_moved_or_changed_is_named(made, tmp_path, capsys):
    config, vocab_size = LlamaRecipe(**training.MODEL), 320
    for name, seed in (("base", 0), ("other", 1)):
        torch.manual_seed(seed)
        (tmp_path / name).mkdir()
        export_cases.write_export(tmp_path / name, config, Transformer(config, vocab_size), vocab_size=vocab_size)
    run = made / "runs/of_directory"
    assert tune(made, run, 1, recipe=RECIPE, given={"--initial": tmp_path / "base"}) == 0
    (tmp_path / "base").rename(tmp_path / "moved")

    def generated(*options):
        capsys.readouterr()
        command = ["--model", str(milestone(run, 1)), "--prompt", "The ", "--tokens", "1"]
        return generate.main([*command, *map(str, options)]), capsys.readouterr().err

    code, error = generated()
    assert code == 2
    assert f"holds adapters alone, and their base {tmp_path / 'base'} does not exist; name it with --base" in error
    assert generated("--base", tmp_path / "moved")[0] == 0
    code, error = generated("--base", tmp_path / "other")
    assert code == 2
    assert f"{tmp_path / 'other'} is not the base of the adapters in " in error


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"lora": {"rank": 2, "target_modules": []}}, "lora.target_modules must be all-linear or have at least one of"),
        (
            {"lora": {"rank": 2, "target_modules": ["q_proj", "query"]}},
            "lora.target_modules must be all-linear or some of q_proj, k_proj, v_proj, o_proj, gate_proj, "
            "up_proj, down_proj, got 'query', which matches no module",
        ),
        ({"optimizer": {"name": "muon"}}, "optimizer.name must be adamw with lora, got muon"),
    ],
)
def test_mistake_is_one_line_and_leaves_nothing(made, tmp_path, capsys, keys, sentence):
    line = refused(capsys, made, tmp_path, recipe=RECIPE | keys)
    assert line.startswith(f"finetune: finetune.{sentence}")


def test_what_adapters_do_not_go_with_is_one_line(made, uninterrupted, tmp_path, capsys):
    recipe = training.RECIPE | {"initial": {"optimizer": "keep", "schedule": "reset", "data": "reset"}}
    given = training.options(made / "tokens/main/manifest.json", tmp_path, 2, recipe=recipe)
    assert pretrain.main([*given, "--initial", str(milestone(uninterrupted, STEPS))]) == 2
    assert converted(made, milestone(made / "runs/base", BASE_STEPS), tmp_path, merge=False) == 2
    kept, apart = capsys.readouterr().err.splitlines()
    assert "pretrain.initial.optimizer must be reset for a model that LoRA trained, got keep" in kept
    assert "convert.merge must be true for a model that was not trained with LoRA" in apart


def test_adapters_beside_attention_are_exported_as_peft_loads_them(made, tmp_path, capsys):
    sparse, recipe = made / "runs/sparse", training.RECIPE | {"model": MODEL | MODELS["mixtral"]}
    assert training.train(made / "tokens/main/manifest.json", sparse, BASE_STEPS, recipe=recipe, steps=BASE_STEPS) == 0
    run, given = tmp_path / "run", {"--initial": milestone(sparse, BASE_STEPS)}
    recipe = RECIPE | {"lora": {"rank": 2, "target_modules": ["q_proj", "up_proj"]}}
    line = refused(capsys, made, tmp_path / "none", recipe=recipe, given=given)
    assert line.startswith("finetune: finetune.lora.target_modules must be all-linear or some of q_proj, ")
    assert line.endswith("that the model has, got 'up_proj', which matches no module of it")
    assert tune(made, run, 4, recipe=RECIPE, given=given) == 0
    assert converted(made, milestone(run, 4), tmp_path / "export", merge=False) == 0
    report = json.loads((tmp_path / "export/parity.json").read_text())
    assert report["adapter"]["checks"] == ["config", "tensors", "logits of peft"]
    config = json.loads((tmp_path / "export/adapter/adapter_config.json").read_text())
    assert config["target_modules"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert converted(made, milestone(sparse, BASE_STEPS), tmp_path / "base") == 0
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "export"))
    changed = {name.split(".")[-2] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj"}
