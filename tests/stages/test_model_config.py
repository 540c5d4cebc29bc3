"""The shape of a model from a Hugging Face config.json."""

import json

from stages import pretrain
from stages.lib import manifest
from tests.helpers.training import MODEL, RECIPE, milestone, options

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 9, "rms_norm_eps": 1e-5, **MODEL}


def train_with(config, corpus, results, **model):
    """Run one step with --model-config; `model`: keys of the recipe that override it."""
    (results / "config.json").write_text(json.dumps(config))
    recipe = {key: value for key, value in RECIPE.items() if key != "model"} | ({"model": model} if model else {})
    return pretrain.main([*options(corpus, results, 1, recipe=recipe), "--model-config", str(results)])


def test_the_shape_is_that_of_the_file(corpus, tmp_path):
    assert train_with(CONFIG, corpus, tmp_path) == 0
    assert manifest.read(milestone(tmp_path, 1)).identity["recipe"]["model"] == MODEL


def test_keys_of_the_recipe_override_the_file(corpus, tmp_path):
    assert train_with(CONFIG | {"num_hidden_layers": 9}, corpus, tmp_path, num_hidden_layers=2) == 0
    assert manifest.read(milestone(tmp_path, 1)).identity["recipe"]["model"] == MODEL


def test_a_shape_that_cannot_be_trained_is_one_line(corpus, tmp_path, capsys):
    assert train_with(CONFIG | {"hidden_act": "gelu"}, corpus, tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f'pretrain: {tmp_path / "config.json"}: hidden_act must be "silu", got "gelu"'
