"""config.json of Hugging Face models: reading what transformers 4 and 5 write, and writing our own.

What our models do not support is refused by its key; keys that change no logit (use_cache, dropout, token ids) are
ignored. A missing key has the default of transformers' `LlamaConfig`.
"""

import json
import math
from pathlib import Path
from typing import Any

from stages.lib import files, recipe
from stages.lib.errors import UserError
from stages.lib.huggingface.weight_files import CONFIG
from stages.lib.model.architectures import ARCHITECTURES, DEFAULT, Architecture, architecture_of
from stages.lib.model.model_recipe import ModelRecipe, RopeScaling
from stages.lib.tokenizer.prompt_tokenizer import first_token

GENERATION_CONFIG = "generation_config.json"


def config_of(
    model_config: ModelRecipe, tokenizer: dict[str, Any], dtype: str, pad: int | None = None
) -> dict[str, Any]:
    """The content of config.json.

    `tokenizer`: of the corpus' manifest (vocab_size, bos, eos, bos_added). `pad`: id of the token that fills batches.
    """
    architecture = architecture_of(model_config)
    return {
        "architectures": [architecture.hf_class],
        "model_type": architecture.model_type,
        "vocab_size": tokenizer["vocab_size"],
        "hidden_size": model_config.hidden_size,
        "intermediate_size": model_config.intermediate_size,
        "num_hidden_layers": model_config.num_hidden_layers,
        "num_attention_heads": model_config.num_attention_heads,
        "num_key_value_heads": model_config.kv_heads,
        "head_dim": model_config.head_dim,
        "max_position_embeddings": model_config.max_position_embeddings,
        "rms_norm_eps": model_config.rms_norm_eps,
        "rope_theta": model_config.rope_theta,
        "rope_scaling": _scaling_of(model_config.rope_scaling),
        "tie_word_embeddings": model_config.tie_word_embeddings,
        **architecture.fixed,
        "attention_dropout": 0.0,
        "initializer_range": model_config.initializer_range,
        "use_cache": True,
        "bos_token_id": first_token(tokenizer),
        "eos_token_id": tokenizer["eos"],
        "pad_token_id": pad,
        "dtype": dtype,
    }


def files_of(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """{name: content} of config.json and generation_config.json, which has the ids that generation needs."""
    generation = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {CONFIG: config, GENERATION_CONFIG: generation}


def _scaling_of(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_position_embeddings,
    }


def read_config(config: Any, path: Path | str) -> tuple[ModelRecipe, int]:
    """(model config, vocabulary size) of a config.json's content. Raises UserError naming `path` and the key."""
    if not isinstance(config, dict):
        raise UserError(f"{path} must hold a mapping as transformers writes it, found a {type(config).__name__}")
    architecture = _architecture(config, path)
    theta, scaling = _rope(config, path)
    num_heads = _whole(config, "num_attention_heads", path)
    num_kv_heads = _whole(config, "num_key_value_heads", path, num_heads)
    model_config = architecture.config_class(
        num_hidden_layers=_whole(config, "num_hidden_layers", path),
        hidden_size=_whole(config, "hidden_size", path),
        num_attention_heads=num_heads,
        # None is our default: so an export gives the recipe that was trained
        num_key_value_heads=None if num_kv_heads == num_heads else num_kv_heads,
        intermediate_size=_whole(config, "intermediate_size", path),
        tie_word_embeddings=_flag(config, "tie_word_embeddings", path),
        rope_theta=theta,
        rope_scaling=scaling,
        rms_norm_eps=_number(config, "rms_norm_eps", path, 1e-6),
        max_position_embeddings=_whole(config, "max_position_embeddings", path, 2048),
        initializer_range=_number(config, "initializer_range", path, 0.02),
    )
    _check_heads(model_config, config, path)
    return model_config, _whole(config, "vocab_size", path)


def model_identity(path: Path | str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the identity keys of a model whose shape is that of a config.json, or its directory, with `overrides`."""
    file = Path(path, "config.json") if Path(path).is_dir() else Path(path)
    model_config, _ = read_config(files.read_json(file), file)
    keys = recipe.written(model_config, "identity") | overrides
    return recipe.written(recipe.load(ModelRecipe, keys, "model"), "identity")


def _architecture(config: dict[str, Any], path: Path | str) -> Architecture:
    """The architecture by model_type; the other keys of a config.json must not contradict it."""
    model_type = config.get("model_type")
    if model_type is not None and model_type not in ARCHITECTURES:
        raise _refusal(path, "model_type", f"be {' or '.join(map(json.dumps, ARCHITECTURES))}", model_type)
    found = DEFAULT if model_type is None else ARCHITECTURES[model_type]
    for key, value in {"architectures": [found.hf_class], **found.fixed, "quantization_config": None}.items():
        if config.get(key) not in (None, value):
            raise _refusal(path, key, f"be {json.dumps(value)}", config[key])
    return found


def _check_heads(model_config: ModelRecipe, config: dict[str, Any], path: Path | str) -> None:
    hidden_size, num_heads = model_config.hidden_size, model_config.num_attention_heads
    if hidden_size % (2 * num_heads):
        expected = f"divide hidden_size ({hidden_size}) into heads of an even dimension"
        raise _refusal(path, "num_attention_heads", expected, num_heads)
    if num_heads % model_config.kv_heads:
        expected = f"divide num_attention_heads ({num_heads})"
        raise _refusal(path, "num_key_value_heads", expected, model_config.kv_heads)
    if config.get("head_dim") not in (None, model_config.head_dim):
        expected = f"be hidden_size / num_attention_heads ({model_config.head_dim})"
        raise _refusal(path, "head_dim", expected, config["head_dim"])


def _rope(config: dict[str, Any], path: Path | str) -> tuple[float, RopeScaling | None]:
    """(theta, scaling): transformers 5 has both in rope_parameters, transformers 4 rope_theta beside rope_scaling."""
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = config.get(key) or {}
    if not isinstance(rope, dict):
        raise _refusal(path, key, "be a mapping", rope)
    for prefix, found in (("", config.get("partial_rotary_factor")), (f"{key}.", rope.get("partial_rotary_factor"))):
        if found not in (None, 1):
            raise _refusal(path, f"{prefix}partial_rotary_factor", "be 1", found)
    theta = _number(rope if "rope_theta" in rope else config, "rope_theta", path, 10000.0)
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type == "default":
        return theta, None
    if rope_type != "llama3":
        raise _refusal(path, f"{key}.rope_type", "be default or llama3", rope_type)
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
        expected = f"be greater than low_freq_factor ({scaling.low_freq_factor})"
        raise _refusal(where, "high_freq_factor", expected, scaling.high_freq_factor)
    return theta, scaling


def _whole(config: dict[str, Any], key: str, path: Path | str, default: Any = None) -> int:
    found = default if config.get(key) is None else config[key]
    if type(found) is not int or found < 1:
        raise _refusal(path, key, "be a whole number of at least 1", found)
    return found


def _number(config: dict[str, Any], key: str, path: Path | str, default: float | None = None) -> float:
    found: Any = default if config.get(key) is None else config[key]
    if type(found) not in (int, float) or not (math.isfinite(found) and found > 0):
        raise _refusal(path, key, "be a number greater than 0", found)
    return float(found)


def _flag(config: dict[str, Any], key: str, path: Path | str) -> bool:
    found = config.get(key, False)
    if type(found) is not bool:
        raise _refusal(path, key, "be true or false", found)
    return found


def _refusal(path: Path | str, key: str, expected: str, found: Any) -> UserError:
    return UserError(f"{path}: {key} must {expected}, got {json.dumps(found)}")
