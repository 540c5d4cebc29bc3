"""config.json: both forms of transformers, and the keys that are not supported."""

import pytest

from stages.lib.errors import UserError
from stages.lib.huggingface.config_json import read_config
from stages.lib.model.architectures import LlamaRecipe
from stages.lib.model.model_recipe import RopeScaling
from tests.helpers.export_cases import SMALL

LLAMA_2 = {  # as transformers 4 writes it
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "vocab_size": 300,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
MIXTRAL = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
LLAMA_3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
    "rope_type": "llama3",
}
SCALING = RopeScaling(factor=32.0, original_max_position_embeddings=128)


def without(*keys):
    return {key: value for key, value in LLAMA_2.items() if key not in keys}


def recipe_of(config):
    return read_config(config, "config.json")[0]


def test_a_config_of_transformers_4():
    assert read_config(LLAMA_2, "config.json") == (LlamaRecipe(**SMALL), 300)
    with pytest.raises(UserError, match="config.json must hold a mapping"):
        read_config([], "config.json")


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5, "rope_scaling": LLAMA_3},
        {"rope_theta": 500000, "rope_scaling": {**LLAMA_3, "type": "llama3"}},
        {"rope_parameters": {**LLAMA_3, "rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_parameters": LLAMA_3, "rope_scaling": None},
    ],
)
def test_scaled_frequencies_in_the_forms_of_transformers_4_and_5(rope):
    found = recipe_of(without("rope_theta", "rope_scaling") | rope)
    assert found == LlamaRecipe(**SMALL, rope_theta=5e5, rope_scaling=SCALING)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"architectures": ["MistralForCausalLM"]}, 'architectures must be ["LlamaForCausalLM"], got ["MistralForCa'),
        ({"model_type": "gpt2"}, 'model_type must be "llama" or "mistral" or'),
        ({"hidden_act": "gelu"}, 'hidden_act must be "silu", got "gelu"'),
        ({"mlp_bias": True}, "mlp_bias must be false, got true"),
        ({"quantization_config": {"bits": 4}}, 'quantization_config must be null, got {"bits": 4}'),
        ({"head_dim": 15}, "head_dim must be an even number, got 15"),
        ({"num_attention_heads": 3}, "num_attention_heads must divide hidden_size (64) into heads of an even"),
        ({"num_key_value_heads": 3}, "num_key_value_heads must divide num_attention_heads (4), got 3"),
        ({"hidden_size": None}, "hidden_size must be a whole number of at least 1, got null"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be at most 10,000, got 1,000,000,000"),
        (
            MIXTRAL | {"num_local_experts": 10**9},
            "num_local_experts must give the model at most 131,072 experts in its",
        ),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a number greater than 0, got 0"),
        ({"rope_parameters": {"rope_type": "yarn"}}, 'rope_parameters.rope_type must be default or llama3, got "yarn"'),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling: factor must be a number greater than 0, got null"),
        ({"rope_scaling": {**LLAMA_3, "high_freq_factor": 1}}, "high_freq_factor must be greater than low_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "config.json: partial_rotary_factor must be 1, got 0.5"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_key(change, sentence):
    with pytest.raises(UserError) as caught:
        read_config(LLAMA_2 | change, "config.json")
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("config.json: ")
