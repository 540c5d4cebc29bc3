"""Values of a config: single ones of the command line, numbers as numbers by the schema, and a recipe's identity.

`--config set=runs.base.pretrain.steps=100` replaces one value; Snakemake's own `--config` takes no names with dots.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from scripts.config.references import ConfigError

KEY = "set"
BETWEEN = re.compile(r"\s+(?=[^\s=]+=)")  # a value may hold spaces


def with_overrides(config: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the values of its key `set` put in; the config itself is not changed.

    Values stay text: the check of the config makes numbers and truth values of them where the schema expects them.
    Raises ConfigError for what is not KEY=VALUE, and for an entry that the config does not have.
    """
    made = {key: value for key, value in config.items() if key != KEY}
    for key, value in _pairs(config.get(KEY, ())):
        made = _with(made, schema, key, value, "")
    return made


def _pairs(given: Any) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of `set`: a text of one or more, or a list."""
    for text in [given] if isinstance(given, str) else given if isinstance(given, (list, tuple)) else [given]:
        for word in BETWEEN.split(text.strip()) if isinstance(text, str) else [text]:
            key, equals, value = word.partition("=") if isinstance(word, str) else ("", "", "")
            if not (key.strip(".") and equals):
                raise ConfigError(f"{KEY} must be KEY=VALUE, as runs.base.pretrain.steps=100, got {word!r:.200}")
            yield key, _value(key, value)


def _value(key: str, text: str) -> Any:
    """Return a value as YAML has it, numbers as text."""
    try:
        return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 (it makes only text)
    except yaml.YAMLError:
        raise ConfigError(f"{key} must be given as YAML, got {text!r:.200}") from None


def _with(config: Mapping[str, Any], schema: Mapping[str, Any], key: str, value: Any, where: str) -> dict[str, Any]:
    """Return a copy with one value replaced. Copies along the way only: YAML's anchors may share the rest."""
    name = _first_name(config, key)
    here, rest = joined(where, name), key[len(name) + 1 :]
    of_names = schema.get("additionalProperties")
    if isinstance(of_names, Mapping) and "properties" in of_names and name not in config:
        nearest = difflib.get_close_matches(name, config, n=1)
        hint = f"did you mean {joined(where, nearest[0])}? " if nearest else ""
        raise ConfigError(f"the config has no {here}; {hint}{where}: {', '.join(sorted(map(str, config))) or 'none'}")
    if not rest:
        return {**config, name: value}
    below = config.get(name)
    if below is not None and not isinstance(below, Mapping):
        raise ConfigError(f"{here} must be a mapping of keys to values to have {rest}, and is {below!r:.100}")
    return {**config, name: _with(below or {}, schema_of_key(schema, name), rest, value, here)}


def _first_name(config: Mapping[str, Any], key: str) -> str:
    """Return the first name of a dotted key; a name with dots in it (a run `llama-3.1`) if the config has it."""
    parts = key.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in names if name in config), parts[0])


def identity_of(schema: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    """Return the identity keys of a recipe that differ from their defaults, groups of keys included.

    `schema`: the JSON schema of the recipe. `written`: the keys that the user wrote, with numbers as numbers. The
    stages do the same with their dataclasses (`stages.lib.recipe.written`), and a test holds both equal.
    """
    kept: dict[str, Any] = {}
    for name, value in written.items():
        field = schema["properties"][name]
        group = next((choice for choice in (field, *field.get("anyOf", ())) if "properties" in choice), None)
        if group is not None and isinstance(value, dict):
            if below := identity_of(group, value):
                kept[name] = below
        elif field["x-kind"] == "identity":
            plain = _plain(field, value)
            if name in schema.get("required", ()) or "default" not in field or plain != field["default"]:
                kept[name] = plain
    return kept


def defaults_of(schema: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return {dotted key: default} of a recipe's identity keys, groups of keys included; a list as JSON.

    A manifest leaves them out, and the table of runs shows them.
    """
    found: dict[str, Any] = {}
    for name, field in schema["properties"].items():
        if "properties" in field:
            found |= defaults_of(field, f"{prefix}{name}.")
        elif field["x-kind"] == "identity" and "default" in field:
            default = field["default"]
            found[f"{prefix}{name}"] = json.dumps(default) if isinstance(default, list) else default
    return found


def dotted(data: dict[str, Any], prefix: str = "") -> set[str]:
    """Return the dotted keys of nested mappings."""
    found: set[str] = set()
    for name, value in data.items():
        found |= dotted(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}"}
    return found


def _plain(field: dict[str, Any], value: Any) -> Any:
    """Return a list or mapping of groups with each group's identity, any other value unchanged."""
    items, named = field.get("items", {}), field.get("additionalProperties", {})
    if isinstance(value, list) and "properties" in items:
        return [identity_of(items, item) for item in value]
    if isinstance(value, dict) and named and "properties" in named:
        return {name: identity_of(named, item) for name, item in value.items()}
    return value


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
