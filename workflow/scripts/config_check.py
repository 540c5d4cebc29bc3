"""The config's check: each mistake is one sentence that names the key, what it must be, and what was found."""

import math
import re

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from jsonschema.validators import extend

from scripts.config_references import ConfigError, check_references

# JSON Schema takes 300.0 for an integer; the stages do not.
Validator = extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int),
)
NUMBER = ["number", "string"]
TRUTHS = {"true": True, "false": False}  # Snakemake's `--config tune=true` is text


def load_schema(path):
    """The JSON schema of the config, as data."""
    with open(path, encoding="utf-8") as file:
        return yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def checked(config, schema):
    """A copy of a config that holds, with numbers as numbers: YAML reads `1e-3` as text.

    Only what the user wrote is in it: no defaults. Raises ConfigError.
    """
    config = _copied(config, schema, "")
    error = best_match(Validator(_numbers_only(schema)).iter_errors(config), key=_order)
    if error is not None:
        raise ConfigError(_sentence(error))
    check_references(config)
    return config


def _order(error):
    is_missing = error.validator in ("required", "dependentRequired")
    return -len(error.path), is_missing, [str(key) for key in error.path]


def _copied(value, schema, where):
    """Plain data, keys as text; numbers written as text become numbers where the schema wants a number."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(
                    f"{where or 'the config'} has the key {key!r}, which YAML does not read as text: quote it"
                )
        return {key: _copied(item, _schema_of_key(schema, key), _joined(where, key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(item, schema.get("items", {}), f"{where}[{number}]") for number, item in enumerate(value)]
    if _wants_number(schema) and type(value) in (int, float, str):
        return _number(value, where)
    if schema.get("type") == "boolean" and value in TRUTHS:
        return TRUTHS[value]
    return value


def _schema_of_key(schema, key):
    for part in (schema, *schema.get("anyOf", ())):
        if key in part.get("properties", {}):
            return part["properties"][key]
        if isinstance(part.get("additionalProperties"), dict):
            return part["additionalProperties"]
    return {}


def _wants_number(schema):
    return any(part.get("type") == NUMBER for part in (schema, *schema.get("anyOf", ())))


def _number(value, where):
    try:
        number = float(value)
    except ValueError:
        raise ConfigError(f"{where} must be a number, got {value!r}") from None
    if not math.isfinite(number):
        raise ConfigError(f"{where} must be a finite number, got {value!r}")
    return number


def _numbers_only(schema):
    """The schema with `number` where it lets text pass for a number: after `_copied` there is none."""
    if isinstance(schema, dict):
        return {
            key: "number" if key == "type" and value == NUMBER else _numbers_only(value)
            for key, value in schema.items()
        }
    return [_numbers_only(item) for item in schema] if isinstance(schema, list) else schema


def _joined(where, key):
    return f"{where}.{key}" if where else key


def _path(keys):
    return re.sub(r"\.(?=\[)", "", ".".join(f"[{key}]" if isinstance(key, int) else key for key in keys))


def _sentence(error):
    where = _path(error.absolute_path)
    if error.validator == "additionalProperties":
        known = error.schema["properties"]
        unknown = sorted(key for key in error.instance if key not in known)[0]
        return f"{_joined(where, unknown)} is not a known key; known here: {', '.join(sorted(known))}"
    if error.validator in ("required", "dependentRequired"):
        missing = [key for key in _required(error) if key not in error.instance][0]
        described = _described(error.schema["properties"][missing])
        return f"{_joined(where, missing)} is missing: it must be {described}"
    if "pattern" in error.schema:
        return f"{_joined(where, error.instance)} must be a name of letters, digits, dots, dashes and underscores"
    return f"{where or 'the config'} must be {_described(error.schema)}, got {_shown(error.instance)}"


def _required(error):
    if error.validator == "required":
        return error.validator_value
    return [key for given, needed in error.validator_value.items() if given in error.instance for key in needed]


def _shown(value):
    return "nothing" if value is None else repr(value)


def _described(schema):
    if "anyOf" in schema:
        return " or ".join(_described(part) for part in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    names = {
        "integer": "a whole number",
        "number": "a number",
        "string": "text",
        "boolean": "true or false",
        "array": "a list",
        "object": "a mapping of keys to values",
        "null": "null",
    }
    limits = []
    if "minimum" in schema:
        limits.append(f"at least {schema['minimum']}")
    if "exclusiveMinimum" in schema:
        limits.append(f"greater than {schema['exclusiveMinimum']}")
    if "maximum" in schema:
        limits.append(f"at most {schema['maximum']}")
    if schema.get("minItems") or schema.get("minProperties"):
        limits.append("with at least one entry")
    if schema.get("uniqueItems"):
        limits.append("none of them twice")
    kind = schema["type"]
    return " ".join([names["number" if kind == NUMBER else kind], " and ".join(limits)]).strip()
