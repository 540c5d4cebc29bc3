"""Model configs that an export must handle, and exports of them."""

from stages.lib.huggingface import config_json, export
from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.model.model_recipe import RopeScaling
from stages.lib.parity.tensor_parity import Export
from tests.helpers.export_fixtures import random_model, write_settings

VOCABULARY = 300
TOKENIZER = {"vocab_size": VOCABULARY, "bos": 1, "eos": 2, "bos_added": True}
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
}
CASES = {
    "mha": {},
    "gqa": {"num_key_value_heads": 2},
    "mqa": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "theta": {"rope_theta": 5e5, "num_key_value_heads": 2},
    "llama3": {"rope_theta": 5e5, "rope_scaling": RopeScaling(factor=8.0, original_max_position_embeddings=64)},
    "odd widths": {"hidden_size": 60, "num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 37},
    "bias": {"attention_bias": True, "num_key_value_heads": 2},
    "wide heads": {"head_dim": 32, "num_key_value_heads": 2},
    "window": {"architecture": "mistral", "sliding_window": 24, "num_key_value_heads": 2},
    "no window": {"architecture": "mistral", "head_dim": 24},
    "qk norm": {"architecture": "qwen3", "head_dim": 32, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "experts": {"architecture": "mixtral", "num_local_experts": 5, "num_key_value_heads": 2},
    "one head": {"hidden_size": 22, "num_attention_heads": 1, "rms_norm_eps": 1e-3},
}
"""Options of a ModelRecipe beside SMALL. The heads of "odd widths" have a dimension of 20."""


def recipe_of(case):
    """The model config of a case."""
    keys = SMALL | CASES[case]
    return ARCHITECTURES.types[keys.get("architecture", "llama")](**keys)


def reader(state):
    """A `read` over a state dict."""
    return lambda keys: {key: state[key] for key in keys}


def write_export(directory, recipe, model, dtype="float32", shard_mb=100, vocab_size=VOCABULARY):
    """Write the export of a model that is held in memory; returns both as an Export."""
    read = reader(model.state_dict())
    export.write_weights(directory, recipe, vocab_size, read, dtype, shard_mb)
    write_settings(directory, config_json.config_of(recipe, {**TOKENIZER, "vocab_size": vocab_size}, dtype))
    return Export(directory=directory, model_config=recipe, vocab_size=vocab_size, dtype=dtype, read=read)


def exported_case(directory, case, **options):
    """The export of a case with random weights."""
    recipe = recipe_of(case)
    return write_export(directory, recipe, random_model(recipe, VOCABULARY), **options)
