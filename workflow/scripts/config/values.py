"""Values of a config: single ones of the command line, those of some kinds, and defaults.

`--config set=runs.base.pretrain.steps=100` replaces one value; Snakemake's own `--config` takes no names with dots.
"""

from __future__ import annotations

import difflib
import json
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from scripts.config.sections import Config
from stages.lib.errors import UserError
from stages.lib.recipe import (
    below,
    default_of,
    fields_of,
    groups_of,
    has_default,
    hints_of,
    is_group,
    joined,
    written_keys,
)

KEY = "set"
BETWEEN = re.compile(r"\s+(?=[^\s=]+=)")  # a value may hold spaces


def with_overrides(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the values of its key `set` put in; the config itself is not changed.

    Values stay text: the check of the config makes numbers and truth values of them where the schema expects them.
    Raises UserError for what is not KEY=VALUE, and for an entry that the config does not have.
    """
    made = {key: value for key, value in config.items() if key != KEY}
    for key, value in _pairs(config.get(KEY, ())):
        made = _with(made, Config, key, value, "")
    return made


def _pairs(given: Any) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of `set`: a text of one or more, or a list."""
    for text in [given] if isinstance(given, str) else given if isinstance(given, (list, tuple)) else [given]:
        for word in BETWEEN.split(text.strip()) if isinstance(text, str) else [text]:
            key, equals, value = word.partition("=") if isinstance(word, str) else ("", "", "")
            if not (key.strip(".") and equals):
                raise UserError(f"{KEY} must be KEY=VALUE, as runs.base.pretrain.steps=100, got {word!r:.200}")
            yield key, _value(key, value)


def _value(key: str, text: str) -> Any:
    """Return a value as YAML has it, numbers as text."""
    try:
        return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 (it makes only text)
    except yaml.YAMLError:
        raise UserError(f"{key} must be given as YAML, got {text!r:.200}") from None


def _with(config: Mapping[str, Any], hint: Any, key: str, value: Any, where: str) -> dict[str, Any]:
    """Return a copy with one value replaced. Copies along the way only: YAML's anchors may share the rest."""
    name = _first_name(config, key)
    here, rest = joined(where, name), key[len(name) + 1 :]
    if typing.get_origin(hint) is dict and groups_of(below(hint, name)) and name not in config:
        nearest = difflib.get_close_matches(name, config, n=1)
        meant = f"did you mean {joined(where, nearest[0])}? " if nearest else ""
        raise UserError(f"the config has no {here}; {meant}{where}: {', '.join(sorted(map(str, config))) or 'none'}")
    if not rest:
        return {**config, name: value}
    part = config.get(name)
    if part is not None and not isinstance(part, Mapping):
        raise UserError(f"{here} must be a mapping of keys to values to have {rest}, and is {part!r:.100}")
    return {**config, name: _with(part or {}, below(hint, name), rest, value, here)}


def _first_name(config: Mapping[str, Any], key: str) -> str:
    """Return the first name of a dotted key; a name with dots in it (a run `llama-3.1`) if the config has it."""
    parts = key.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in names if name in config), parts[0])


def of_kinds(recipe_type: type, written: Mapping[str, Any], *kinds: str) -> dict[str, Any]:
    """Return the keys of these kinds that the user wrote, groups of keys included. `written`: the keys of a recipe."""
    result: dict[str, Any] = {}
    for key, value in written.items():
        hint = hints_of(recipe_type)[key]
        if not is_group(hint):
            if fields_of(recipe_type)[key].metadata["kind"] in kinds:
                result[key] = value
        elif group := of_kinds(hint, value, *kinds):
            result[key] = group
    return result


def identity_of(recipe_type: type, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity keys that the user wrote and that differ from their defaults, as manifests have them."""
    return written_keys(recipe_type, written, "identity")


def defaults_of(recipe_type: type, prefix: str = "") -> dict[str, Any]:
    """Return {dotted key: default} of a recipe's identity keys, groups of keys included; a list as JSON.

    A manifest leaves them out, and the table of runs shows them.
    """
    result: dict[str, Any] = {}
    for key, field in fields_of(recipe_type).items():
        hint, default = hints_of(recipe_type)[key], default_of(field)
        if is_group(hint):
            result |= defaults_of(hint, f"{prefix}{key}.")
        elif field.metadata["kind"] == "identity" and has_default(field, hint):
            result[f"{prefix}{key}"] = json.dumps(default) if isinstance(default, list) else default
    return result


def dotted(data: dict[str, Any], prefix: str = "") -> set[str]:
    """Return the dotted keys of nested mappings."""
    found: set[str] = set()
    for name, value in data.items():
        found |= dotted(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}"}
    return found
