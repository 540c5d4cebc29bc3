"""The shape of a Hugging Face Llama out of its config.json, as transformers 4 and 5 write it.

What our Llama cannot be is refused by the key that asks for it; keys that change no logit (use_cache, dropout, ids of
tokens) are left alone. A key that is missing has the default of transformers' `LlamaConfig`.
"""

import json
import math

from stages.lib.errors import UserError
from stages.lib.model.llama import ModelRecipe, RopeScaling

ONLY = {  # what our Llama is, whatever a config.json may ask for
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "quantization_config": None,
}


def shape_of(config, path):
    """(ModelRecipe, vocabulary) of a config.json's content. Raises UserError naming `path` and the key."""
    if not isinstance(config, dict):
        raise UserError(f"{path} must hold the mapping that transformers writes")
    for key, value in ONLY.items():
        if config.get(key) not in (None, value):
            raise _refusal(path, key, f"be {json.dumps(value)}", config[key])
    theta, scaling = _rope(config, path)
    heads = _whole(config, "num_attention_heads", path)
    num_key_value_heads = _whole(config, "num_key_value_heads", path, heads)
    recipe = ModelRecipe(
        num_hidden_layers=_whole(config, "num_hidden_layers", path),
        hidden_size=_whole(config, "hidden_size", path),
        num_attention_heads=heads,
        num_key_value_heads=None
        if num_key_value_heads == heads
        else num_key_value_heads,  # our default: the same recipe comes back from its export
        intermediate_size=_whole(config, "intermediate_size", path),
        tie_word_embeddings=_flag(config, "tie_word_embeddings", path),
        rope_theta=theta,
        rope_scaling=scaling,
        rms_norm_eps=_number(config, "rms_norm_eps", path, 1e-6),
        max_position_embeddings=_whole(config, "max_position_embeddings", path, 2048),
        initializer_range=_number(config, "initializer_range", path, 0.02),
    )
    _check_heads(recipe, config, path)
    return recipe, _whole(config, "vocab_size", path)


def _check_heads(recipe, config, path):
    if recipe.hidden_size % (2 * recipe.num_attention_heads):
        wanted = f"divide hidden_size ({recipe.hidden_size}) into heads of an even width"
        raise _refusal(path, "num_attention_heads", wanted, recipe.num_attention_heads)
    if recipe.num_attention_heads % recipe.kv_heads:
        raise _refusal(
            path, "num_key_value_heads", f"divide num_attention_heads ({recipe.num_attention_heads})", recipe.kv_heads
        )
    if config.get("head_dim") not in (None, recipe.head_dim):
        wanted = f"be hidden_size / num_attention_heads ({recipe.head_dim})"
        raise _refusal(path, "head_dim", wanted, config["head_dim"])


def _rope(config, path):
    """(theta, RopeScaling or None): transformers 5 has both in rope_parameters, 4 rope_theta beside rope_scaling."""
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = config.get(key) or {}
    if not isinstance(rope, dict):
        raise _refusal(path, key, "be a mapping", rope)
    for place, found in (("", config.get("partial_rotary_factor")), (f"{key}.", rope.get("partial_rotary_factor"))):
        if found not in (None, 1):
            raise _refusal(path, f"{place}partial_rotary_factor", "be 1", found)
    theta = _number(rope if "rope_theta" in rope else config, "rope_theta", path, 10000.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise _refusal(path, f"{key}.rope_type", "be default or llama3", kind)
    where = f"{path}: {key}"
    scaling = RopeScaling(
        factor=_number(rope, "factor", where),
        low_freq_factor=_number(rope, "low_freq_factor", where),
        high_freq_factor=_number(rope, "high_freq_factor", where),
        original_max_position_embeddings=_whole(
            rope, "original_max_position_embeddings", where, config.get("max_position_embeddings")
        ),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        wanted = f"be greater than low_freq_factor ({scaling.low_freq_factor})"
        raise _refusal(where, "high_freq_factor", wanted, scaling.high_freq_factor)
    return theta, scaling


def _whole(config, key, path, default=None):
    found = default if config.get(key) is None else config[key]
    if type(found) is not int or found < 1:
        raise _refusal(path, key, "be a whole number of at least 1", found)
    return found


def _number(config, key, path, default=None):
    found = default if config.get(key) is None else config[key]
    if type(found) not in (int, float) or not (math.isfinite(found) and found > 0):
        raise _refusal(path, key, "be a number greater than 0", found)
    return float(found)


def _flag(config, key, path):
    found = config.get(key, False)
    if type(found) is not bool:
        raise _refusal(path, key, "be true or false", found)
    return found


def _refusal(path, key, wanted, found):
    return UserError(f"{path}: {key} must {wanted}, got {json.dumps(found)}")
