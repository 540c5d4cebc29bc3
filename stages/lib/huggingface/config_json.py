"""config.json of Hugging Face models: reading what transformers 4 and 5 write, and writing our own.

What our models do not support is refused by its key; keys that change no logit (use_cache, dropout, token ids) are
ignored. A missing key has the default of transformers.
"""

import argparse
import dataclasses
import json
import math
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stages.lib import files, recipe
from stages.lib.errors import UserError
from stages.lib.huggingface.weight_files import CONFIG
from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.model.model_recipe import ModelRecipe, RopeScaling

GENERATION_CONFIG = "generation_config.json"


def config_of(
    model_config: ModelRecipe, tokenizer: dict[str, Any], dtype: str, pad: int | None = None
) -> dict[str, Any]:
    """The content of config.json.

    `tokenizer`: of the corpus' manifest (vocab_size, bos, eos, bos_added). `pad`: id of the token that fills batches.
    """
    # here, since the workflow reads a config.json without numpy
    from stages.lib.tokenizer.prompt_tokenizer import first_token

    return {
        "architectures": [model_config.hf_class],
        "model_type": model_config.architecture,
        "vocab_size": tokenizer["vocab_size"],
        **shape_of(model_config),
        "rope_theta": model_config.rope_theta,
        "rope_scaling": None if model_config.rope_scaling is None else dataclasses.asdict(model_config.rope_scaling),
        **model_config.fixed,
        "attention_dropout": 0.0,
        "use_cache": True,
        "bos_token_id": first_token(tokenizer),
        "eos_token_id": tokenizer["eos"],
        "pad_token_id": pad,
        "dtype": dtype,
    }


def shape_of(model_config: ModelRecipe) -> dict[str, Any]:
    """The keys of a config that config.json has under the same names, with the defaults filled in."""
    filled = {"num_key_value_heads": model_config.kv_heads, "head_dim": model_config.head_size}
    return {name: filled.get(name, getattr(model_config, name)) for name in _plain_fields(type(model_config))}


def _plain_fields(architecture: type[ModelRecipe]) -> list[str]:
    """The fields of a config that are read and written one by one."""
    others = ("architecture", "rope_theta", "rope_scaling")
    return [field.name for field in dataclasses.fields(architecture) if field.name not in others]


def files_of(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """{name: content} of config.json and generation_config.json, which has the ids that generation needs."""
    generation = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {CONFIG: config, GENERATION_CONFIG: generation}


def read_config(config: Any, path: Path | str) -> tuple[ModelRecipe, int]:
    """(model config, vocabulary size) of a config.json's content. Raises UserError naming `path` and the key."""
    if not isinstance(config, dict):
        raise UserError(f"{path} must hold a mapping as transformers writes it, found a {type(config).__name__}")
    model_type = config.get("model_type")
    known = ARCHITECTURES.types
    if model_type is not None and (not isinstance(model_type, str) or model_type not in known):
        raise _refusal(path, "model_type", f"be {' or '.join(map(json.dumps, known))}", model_type)
    architecture = known[ARCHITECTURES.default if model_type is None else model_type]
    for key, value in {
        "architectures": [architecture.hf_class],
        **architecture.fixed,
        "quantization_config": None,
    }.items():
        if config.get(key) not in (None, value):
            raise _refusal(path, key, f"be {json.dumps(value)}", config[key])
    theta, scaling = _rope(config, path, architecture.hf_defaults.get("rope_theta", 10000.0))
    keys = {name: _value(config, name, architecture, path) for name in _plain_fields(architecture)}
    # our defaults: so an export gives the recipe that was trained
    if keys["num_key_value_heads"] == keys["num_attention_heads"]:
        keys["num_key_value_heads"] = None
    if keys["head_dim"] and keys["head_dim"] * keys["num_attention_heads"] == keys["hidden_size"]:
        keys["head_dim"] = None
    name = config.get("model_type") or ARCHITECTURES.default
    model_config = architecture(architecture=name, rope_theta=theta, rope_scaling=scaling, **keys)
    if problem := model_config.problem():
        raise UserError(f"{path}: {problem}")
    return model_config, _whole(config, "vocab_size", path)


def file_of(path: Path | str) -> Path:
    """Return the config.json at a path, or in the directory there."""
    return Path(path, CONFIG) if Path(path).is_dir() else Path(path)


def model_identity(path: Path | str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the identity keys of a model whose shape is that of a config.json, or its directory, with `overrides`."""
    file = file_of(path)
    model_config, _ = read_config(files.read_json(file), file)
    keys = recipe.written(model_config, "identity") | overrides
    return recipe.written(recipe.load(ARCHITECTURES, keys, "model"), "identity")


def keys_of_option(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the recipe keys that --model-config gives; those of --recipe override them."""
    return {} if arguments.model_config is None else {"model": model_identity(arguments.model_config, {})}


def _value(config: dict[str, Any], name: str, architecture: type[ModelRecipe], path: Path | str) -> Any:
    """The value of a field in a config.json, by the field's type; transformers' default if the key is missing."""
    (field,) = (field for field in dataclasses.fields(architecture) if field.name == name)
    hint = typing.get_type_hints(architecture)[name]
    if recipe.is_union(hint):
        (hint,) = recipe.members_of(hint)
        if name in config and config[name] is None:
            return None
    default = architecture.hf_defaults.get(name, recipe.default_of(field))
    if config.get(name) is None and default is not dataclasses.MISSING:
        return default
    readers: dict[Any, Callable[..., Any]] = {int: _whole, float: _number, bool: _flag}
    if hint is float and field.metadata.get("minimum") == 0:
        return _number(config, name, path, may_be_zero=True)
    return readers[hint](config, name, path)


def _rope(config: dict[str, Any], path: Path | str, default: float) -> tuple[float, RopeScaling | None]:
    """(theta, scaling): transformers 5 has both in rope_parameters, transformers 4 rope_theta beside rope_scaling."""
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = config.get(key) or {}
    if not isinstance(rope, dict):
        raise _refusal(path, key, "be a mapping", rope)
    for prefix, found in (("", config.get("partial_rotary_factor")), (f"{key}.", rope.get("partial_rotary_factor"))):
        if found not in (None, 1):
            raise _refusal(path, f"{prefix}partial_rotary_factor", "be 1", found)
    theta = _number(rope if "rope_theta" in rope else config, "rope_theta", path, default)
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


def _number(
    config: dict[str, Any], key: str, path: Path | str, default: float | None = None, may_be_zero: bool = False
) -> float:
    found: Any = default if config.get(key) is None else config[key]
    if type(found) not in (int, float) or not (math.isfinite(found) and (found > 0 or (may_be_zero and found == 0))):
        raise _refusal(path, key, f"be a number {'at least' if may_be_zero else 'greater than'} 0", found)
    return float(found)


def _flag(config: dict[str, Any], key: str, path: Path | str) -> bool:
    found = config.get(key, False)
    if type(found) is not bool:
        raise _refusal(path, key, "be true or false", found)
    return found


def _refusal(path: Path | str, key: str, expected: str, found: Any) -> UserError:
    return UserError(f"{path}: {key} must {expected}, got {json.dumps(found)}")
