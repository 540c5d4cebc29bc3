"""`model: {from: ...}`: the shape of a Hugging Face config.json, as an input of pretraining."""

import json

import pytest

from scripts.config_check import checked
from stages.lib.errors import UserError

CONFIG_JSON = {
    "vocab_size": 4096,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 256,
}


@pytest.fixture
def from_config(config):
    """The default, whose run takes its shape from a file."""
    config["runs"]["base"]["model"] = {"from": "shapes/llama"}
    return config


def test_the_file_is_an_input_of_pretraining_and_one_that_does_not_exist_is_one_sentence(finished, from_config):
    given = ("models", "--configfile", finished.write_config(from_config))
    done = finished.dry_run(*given, check=False)
    assert done.returncode == 1
    assert "runs.base.model.from must be a config.json or its directory, got shapes/llama" in done.stdout + done.stderr
    (finished.path / "shapes/llama").mkdir(parents=True)
    (finished.path / "shapes/llama/config.json").write_text(json.dumps(CONFIG_JSON))
    assert "shapes/llama/config.json" in finished.dry_run(*given).stdout


def test_without_it_the_shape_is_required(config):
    config["runs"]["base"]["model"] = {"num_hidden_layers": 2}
    sentence = r"^runs.base.model.hidden_size is missing: it must be a whole number at least 2 \(or set model.from\)$"
    with pytest.raises(UserError, match=sentence):
        checked(config)
