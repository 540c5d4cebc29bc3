"""Ladders: the runs that a config's ladder becomes, what is planned for it, and mistakes in it."""

import copy
import json
from dataclasses import dataclass

import pytest

from scripts.config.sections import Model
from scripts.config_check import checked
from scripts.sweeps import ladders
from scripts.sweeps.ladders import planned_tokens
from stages.lib import recipe as recipes
from stages.lib.model.architectures import ARCHITECTURES, LlamaRecipe
from stages.lib.model.flops import active_count
from stages.pretrain import PretrainRecipe
from tests.helpers.training import MODEL, MODELS
from tests.workflow.checkout import outputs_of
from tests.workflow.configs import mistake_in

LADDER = {"target": "base", "sizes": [4e5, 8e5, 1.5e6, 2e6], "tokens_per_parameter": [0.1, "0.2"]}
LLAMA_7B = {
    **{"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 11008},
    **{"max_position_embeddings": 4096},
}


@pytest.fixture
def config(config):
    """The embedded default with a larger model, from which ladders have room to go down: 4,212,992 parameters."""
    base = config["runs"]["base"]
    base["model"] |= {"num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 688}
    config["runs"]["statements"]["initial"]["step"] = 120
    base["pretrain"] |= {"steps": 120, "milestones": [40, 120], "global_batch_size": 8}
    base["pretrain"]["optimizer"] = {"name": "muon", "learning_rate": "4e-3"}
    return config


def with_ladder(config, **changes):
    config["ladders"] = {"tiny": {key: value for key, value in (LADDER | changes).items() if value is not None}}
    return config


def runs_of_ladder(config, **changes):
    config = checked(with_ladder(config, **changes))
    return {name: config["runs"][name] for name in config["ladders"]["tiny"]["runs"]}


def recipe_of(model):
    return recipes.load(ARCHITECTURES, model, "model")


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_counted_as_the_stages_count_them(name):
    model = recipe_of(MODEL | MODELS[name] | {"num_hidden_layers": 5})
    assert ladders.num_parameters(model, 300) == active_count(model, 300)


def test_an_added_architecture_is_counted_by_its_own_properties(config, monkeypatch):
    @dataclass(frozen=True, kw_only=True)
    class NormedRecipe(LlamaRecipe):
        architecture: str = recipes.identity(choices=("normed",))
        has_qk_norm = True

    monkeypatch.setitem(ARCHITECTURES.types, "normed", NormedRecipe)
    architecture = recipes.fields_of(Model)["architecture"]
    monkeypatch.setattr(architecture, "metadata", {"kind": "identity", "choices": ("llama", "normed")})
    model = config["runs"]["base"]["model"]
    model["architecture"] = "normed"
    num_norms = 2 * model["hidden_size"] // model["num_attention_heads"] * model["num_hidden_layers"]
    sentence = f"smaller than the target base ({4212992 + num_norms:,} parameters)"
    assert sentence in mistake_in(with_ladder(config, sizes=[4e5, 8e5, 9e6, 2e6]))


def test_each_size_and_number_of_tokens_is_a_valid_run_of_the_targets_recipe(config):
    base, runs = config["runs"]["base"], runs_of_ladder(config)
    assert list(runs)[:3] == ["tiny-313k-0.1", "tiny-313k-0.2", "tiny-920k-0.1"]
    for name, run in runs.items():
        ratio, recipe = float(name.rpartition("-")[2]), run["pretrain"]
        recipes.load(PretrainRecipe, recipe | {"model": run["model"]}, f"runs.{name}.pretrain")
        parameters = ladders.num_parameters(recipe_of(run["model"]), 4096)
        assert planned_tokens(run) == pytest.approx(ratio * parameters, rel=0.02)
        assert "milestones" not in recipe, "its schedule ends at its last milestone"
        assert recipe["weights"] == base["pretrain"]["weights"]
        warmup_steps = recipe["steps"] * 10 / 120
        assert recipe["schedule"]["warmup_steps"] == pytest.approx(warmup_steps, abs=0.5)
        rate = 4e-3 * (parameters / 4212992) ** (-1 / 3)
        assert recipe["optimizer"]["learning_rate"] == pytest.approx(rate, rel=0.01)
        assert base["pretrain"]["global_batch_size"] % recipe["global_batch_size"] == 0
        assert recipe["global_batch_size"] % recipe["micro_batch_size"] == 0


@pytest.mark.parametrize("size", [70e6, 190e6, 1e9, 3e9])
def test_a_smaller_llama_keeps_the_proportions_of_7b(size):
    model = ladders.of_size(recipe_of(LLAMA_7B), size, 32000)
    assert ladders.num_parameters(model, 32000) == pytest.approx(size, rel=0.3)
    assert model.hidden_size // model.num_attention_heads == 128
    assert 0.6 < model.hidden_size / model.num_hidden_layers / 128 < 1.7
    assert model.intermediate_size / model.hidden_size == pytest.approx(11008 / 4096, rel=0.02)


def test_a_size_below_each_model_of_a_wide_target_is_one_sentence(config):
    config["runs"]["base"]["model"]["num_hidden_layers"] = 1
    assert "near a model with the target's head size" in mistake_in(with_ladder(config, sizes=[10, 4e5, 8e5, 1e6]))


def test_query_heads_per_key_value_head_stay_if_they_can():
    target = recipe_of(LLAMA_7B | {"num_key_value_heads": 8})
    assert ladders.of_shape(target, {"hidden_size": 2048, "num_hidden_layers": 16}).num_key_value_heads == 4


def test_keys_of_a_size_are_taken_as_they_are(config):
    size = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    rate = {"parameters": "2e6", "learning_rate": "1e-3", "global_batch_size": 2}
    runs = list(runs_of_ladder(config, sizes=[4e5, 8e5, size, rate]).values())
    assert {key: runs[4]["model"][key] for key in size} == size
    assert (runs[4]["model"]["intermediate_size"], runs[4]["model"]["tie_word_embeddings"]) == (344, True)
    assert (runs[6]["pretrain"]["optimizer"]["learning_rate"], runs[6]["pretrain"]["global_batch_size"]) == (1e-3, 2)


def test_the_learning_rate_falls_with_the_number_of_tokens(config):
    whole = planned_tokens(config["runs"]["base"]) / 4212992
    plain = runs_of_ladder(config)
    scaled = runs_of_ladder(config, horizon_exponent="0.3")
    for name, run in scaled.items():
        rate, ratio = plain[name]["pretrain"]["optimizer"]["learning_rate"], float(name.rpartition("-")[2])
        expected = rate * (whole / ratio) ** 0.3
        assert run["pretrain"]["optimizer"]["learning_rate"] == pytest.approx(expected, rel=0.01)


def test_muons_learning_rate_and_data_stages_follow_the_size(config):
    recipe = config["runs"]["base"]["pretrain"]
    recipe["optimizer"]["muon"] = {"learning_rate": 0.04}
    recipe["data_stages"] = [{"step": 60, "weights": {"code": 1}}]
    for run in runs_of_ladder(config).values():
        made = run["pretrain"]
        assert made["optimizer"]["muon"]["learning_rate"] == pytest.approx(
            10 * made["optimizer"]["learning_rate"], rel=0.01
        )
        assert made["data_stages"][0]["step"] == pytest.approx(made["steps"] / 2, abs=1)


def with_config_json(config, directory, **changes):
    """The config, with the shape of `base` in a config.json."""
    content = config["runs"]["base"]["model"] | {"model_type": "llama", "vocab_size": 4096} | changes
    (directory / "config.json").write_text(json.dumps(content))
    config["runs"]["base"]["model"] = {"from": str(directory)}
    return config


def test_a_target_of_a_config_json_keeps_it(config, tmp_path):
    runs = runs_of_ladder(with_config_json(config, tmp_path))
    assert next(iter(runs)) == "tiny-313k-0.1"
    assert runs["tiny-313k-0.1"]["model"]["from"] == str(tmp_path)
    assert runs["tiny-313k-0.1"]["model"]["hidden_size"] == 64


OF_CONFIG_JSON = [
    ({"num_hidden_layers": 10**9}, "num_hidden_layers must be at most 10,000, got 1,000,000,000"),
    ({"hidden_size": None}, "hidden_size must be a whole number of at least 1, got null"),
    ({"model_type": "gpt2"}, 'model_type must be "llama" or '),
]


@pytest.mark.parametrize(("changes", "sentence"), OF_CONFIG_JSON)
def test_a_config_json_that_is_not_supported_is_one_sentence(config, tmp_path, changes, sentence):
    words = f"ladders.tiny.target must have a valid model: {tmp_path / 'config.json'}: {sentence}"
    assert mistake_in(with_ladder(with_config_json(config, tmp_path, **changes))).startswith(words)


def test_a_config_json_with_a_billion_heads_comes_to_an_end(config, tmp_path):
    shape = {"num_attention_heads": 10**9, "hidden_size": 4 * 10**9}
    assert len(runs_of_ladder(with_config_json(config, tmp_path, **shape))) == 8


MISTAKES = [
    ({"sizes": [4e5, 8e5, 2e6]}, " must have at least 7 runs (sizes x tokens_per_parameter), since"),
    ({"sizes": [4e5, 8e5]}, ".sizes must be a list with at least three entries, got [400000.0, 800000.0]"),
    ({"tokens_per_parameter": [20]}, ".tokens_per_parameter must be a list with at least two"),
    ({"target": "nope"}, ".target must be a run with pretrain and without initial (base), got 'nope'"),
    ({"target": "statements"}, ".target must be a run with pretrain and without initial (base), got"),
    ({"sizes": [4e5, 8e5, 1e9, 2e6]}, ".sizes[2] must be smaller than the target base (4,212,992 param"),
    ({"sizes": [10, 4e5, 8e5, 2e6]}, ".sizes[0] must be near a model with the target's head size and voc"),
    ({"sizes": [4e5, 4.1e5, 8e5, 2e6]}, ".sizes[1] must be another model than the sizes before it: 313k"),
    ({"sizes": [4e5, 8e5, 2e6, {"hidden_size": 64}]}, ".sizes[3] must have parameters, or hidden_size"),
    ({"sizes": [4e5, 8e5, 2e6, {"parameters": 1e6, "hidden_size": 64}]}, ".sizes[3] must have"),
    ({"sizes": [4e5, 8e5, 2e6, {"layers": 2}]}, "unknown key ladders.tiny.sizes[3].layers; "),
    ({"tokens_per_parameter": [0.001, 1]}, ".sizes[0] must be trained for at least 10 steps, and"),
    ({"vocab_size": 4096}, ".vocab_size must be omitted: tokenizers.main has it"),
]


@pytest.mark.parametrize(("changes", "sentence"), MISTAKES, ids=lambda part: str(part)[:40])
def test_a_mistake_is_one_sentence(config, changes, sentence):
    sentence = sentence if sentence.startswith("unknown") else f"ladders.tiny{sentence}"
    assert mistake_in(with_ladder(config, **changes)).startswith(sentence)


def test_a_custom_tokenizer_needs_the_size_of_its_vocabulary_and_a_run_its_own_name(config):
    names = copy.deepcopy(config)
    names["runs"]["tiny-313k-0.1"] = names["runs"]["base"]
    assert mistake_in(with_ladder(names)).startswith("runs.tiny-313k-0.1 must have another name: ladders.tiny makes a")
    config["tokenizers"]["main"] = {"path": "tokenizer.json", "bos": "<s>", "eos": "</s>"}
    assert mistake_in(with_ladder(config)).startswith("ladders.tiny.vocab_size is missing")
    assert len(runs_of_ladder(config, vocab_size=4096)) == 8


def test_the_target_ladders_trains_the_ladder_and_not_its_target(pretending, config):
    sentence = "the config has no ladder (ladders.NAME with target, sizes and tokens_per_parameter)"
    assert sentence in pretending.refusal("ladders")
    config["ladders"] = {"tiny": LADDER}
    plan = pretending.plan("ladders", config=config)
    assert len(outputs_of(plan, "pretrain")) == 8
    assert not [output for output in outputs_of(plan, "pretrain") if "/base/" in output]
    assert outputs_of(plan, "predict") == ["results/ladders/tiny.json"]
    assert set(plan.values()) == {"list", "train_tokenizer", "tokenize", "index", "pretrain", "predict", "ladders"}


def test_all_trains_the_ladder_and_scores_the_target_alone(finished_checkout):
    ladder = {"target": "base", "sizes": [15e4, 3e5, 55e4], "tokens_per_parameter": [0.1, 0.2, 0.3]}
    plan = finished_checkout.plan(config=finished_checkout.default_config | {"ladders": {"tiny": ladder}})
    assert len(outputs_of(plan, "pretrain")) == 9
    assert set(plan.values()) == {"pretrain", "predict", "summarize", "all"}
