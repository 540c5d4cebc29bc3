"""Single values of the config that the command line replaces: `--config set=runs.base.pretrain.steps=100`.

Snakemake's own `--config` takes names without dots only.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from scripts.config.references import ConfigError
from scripts.config.values import joined, schema_of_key

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
        return yaml.load(text, Loader=yaml.BaseLoader)
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
