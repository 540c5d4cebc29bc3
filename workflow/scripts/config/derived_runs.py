"""Runs that are written as another run with differences, `runs.X: {from: Y, ...}`, written out.

After this every run stands in full, as if the user had written it so: digests, plans and messages follow from that.
`model.from` is another key: the config.json of a model.
"""

import difflib
from collections.abc import Mapping
from typing import Any

from scripts.config.references import ConfigError, listed
from scripts.config.values import schema_of_key

FROM = "from"

Keys = dict[str, Any]


def written_out(runs: Mapping[str, Any], schema: Keys) -> Keys:
    """Return the runs without `from`. `schema`: that of a run. Raises ConfigError for an unknown run or a cycle."""
    done: Keys = {name: run for name, run in runs.items() if not is_derived(run)}
    for name in runs:
        for derived in reversed(_line(name, runs, done)):
            differences = {key: value for key, value in runs[derived].items() if key != FROM}
            done[derived] = merged(done[runs[derived][FROM]], differences, schema)
    return {name: done[name] for name in runs}


def is_derived(run: Any) -> bool:
    """Return True for a run that is written as another run with differences."""
    return isinstance(run, dict) and FROM in run


def _line(name: str, runs: Mapping[str, Any], done: Mapping[str, Any]) -> list[str]:
    """Return a derived run, the run that it is from, and so on, up to the first that is written out already."""
    line: list[str] = []
    while name not in done:
        if name in line:
            raise ConfigError(f"runs.{line[0]}.from must not form a cycle, got runs.{name} again")
        line.append(name)
        name = known_run(f"runs.{name}.from", runs[name][FROM], runs)
    return line


def known_run(where: str, name: Any, runs: Mapping[str, Any]) -> str:
    """Return the name of a run that exists and is a mapping of keys. Raises ConfigError for any other value."""
    if isinstance(name, str) and isinstance(runs.get(name), dict):
        return name
    near = difflib.get_close_matches(str(name), runs, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"{where} must be one of the config's runs ({listed(sorted(runs))}), got {name!r}{hint}")


def merged(base: Any, differences: Keys, schema: Keys) -> Keys:
    """Return a mapping with differences: mappings are merged, other values replaced, `null` removes a key.

    If a key may be null by its schema, `null` is its value. A `null` that removes nothing stays, and the check of the
    config names it.
    """
    made = dict(base)
    for key, value in differences.items():
        below = schema_of_key(schema, key)
        if value is None and key in made and not may_be_null(below):
            del made[key]
        elif isinstance(value, dict) and isinstance(made.get(key), dict):
            made[key] = merged(made[key], value, below)
        else:
            made[key] = value
    return made


def may_be_null(schema: Keys) -> bool:
    """Return True if a key may be null."""
    types = [part.get("type") for part in (schema, *schema.get("anyOf", ()))]
    return any(kind == "null" or (isinstance(kind, list) and "null" in kind) for kind in types)
