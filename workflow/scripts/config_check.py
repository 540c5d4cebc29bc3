"""Check of the config: each mistake is one sentence that names the key, what it must be, and what was found."""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend

from scripts.config import other_names
from scripts.config.defaults import check_left_out, with_defaults
from scripts.config.derived_runs import is_derived, written_out
from scripts.config.references import ConfigError, check_references
from scripts.config.values import NUMBER, copied, joined, without_nulls
from scripts.sweeps.checks import check_sweeps
from scripts.sweeps.ladders import with_ladders
from scripts.sweeps.runs import runs_of, with_runs

# JSON Schema takes 300.0 for an integer; the stages do not.
Validator = extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int),
)
MAX_ENTRIES = 1_000_000


def load_schema(path: Path) -> dict[str, Any]:
    """Read the JSON schema of the config."""
    with open(path, encoding="utf-8") as file:
        return yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def checked(config: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return a checked copy of a config, with numbers as numbers: YAML reads `1e-3` as text.

    It holds what the user wrote and what can be nothing else (config/defaults.py): no defaults of the stages. Runs
    `from` others and runs of sweeps and ladders are written out. Raises ConfigError.
    """
    _check_size(config)
    written = copied(config, schema, "")
    config = with_defaults(_expanded(written, schema))
    _validate(config, schema, written.get("runs"))
    config = without_nulls(with_runs(config, schema), schema)
    check_left_out(config)
    check_references(config)
    check_sweeps(config, schema)
    return with_ladders(config, schema)


def _expanded(config: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the config with plain runs only. The check by the schema names what is no mapping here."""
    runs, of_run = config.get("runs"), schema["properties"]["runs"]["additionalProperties"]
    if not isinstance(runs, dict):
        return config
    if "sweeps" in config:
        _validate({"sweeps": config["sweeps"]}, {"properties": {"sweeps": schema["properties"]["sweeps"]}})
    for name, sweep in config.get("sweeps", {}).items():
        runs = runs | runs_of(name, sweep, runs, of_run)
    return config | {"runs": written_out(runs, of_run)}


def _validate(config: dict[str, Any], schema: dict[str, Any], runs: Any = None) -> None:
    """Raise ConfigError for the first mistake. `runs`: as the user wrote them; a mistake is named at a run in full."""
    in_full = [name for name, run in runs.items() if not is_derived(run)] if isinstance(runs, dict) else []

    def order(error: ValidationError) -> tuple[bool, bool, int, bool, list[str]]:
        section, name = [*error.absolute_path, None, None][:2]
        return section != "runs" or name in (None, *in_full), *_order(error)

    error = best_match(Validator(_numbers_only(schema)).iter_errors(config), key=order)
    if error is not None:
        raise ConfigError(_sentence(error))


def _check_size(config: dict[str, Any]) -> None:
    """Raise ConfigError for a config whose anchors refer to anchors, or to themselves, without end."""
    waiting: list[Any] = [config]
    for _ in range(MAX_ENTRIES):
        if not waiting:
            return
        value = waiting.pop()
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    raise ConfigError(f"the config must have at most {MAX_ENTRIES:,} entries, got more: do its anchors repeat anchors?")


def _order(error: ValidationError) -> tuple[bool, int, bool, list[str]]:
    is_missing = error.validator in ("required", "dependentRequired")
    is_unknown = error.validator == "additionalProperties"  # perhaps a misspelled one that is missing then
    return is_unknown, -len(error.path), is_missing, [str(key) for key in error.path]


def _numbers_only(schema: Any) -> Any:
    """Return the schema without text as a form of a number: `copied` has converted it."""
    if isinstance(schema, dict):
        return {
            key: "number" if key == "type" and value == NUMBER else _numbers_only(value)
            for key, value in schema.items()
        }
    return [_numbers_only(item) for item in schema] if isinstance(schema, list) else schema


def _path(keys: Iterable[str | int]) -> str:
    return re.sub(r"\.(?=\[)", "", ".".join(f"[{key}]" if isinstance(key, int) else key for key in keys))


def _sentence(error: ValidationError) -> str:
    if error.parent is not None and error.validator == "type" and isinstance(error.instance, dict):
        error = error.parent  # of a group that may also be null, best_match took null
    inner = [part for part in error.context or () if part.path or part.validator != "type"]
    if error.validator == "anyOf" and isinstance(error.instance, dict) and inner:
        return _sentence(max(inner, key=_order))  # in a group that may also be null
    where = _path(error.absolute_path)
    if error.validator == "additionalProperties":
        return _unknown_key(where, error.instance, error.schema["properties"])
    if error.validator in ("required", "dependentRequired"):
        missing = [key for key in _required(error) if key not in error.instance][0]
        instead = " (or set model.from)" if where.endswith(".model") else ""
        expected = _expected(error.schema["properties"][missing])
        return f"{joined(where, missing)} is missing: it must be {expected}{instead}"
    if "pattern" in error.schema:
        name = ascii(joined(where, error.instance))[1:-1]
        return f"{name:.200} must be a name of up to 100 letters, digits, dots, dashes and underscores"
    found = "nothing" if error.instance is None else repr(error.instance)
    return f"{where or 'the config'} must be {_expected(error.schema)}, got {found}"


def _unknown_key(where: str, instance: dict[str, Any], known: dict[str, Any]) -> str:
    unknown = sorted(key for key in instance if key not in known)[0]
    nearest = difflib.get_close_matches(unknown, known, n=1)
    below = [f"{group}.{unknown}" for group, keys in known.items() if unknown in _keys_of(keys)]
    meant = other_names.foreign_key(where, unknown) or next(iter([*nearest, *below]), None)
    hint = f"did you mean {joined(where, meant)}? " if meant else ""
    return f"unknown key {joined(where, unknown)}; {hint}known here: {', '.join(sorted(known))}"


def _keys_of(schema: dict[str, Any]) -> list[str]:
    """Return the keys of a group, one that may be null included."""
    return [key for part in (schema, *schema.get("anyOf", ())) for key in part.get("properties", ())]


def _required(error: ValidationError) -> list[str]:
    if error.validator == "required":
        return error.validator_value
    return [key for given, needed in error.validator_value.items() if given in error.instance for key in needed]


def _expected(schema: dict[str, Any]) -> str:
    """Return in words what a value must be: the schema carries it beside types and bounds."""
    if "anyOf" in schema:
        return " or ".join(_expected(part) for part in schema["anyOf"])
    return schema["x-expected"]
