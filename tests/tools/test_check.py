"""tools.check: recipes before the first job, stale manifests, and remarks on schedules."""

import dataclasses
import json
import os
import subprocess
import sys

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import save_file

from stages.lib import manifest
from stages.lib.checkpoints import model_files
from stages.lib.model import key_table
from stages.lib.scoring.tasks import local_tasks
from stages.lib.training.settings import requirements
from stages.registry import STAGES
from tests.helpers.data_fixtures import write_jsonl
from tests.helpers.training import MODEL, RECIPE, train
from tests.workflow.checkout import HOME

SHAPE = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
KEYS = {"steps": 300, "weights": {"code": 1}, "seq_len": 64, "global_batch_size": 8, "schedule": {"warmup_steps": 2}}
RUN = {"stage": "pretrain", "keys": KEYS, "model": SHAPE}
LLAMA = {"a": {"path": "llama", "stage": "pretrain"}}


def test_every_recipe_is_found_and_none_imports_torch():
    recipes = [stage.recipe_type for stage in STAGES.values() if stage.recipe]
    assert all(map(dataclasses.is_dataclass, recipes))
    plan = {"recipes": {"runs.a.pretrain": RUN}, "sources": [], "manifests": {}, "initial": {}, "cache": "x"}
    code = (
        "import sys; from stages.registry import STAGES; from tools.check import __main__ as check; "
        "[stage.recipe_type for stage in STAGES.values()]; "
        "assert check.main([]) == 0; assert not {'torch', 'transformers', 'lm_eval'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code]
    subprocess.run(command, input=json.dumps(plan), text=True, env=os.environ | {"PYTHONPATH": str(HOME)}, check=True)


MISTAKES = [
    ({"model": SHAPE | {"num_attention_heads": 3}}, "runs.a.model.num_attention_heads must divide hidden_size (8)"),
    ({"ranks": 3}, "runs.a.pretrain.global_batch_size must be divisible by the number of ranks (3), got 8"),
    ({"keys": KEYS | {"cuda_graphs": True}, "ranks": 2}, "runs.a.pretrain.cuda_graphs requires a training on one"),
]


def test_a_mistake_in_a_recipe_is_one_sentence(checked):
    for change, sentence in MISTAKES:
        code, said = checked({"runs.a.pretrain": RUN | change})
        assert code == 2 and said.startswith(f"check: {sentence}") and "\n" not in said


def test_a_tuned_run_may_not_be_longer_than_its_model_or_the_one_at_a_path(checked, tmp_path):
    words = "check: runs.{}.finetune.seq_len must be at most max_position_embeddings of the model that it tunes"
    words += " ({}), got {}"
    tuned = {"stage": "finetune", "keys": KEYS, "origin": "a"}
    recipes = {"runs.a.pretrain": RUN | {"model": SHAPE | {"max_position_embeddings": 64}}, "runs.b.finetune": tuned}
    assert checked(recipes)[0] == 0
    tuned["keys"] = KEYS | {"seq_len": 65}
    assert checked(recipes) == (2, words.format("b", 64, 65))
    shape = SHAPE | {"vocab_size": 300, "max_position_embeddings": 32}
    (tmp_path / "llama").mkdir()
    config = tmp_path / "llama/config.json"
    config.write_text(json.dumps(shape | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    recipes = dict.fromkeys(("runs.a.finetune", "runs.b.finetune"), tuned | {"keys": KEYS})
    initial = {"a": {"path": "llama", "stage": "finetune"}}
    assert checked(recipes, initial=initial) == (2, words.format("a", 32, 64))
    config.write_text(json.dumps(shape | {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}))
    code, said = checked(recipes, initial=initial)
    assert code == 2 and "gpt2" in said and "\n" not in said


def test_a_long_warmup_and_evaluations_that_take_a_tenth_of_the_time_are_told_and_those_by_default_do_not(checked):
    warmup = {"runs.a.pretrain": RUN | {"keys": KEYS | {"steps": 2}, "milestones": []}}
    (warning,) = checked(warmup)[1]["warnings"]
    words = "runs.a.pretrain.schedule.warmup_steps (2) should be less than steps (2): the learning rate does not reach"
    assert warning.startswith(words)
    parts = {"milestones": [f"{step:08d}.json" for step in range(15, 301, 15)]}
    assert checked({"runs.a.pretrain": RUN | parts})[1]["warnings"] == []
    often = KEYS | {"validation": {"every": 50, "tokens": 8192}}
    assert checked({"runs.a.pretrain": RUN | parts | {"keys": often}})[1]["warnings"] == [
        "runs.a.pretrain.validation may take 43% of the time of the steps: lower its tokens, or raise every"
    ]  # 24 evaluations of a third of 16 steps


def milestone(steps, **identity):
    identity = {"recipe": {"seq_len": 64}, "step": 300, "outputs": {}} | identity
    manifest.write("00000300.json", "pretrain", identity, {"horizon": {"steps": steps}})


@pytest.mark.parametrize(("kind", "jumps"), [("cosine", True), ("linear", True), ("constant", False)])
def test_steps_that_stretch_a_schedule_are_told(checked, kind, jumps):
    schedule = {"kind": kind, "warmup_steps": 2, "min_lr_ratio": 1 if kind == "constant" else 0.1}
    run = RUN | {"keys": KEYS | {"steps": 600, "schedule": schedule}, "milestones": ["00000300.json", "00000600.json"]}
    milestone(300)
    parts = {"00000300.json": {}, "00000600.json": {}}
    _, said = checked({"runs.a.pretrain": run}, manifests=parts)
    assert bool(said["warnings"]) == jumps
    assert not jumps or said["warnings"][0].startswith(
        "runs.a.pretrain.steps was 300 when step 300 was trained and is 600"
    )
    milestone(600)
    assert checked({"runs.a.pretrain": run}, manifests=parts)[1]["warnings"] == []


def test_steps_that_stretch_a_schedule_are_told_before_the_first_milestone(corpus, checked, tmp_path):
    """`corpus`: that of tests/stages."""
    assert train(corpus, tmp_path, 20) == 0
    milestone = str(tmp_path / "models/00000030.json")
    keys = {key: value for key, value in RECIPE.items() if key != "model"}
    run = {"stage": "pretrain", "keys": keys | {"steps": 60}, "model": MODEL, "milestones": [milestone]}
    warnings = {}
    for change in ({}, {"steps": 30}, {"seed": 1}):  # the last is another run
        plan = {"runs.a.pretrain": run | {"keys": run["keys"] | change}}
        warnings[str(change)] = checked(plan, manifests={milestone: {}})[1]["warnings"]
    (sentence,) = warnings.pop("{}")
    assert sentence.startswith("runs.a.pretrain.steps was 30 when step 20 was trained and is 60")
    assert list(warnings.values()) == [[], []]


def test_a_manifest_of_another_recipe_or_input_is_stale(checked, tmp_path):
    manifest.write("corpus.json", "index", {"recipe": {}, "tokenizer": {"digest": "t"}, "sources": {"code": {}}}, {})
    digest = manifest.read("corpus.json").digest
    recipe = {key: KEYS[key] for key in ("weights", "seq_len", "global_batch_size")}
    recipe |= {"schedule": {"warmup_steps": 2}, "model": SHAPE}
    recipe["weights"] = {"code": 1.0}
    milestone(300, recipe=recipe, corpus=digest, initial="other")
    parts = {"corpus.json": {"sources": ["code"]}}
    parts["00000300.json"] = {"recipe": "runs.a.pretrain", "inputs": {"corpus": "corpus.json"}}
    run = {"runs.a.pretrain": RUN}

    def stale(recipes=run, **part):
        changed = {**parts, "00000300.json": parts["00000300.json"] | part}
        return checked(recipes, manifests=changed)[1]["stale"].get("00000300.json")

    assert stale() is None
    changed = {"runs.a.pretrain": RUN | {"keys": KEYS | {"optimizer": {"learning_rate": 1}}}}
    assert stale(changed) == ("was made with optimizer = its default, and the config has {'learning_rate': 1.0}")
    assert stale({"runs.a.pretrain": RUN | {"keys": KEYS | {"micro_batch_size": 4, "steps": 900}}}) is None
    assert stale(recipe="runs.a.finetune", recipes={}) is None, "what is not checked is not compared"
    assert stale(inputs={"corpus": "00000300.json"}) == "was made from another corpus than 00000300.json"
    parts["corpus.json"]["sources"] = ["code", "prose"]
    assert (
        "was made of the sources code, and the config has code, prose"
        in checked(run, manifests=parts)[1]["stale"].values()
    )
    (tmp_path / "00000300.json").write_text("{}")
    assert stale(changed) is None, "the stage that reads a damaged manifest names it"


def test_the_digest_of_a_model_is_that_of_training_and_is_kept(checked, tmp_path, monkeypatch):
    shape = {**SHAPE, "vocab_size": 16, "max_position_embeddings": 32, "model_type": "llama", "rms_norm_eps": 1e-5}
    model = tmp_path / "llama"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(shape))
    from stages.lib.huggingface.config_json import read_config

    shapes = key_table.build(read_config(shape, "config.json")[0], 16).shapes()
    save_file({name: torch.zeros(sizes) for name, sizes in shapes.items()}, model / "model.safetensors")
    digest = model_files.digest_of(model, "--initial")  # as training calls it
    assert checked(initial=LLAMA)[1]["initial"] == {"a": digest}
    with monkeypatch.context() as patched:
        patched.setattr(model_files.files, "sha256_file", None)
        assert checked(initial=LLAMA)[1]["initial"] == {"a": digest}, "an unchanged file is not hashed again"
    milestone(300, initial="another")
    parts = {"00000300.json": {"initial": "a"}}
    said = checked(initial=LLAMA, manifests=parts)[1]["stale"]
    assert said == {"00000300.json": "was trained from another model than runs.a.initial has now"}
    milestone(300, initial=digest)
    assert checked(initial=LLAMA, manifests=parts)[1]["stale"] == {}
    code, said = checked(initial={"a": LLAMA["a"] | {"path": "nowhere"}})
    assert code == 2 and said == (
        "check: runs.a.initial.path must be the directory of a model or a model's manifest, and nowhere does not exist"
    )


def test_a_tuned_run_names_the_config_of_a_checkpoint_that_does_not_hold_it(checked, tmp_path):
    (tmp_path / "model.pth").write_bytes(b"weights")
    (tmp_path / "config.json").write_text("{}")
    tuned = {"path": "model.pth", "stage": "finetune"}
    code, said = checked(initial={"a": tuned})
    assert code == 2 and said.startswith("check: runs.a.initial.config is missing: model.pth is a checkpoint of ibm-f")
    code, said = checked(initial={"a": tuned | {"config": "none.json"}})
    assert code == 2 and said == "check: runs.a.initial.config must be a config.json, and none.json is not a file"
    first = checked(initial={"a": tuned | {"config": "config.json"}})[1]["initial"]
    (tmp_path / "config.json").write_text('{"rope_theta": 1}')
    assert checked(initial={"a": tuned | {"config": "config.json"}})[1]["initial"] != first
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama/config.json").write_text("{}")
    code, said = checked(initial={"a": LLAMA["a"] | {"config": "config.json"}})
    assert code == 2 and said.startswith("check: runs.a.initial.path llama holds its own config; leave out ")


@pytest.mark.long
def test_a_misspelt_task_of_the_harness_is_named_and_a_known_one_is_listed_once(checked, tmp_path, monkeypatch):
    suite = {"stage": "evaluate", "keys": {"tasks": ["next_line", "hellaswagg"]}}
    code, said = checked({"suites.a": suite})
    known = ", ".join(local_tasks.NAMES)
    assert code == 2 and said.startswith(f"check: suites.a.tasks: hellaswagg must be one of {known}")
    suite["keys"]["tasks"] = ["hellaswag"]
    assert checked({"suites.a": suite})[0] == 0
    monkeypatch.setattr("tools.check.known_tasks.harness.task_manager", None)
    assert checked({"suites.a": suite})[0] == 0


def test_a_sample_of_each_source_shows_its_mistakes(checked, tmp_path, monkeypatch):
    """Of those that the target does not need as well, if a person asks for it."""
    monkeypatch.setenv("CARAVAN_CHECK_FACTS", str(tmp_path / "facts.json"))
    write_jsonl(tmp_path / "a.jsonl", [{"text": f"kara {number}"} for number in range(50)])
    parquet.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "rows.parquet")
    turns = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
    write_jsonl(tmp_path / "sharegpt.jsonl", [{"conversations": turns}])
    code = {"kind": "jsonl", "paths": ["a.jsonl"], "validation": 0.2}
    for keys, sentence in (
        (code | {"paths": ["none"]}, "sources.a.paths: none matches no file"),
        (code | {"text_field": "body"}, "sources.a.max_malformed must be at least the share of malformed records, 50"),
        (code | {"validation": 1e-9}, "sources.a must have validation text, and none of its 50 documents is in the v"),
        (
            code | {"filters": {"min_words": 3}},
            "sources.a.filters leave none of 50 records (50 filters.min_words); relax these filters",
        ),
        ({"kind": "parquet", "paths": ["rows.parquet"], "text_field": "b"}, "sources.a: rows.parquet must have the"),
        ({"kind": "chat", "paths": ["a.jsonl"]}, "sources.a: a.jsonl, line 1 must have the field messages, got text"),
        ({"kind": "chat", "paths": ["sharegpt.jsonl"]}, "sources.a: sharegpt.jsonl, line 1 has turns in ShareGPT's"),
        (code, None),
    ):
        recipes = {"sources.a": {"stage": "list", "keys": keys}}
        code_, said = checked(recipes, manifests={"corpus.json": {"sources": ["a"]}})
        assert (code_, sentence) == (0, None) if sentence is None else said.startswith(f"check: {sentence}"), said


@pytest.mark.parametrize("features", ["flags\t: fpu avx2", "flags\t: fpu avx512_bf16", "Features\t: fp bf16", "", None])
def test_bfloat16_on_a_cpu_without_units_for_it_is_told(checked, tmp_path, monkeypatch, features):
    monkeypatch.setattr(requirements, "CPU_INFO", tmp_path / "cpuinfo")
    if features is not None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{features}\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    runs = {
        f"runs.{name}.pretrain": RUN | {"keys": KEYS | {"dtype": dtype}, "milestones": []}
        for name, dtype in (("a", "bfloat16"), ("b", "float32"))
    }
    assert checked(runs)[1]["warnings"] == []  # perhaps of another machine
    monkeypatch.setenv("CARAVAN_CHECK_LOCAL", "1")
    warnings = checked(runs)[1]["warnings"]
    assert len(warnings) == (features == "flags\t: fpu avx2")
    assert not warnings or warnings[0].startswith("runs.a.pretrain.dtype is bfloat16, and this CPU has no units for it")


def test_a_model_that_no_machine_holds_or_that_has_no_state_to_keep_is_refused(checked, tmp_path, monkeypatch):
    monkeypatch.setenv("CARAVAN_CHECK_LOCAL", "1")
    shape = {"num_hidden_layers": 400, "hidden_size": 12288, "num_attention_heads": 96, "intermediate_size": 33000}
    code, said = checked({"runs.a.pretrain": RUN | {"model": shape}})
    assert code == 2 and said.startswith("check: runs.a.model has 728.") and "need 11.7 TB: this machine has" in said
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama/config.json").write_text("{}")
    reset = dict.fromkeys(("optimizer", "schedule", "data"), "reset")
    run = RUN | {"keys": KEYS | {"initial": reset | {"optimizer": "keep"}}}
    code, said = checked({"runs.a.pretrain": run}, initial=LLAMA)
    assert code == 2 and said == (
        "check: runs.a.pretrain.initial.optimizer must be reset, since runs.a.initial.path llama is a Hugging Face "
        "model, which holds weights alone; got keep"
    )
