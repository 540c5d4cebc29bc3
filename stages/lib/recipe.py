"""Recipes: frozen dataclasses that say what a stage shall do, and how they are read from JSON.

A recipe stands beside the code that it configures. Each field has a kind:

- identity: changes the result (model, optimizer, data, seed, dtype);
- operation: does not (micro-batch, how often to save, logging);
- horizon: how far to go (the total number of steps).

A docstring stands under each field; `docs_of` reads it, so that the schema, the config's README and `--help` say the
same.
"""

import ast
import dataclasses
import difflib
import functools
import inspect
import json
import math
import textwrap
import types
import typing
from pathlib import Path

from stages.lib.errors import UserError

KINDS = ("identity", "operation", "horizon")


def _field(kind, default, bounds):
    metadata = {"kind": kind, **{name: bound for name, bound in bounds.items() if bound is not None}}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    if isinstance(default, (dict, list)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def identity(default=dataclasses.MISSING, *, minimum=None, maximum=None, above=None, choices=None):
    """A field that changes the result; bounds are inclusive but for `above`."""
    return _field("identity", default, dict(minimum=minimum, maximum=maximum, above=above, choices=choices))


def operation(default=dataclasses.MISSING, *, minimum=None, maximum=None, above=None, choices=None):
    """A field that may change in the middle of a run and leaves the result as it is."""
    return _field("operation", default, dict(minimum=minimum, maximum=maximum, above=above, choices=choices))


def horizon(default=dataclasses.MISSING, *, minimum=None):
    """A field that says how far to go."""
    return _field("horizon", default, dict(minimum=minimum))


def load(recipe_type, data, where):
    """Build a recipe from plain data (what JSON or YAML gives).

    `where` is the dotted key under which the user wrote the data: errors name it.
    Raises UserError on an unknown key, a missing one, a wrong type or a value out of bounds.
    """
    if not isinstance(data, dict):
        raise UserError(f"{where} must be a mapping of keys to values, got {data!r}")
    fields = {field.name: field for field in dataclasses.fields(recipe_type)}
    for key in data:
        if key not in fields:
            nearest = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean {where}.{nearest[0]}? " if nearest else ""
            raise UserError(f"unknown key {where}.{key}; {hint}known here: {', '.join(sorted(fields))}")
    hints = typing.get_type_hints(recipe_type)
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _convert(hints[name], data[name], f"{where}.{name}")
            _check_bounds(field.metadata, values[name], f"{where}.{name}")
        elif _is_required(field):
            raise UserError(f"{where}.{name} is missing: it must be {_describe(hints[name], field.metadata)}")
    recipe = recipe_type(**values)
    if hasattr(recipe, "check"):
        recipe.check(where)
    return recipe


def load_texts(recipe_type, texts, where):
    """Build a recipe from the texts of `--recipe` and `--operation`, the later added to the earlier.

    A text is JSON, or the path of a .json or .yaml file.
    """
    data = {}
    for text in texts:
        data = _merged(data, _parse(text.strip()))
    return load(recipe_type, data, where)


def _parse(text):
    path = None
    if not text.startswith("{"):
        path = Path(text)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise UserError(f"a recipe must be JSON or a readable file, got {path}: {reason}") from None
        if path.suffix in (".yaml", ".yml"):
            import yaml  # beside the workflow only: a stage on a compute node is given JSON

            try:
                return yaml.safe_load(text) or {}
            except yaml.YAMLError as error:
                raise UserError(f"{path} must be YAML: {' '.join(str(error).split())}") from None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path or '--recipe'} must be JSON, got an error at line {error.lineno}: {error.msg}"
        ) from None


def _merged(first, second):
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return second
    return first | {key: _merged(first[key], value) if key in first else value for key, value in second.items()}


def written(recipe, kind):
    """The fields of one kind that differ from their default, as plain data, nested recipes included.

    Defaults are left out so that a new optional key changes no digest; a test freezes the defaults.
    """
    result = {}
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if dataclasses.is_dataclass(value):
            if nested := written(value, kind):
                result[field.name] = nested
        elif field.metadata["kind"] == kind and (_is_required(field) or value != default_of(field)):
            result[field.name] = _plain(value, kind)
    return result


def _plain(value, kind):
    """A list of recipes as plain data, all else as it is."""
    if isinstance(value, list):
        return [written(item, kind) if dataclasses.is_dataclass(item) else item for item in value]
    return value


def default_of(field):
    """The default of a dataclass field; dataclasses.MISSING where it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _is_required(field):
    return default_of(field) is dataclasses.MISSING


def _convert(hint, value, where):
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        if value is None and types.NoneType in arguments:
            return None
        (hint,) = [argument for argument in arguments if argument is not types.NoneType]
        return _convert(hint, value, where)
    if dataclasses.is_dataclass(hint):
        return load(hint, value, where)
    if origin is list and isinstance(value, (list, tuple)):
        return [_convert(arguments[0], item, f"{where}[{number}]") for number, item in enumerate(value)]
    if origin is dict and isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _convert(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint is float:
        return _convert_float(value, where)
    if hint in (int, str, bool) and type(value) is hint:
        return value
    raise UserError(f"{where} must be {_describe(hint, {})}, got {value!r}")


def _convert_float(value, where):
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
    elif isinstance(value, str):  # YAML 1.1 reads 1e-3 as a string
        try:
            number = float(value)
        except ValueError:
            raise UserError(f"{where} must be a number, got {value!r}") from None
    else:
        raise UserError(f"{where} must be a number, got {value!r}")
    if not math.isfinite(number):
        raise UserError(f"{where} must be a finite number, got {value!r}")
    return number


def _check_bounds(bounds, value, where):
    if value is None:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            _check_bounds(bounds, item, f"{where}.{key}")
        return
    if isinstance(value, list):
        for number, item in enumerate(value):
            _check_bounds(bounds, item, f"{where}[{number}]")
        return
    broken = (
        ("minimum" in bounds and value < bounds["minimum"])
        or ("maximum" in bounds and value > bounds["maximum"])
        or ("above" in bounds and value <= bounds["above"])
        or ("choices" in bounds and value not in bounds["choices"])
    )
    if broken:
        raise UserError(f"{where} must be {_describe(type(value), bounds)}, got {value!r}")


def _describe(hint, bounds):
    if "choices" in bounds:
        return "one of " + ", ".join(map(str, bounds["choices"]))
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    name = names.get(hint)
    if name is None:
        origin = typing.get_origin(hint)
        name = {list: "a list", dict: "a mapping"}.get(origin, "a mapping of keys to values")
    limits = []
    if "minimum" in bounds:
        limits.append(f"at least {bounds['minimum']}")
    if "above" in bounds:
        limits.append(f"greater than {bounds['above']}")
    if "maximum" in bounds:
        limits.append(f"at most {bounds['maximum']}")
    return " ".join([name, " and ".join(limits)]).strip()


@functools.cache
def docs_of(recipe_type):
    """The docstring under each field of a recipe and of those that it extends, by the field's name."""
    docs = {}
    for ancestor in filter(dataclasses.is_dataclass, reversed(recipe_type.__mro__)):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(ancestor))).body
        for statement, following in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
                docs[statement.target.id] = " ".join(following.value.value.split())
    return docs


def json_schema(recipe_type):
    """The JSON schema of a recipe: types, bounds, kinds (`x-kind`), defaults and descriptions."""
    hints = typing.get_type_hints(recipe_type)
    properties, required = {}, []
    for field in dataclasses.fields(recipe_type):
        schema = _schema_of(hints[field.name], field.metadata)
        schema["description"] = docs_of(recipe_type)[field.name]
        schema["x-kind"] = field.metadata["kind"]
        default = default_of(field)
        if _is_required(field):
            required.append(field.name)
        elif not dataclasses.is_dataclass(default):
            schema["default"] = default
        properties[field.name] = schema
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    schema["x-expected"] = "a mapping of keys to values"
    return schema | ({"required": required} if required else {})


def _schema_of(hint, bounds):
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        (hint,) = [argument for argument in arguments if argument is not types.NoneType]
        return {"anyOf": [_schema_of(hint, bounds), {"type": "null", "x-expected": "null"}]}
    if dataclasses.is_dataclass(hint):
        return json_schema(hint)
    expected = {"x-expected": _describe(hint, bounds)}
    if origin is list:
        return {"type": "array", "items": _schema_of(arguments[0], bounds), "x-expected": _describe(hint, {})}
    if origin is dict:
        return {
            "type": "object",
            "additionalProperties": _schema_of(arguments[1], bounds),
            "x-expected": _describe(hint, {}),
        }
    if hint is float:  # YAML 1.1 reads 1e-3 as a string, so the bounds hold for numbers only
        return {"type": ["number", "string"]} | _schema_bounds(bounds) | expected
    return {"type": {int: "integer", str: "string", bool: "boolean"}[hint]} | _schema_bounds(bounds) | expected


def _schema_bounds(bounds):
    names = {"minimum": "minimum", "maximum": "maximum", "above": "exclusiveMinimum", "choices": "enum"}
    return {names[name]: list(bound) if name == "choices" else bound for name, bound in bounds.items() if name in names}
