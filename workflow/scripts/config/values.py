"""Values of a config as plain data: a copy in which numbers are numbers, by the schema of each key."""

import math
import re
from collections.abc import Mapping
from typing import Any

from scripts.config.references import ConfigError

NUMBER = ["number", "string"]
# Snakemake's `--config tune=true` is text, as are the values of `--config 'runs={base: {pretrain: {steps: 120}}}'`.
TRUTHS = {"true": True, "false": False}
WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
WITH_EXPONENT = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{0,18})?[eE][+-]?[0-9]{1,2}")
"""A whole number that YAML reads as text: 1e3."""


def copied(value: Any, schema: dict[str, Any], where: str) -> Any:
    """Copy plain data; numbers written as text become numbers if the schema expects a number."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(
                    f"{where or 'the config'} has the key {key!r}, which YAML reads as another type than text: quote it"
                )
        return {key: copied(item, schema_of_key(schema, key), joined(where, key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [copied(item, schema.get("items", {}), f"{where}[{number}]") for number, item in enumerate(value)]
    types = [part.get("type") for part in (schema, *schema.get("anyOf", ()))]
    if value == "null" and "null" in types and "string" not in types:
        return None
    if NUMBER in types and type(value) in (int, float, str):
        return _number(value, where)
    if isinstance(value, str) and "boolean" in types:
        return TRUTHS.get(value, value)
    if isinstance(value, str) and "integer" in types and WHOLE.fullmatch(value):
        return int(value)
    if isinstance(value, str) and "integer" in types and WITH_EXPONENT.fullmatch(value) and float(value).is_integer():
        return int(float(value))
    return value


def without_nulls(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return checked data without the keys that are null where null is the default: they are as if left out."""
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, item in value.items():
        of_key = schema_of_key(schema, key)
        if item is not None or of_key.get("default") is not None:
            kept[key] = without_nulls(item, of_key)
    return kept


def schema_of_key(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the schema of a key of a group, a group that may be null included; {} for an unknown key."""
    for part in (schema, *schema.get("anyOf", ())):
        if key in part.get("properties", {}):
            return part["properties"][key]
        if isinstance(part.get("additionalProperties"), dict):
            return part["additionalProperties"]
    return {}


def _number(value: Any, where: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise ConfigError(f"{where} must be a number, got {value!r}") from None
    if not math.isfinite(number):
        raise ConfigError(f"{where} must be a finite number, got {value!r}")
    return number


def joined(where: str, key: str) -> str:
    """Return the path of a key below `where`, "" for the config itself."""
    return f"{where}.{key}" if where else key
