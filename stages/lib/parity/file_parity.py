"""Parity of an export's files with what was meant: every key of its JSON files, and the names and shapes of tensors."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.lib import files
from stages.lib.errors import UserError
from stages.lib.huggingface import weight_files
from stages.lib.huggingface.config_json import shape_of
from stages.lib.model.key_table import KeyTable
from stages.lib.model.model_recipe import ModelRecipe
from stages.lib.parity.parity import ParityError

MISSING = object()


def compare_contents(directory: Path, expected: Mapping[str, Any]) -> None:
    """Raise ParityError naming the first key or file that differs.

    `expected`: {name: content} of JSON files, {name: sha256} of others.
    """
    for name, content in expected.items():
        if name.endswith(".json"):
            found = files.read_json(directory / name)
            if json.dumps(found, sort_keys=True) != json.dumps(content, sort_keys=True):  # a vocabulary has many keys
                _compare(f"{name}:", content, found)
        elif files.sha256_file(directory / name) != content:
            raise ParityError(f"{name} differs from the tokenizer's; rerun with -R convert")


def _compare(where: str, expected: Any, found: Any) -> None:
    if type(expected) is type(found) and isinstance(expected, dict):
        for key in sorted(expected.keys() | found.keys()):
            _compare(_inside(where, key), expected.get(key, MISSING), found.get(key, MISSING))
    elif type(expected) is type(found) and isinstance(expected, list):
        if len(expected) != len(found):
            raise ParityError(f"{where} must have {len(expected)} entries, found {len(found)}")
        for number, (a, b) in enumerate(zip(expected, found, strict=True)):
            _compare(_inside(where, str(number)), a, b)
    elif (type(expected), expected) != (type(found), found):  # true is 1 for Python
        raise ParityError(f"{where} must be {_shown(expected)}, found {_shown(found)}")


def _inside(where: str, key: str) -> str:
    return f"{where} {key}" if where.endswith(":") else f"{where}.{key}"


def _shown(value: Any) -> str:
    return "missing" if value is MISSING else f"{value!r:.200}"


def compare_shapes(directory: Path, table: KeyTable) -> None:
    """Raise ParityError unless the weight files hold the tensors of the model, in their shapes."""
    try:
        weight_files.check(directory, weight_files.file_of_tensors(directory), table.shapes())
    except UserError as error:
        raise ParityError(str(error)) from None


def compare_loaded(directory: Path, config: Mapping[str, Any], model_config: ModelRecipe) -> None:
    """Raise ParityError unless transformers loads the special tokens of config.json, and the model's shape and RoPE.

    `config`: the content of config.json. What transformers makes of its keys counts, whatever their names are.
    """
    from transformers import AutoConfig, GenerationConfig

    loaded = [AutoConfig.from_pretrained(directory), GenerationConfig.from_pretrained(directory)]
    rope: dict[str, Any] = {"rope_theta": model_config.rope_theta, "rope_type": "default"}
    if model_config.rope_scaling is not None:
        rope |= {"rope_type": "llama3", **dataclasses.asdict(model_config.rope_scaling)}
    for key, value in (shape_of(model_config) | {"rope_parameters": rope}).items():
        found = getattr(loaded[0], key, None)
        if isinstance(value, dict) and isinstance(found, dict):
            found = {name: found.get(name) for name in value}
        if found != value:
            raise ParityError(f"transformers loads {key} as {found}, expected {value}")
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        for found in (getattr(one, key) for one in loaded):
            if found != config[key]:
                raise ParityError(f"transformers loads {key} as {found}, expected {config[key]}")
