"""Recipes: frozen dataclasses that configure a stage, and their reading from JSON.

A recipe stands beside the code that it configures. Each field has a kind:

- identity: changes the result (model, optimizer, data, seed, dtype);
- operation: does not (micro-batch size, checkpoint interval, logging);
- horizon: the total number of steps.

A docstring stands under each field; `recipe_schema` reads it, so that the schema, the config's README and `--help` say
the same.

A recipe may have variants, of which its data name one: see Variants.
"""

import dataclasses
import difflib
import functools
import math
import re
import reprlib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from stages.lib import files
from stages.lib.errors import UserError

KINDS = ("identity", "operation", "horizon")
MAXIMUM, MAXIMUM_FLOAT = 1 << 63, 1e308
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200
_SHORT.maxlist = _SHORT.maxdict = 20
_SHORT.maxlong = 40
_SHORT.maxlevel = 3
WITH_EXPONENT = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{0,18})?[eE][+-]?[0-9]{1,2}")
"""A whole number that YAML reads as text: 1e3."""
Recipe = TypeVar("Recipe")


@dataclasses.dataclass(frozen=True)
class Variants(Generic[Recipe]):
    """Recipes of which the data name one. `key`: the field with the name. `types`: {name: recipe}."""

    key: str
    types: Mapping[str, type[Recipe]]

    @property
    def default(self) -> str:
        """The first name, which holds for data that name none."""
        return next(iter(self.types))


def _field(kind: str, default: Any, bounds: Mapping[str, Any]) -> Any:
    metadata = {"kind": kind, **{name: bound for name, bound in bounds.items() if bound is not None}}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    if isinstance(default, (dict, list)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def identity(
    default: Any = dataclasses.MISSING,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: Iterable[str] | None = None,
    variants: Variants[Any] | None = None,
) -> Any:
    """Declare a field that changes the result; bounds are inclusive except `above`.

    `variants`: the recipes of which the field has one.
    """
    bounds = dict(minimum=minimum, maximum=maximum, above=above, choices=choices, variants=variants)
    return _field("identity", default, bounds)


def operation(
    default: Any = dataclasses.MISSING,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: Iterable[str] | None = None,
) -> Any:
    """Declare a field that may change in the middle of a run and does not change the result."""
    return _field("operation", default, dict(minimum=minimum, maximum=maximum, above=above, choices=choices))


def horizon(default: Any = dataclasses.MISSING, *, minimum: float | None = None) -> Any:
    """Declare a field for the length of a run."""
    return _field("horizon", default, dict(minimum=minimum))


def load(recipe_type: type[Recipe] | Variants[Recipe], data: Any, where: str) -> Recipe:
    """Build a recipe from plain data, as JSON or YAML gives it.

    `where`: the dotted key under which the user wrote the data, for errors.
    Raises UserError on an unknown or missing key, a wrong type or a value out of bounds.
    """
    if not isinstance(data, dict):
        raise UserError(f"{where} must be a mapping of keys to values, got {shown(data)}")
    variants = None
    if isinstance(recipe_type, Variants):
        variants = recipe_type
        recipe_type = _chosen(variants, data, where)
    fields = {field.name: field for field in dataclasses.fields(recipe_type)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            if variants is not None:
                _check_variant(recipe_type, variants, key, where)
            nearest = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean {where}.{nearest[0]}? " if nearest else ""
            raise UserError(f"unknown key {where}.{key}; {hint}known here: {', '.join(sorted(fields))}")
    hints = hints_of(recipe_type)  # type: ignore[arg-type]
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _convert(hints[name], data[name], f"{where}.{name}")
            _check_bounds(field.metadata, values[name], f"{where}.{name}")
        elif is_required(field):
            raise UserError(f"{where}.{name} is missing: it must be {describe(hints[name], field.metadata)}")
    recipe = recipe_type(**values)
    if hasattr(recipe, "check"):
        recipe.check(where)
    return recipe


def _chosen(variants: Variants[Recipe], data: dict[str, Any], where: str) -> type[Recipe]:
    """Return the variant that the data name."""
    name = data.get(variants.key, variants.default)
    if not isinstance(name, str) or name not in variants.types:
        raise UserError(f"{where}.{variants.key} must be one of {', '.join(variants.types)}, got {shown(name)}")
    return variants.types[name]


def _check_variant(recipe_type: type, variants: Variants[Any], key: str, where: str) -> None:
    """Raise UserError if a key belongs to other variants than the one that is loaded."""
    named = {name: {field.name for field in dataclasses.fields(variant)} for name, variant in variants.types.items()}
    if owners := [name for name, fields in named.items() if key in fields]:
        (name,) = (name for name, variant in variants.types.items() if variant is recipe_type)
        raise UserError(f"{where}.{key} must be left out for {variants.key} {name}: it is a key of {', '.join(owners)}")


@functools.cache
def hints_of(recipe_type: type) -> dict[str, Any]:
    """Return the types of a recipe's fields, or their Variants; to resolve them takes longer than to check a recipe."""
    hints = typing.get_type_hints(recipe_type)
    return {field.name: field.metadata.get("variants", hints[field.name]) for field in dataclasses.fields(recipe_type)}


def load_texts(
    recipe_type: type[Recipe], texts: Iterable[str], where: str, base: dict[str, Any] | None = None
) -> Recipe:
    """Build a recipe from the texts of `--recipe` and `--operation`, see `merge_texts`."""
    return load(recipe_type, merge_texts(texts, base), where)


def merge_texts(texts: Iterable[str], base: dict[str, Any] | None = None) -> Any:
    """Return the keys in the texts of `--recipe` and `--operation`: each is merged into what comes before it.

    A text is JSON, or the path of a .json or .yaml file. `base`: keys that come before the first text.
    """
    data: Any = base or {}
    for text in texts:
        data = _merged(data, _parse(text.strip()))
    return data


def _parse(text: str) -> Any:
    path = None
    if not text.startswith("{"):
        path = Path(text)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise UserError(f"a recipe must be JSON or a readable file, got {str(path)!a:.100}: {reason}") from None
        if path.suffix in (".yaml", ".yml"):
            import yaml  # only beside the workflow: a stage on a compute node gets JSON

            try:
                return yaml.safe_load(text) or {}
            except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: 2025-13-13, a long number
                raise UserError(f"{path} must be YAML: {' '.join(str(error).split())}") from None
    try:
        return files.parse_json(text)
    except ValueError as error:
        raise UserError(f"{path or '--recipe'} is not valid JSON: {error}") from None


def _merged(first: Any, second: Any) -> Any:
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return second
    return first | {key: _merged(first[key], value) if key in first else value for key, value in second.items()}


def written(recipe: Any, kind: str) -> dict[str, Any]:
    """Return the fields of one kind that differ from their default, as plain data, nested recipes included.

    Defaults are omitted so that a new optional key changes no digest; a test freezes the defaults.
    """
    result: dict[str, Any] = {}
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if dataclasses.is_dataclass(value):
            nested = written(value, kind)
            if nested or (default_of(field) is None and field.metadata["kind"] == kind):  # `{}` switches it on
                result[field.name] = nested
        elif field.metadata["kind"] == kind and (is_required(field) or value != default_of(field)):
            result[field.name] = _plain(value, kind)
    return result


def _plain(value: Any, kind: str) -> Any:
    """Return a list or mapping of recipes as plain data, any other value unchanged."""
    if isinstance(value, list):
        return [_plain(item, kind) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item, kind) for name, item in value.items()}
    return written(value, kind) if dataclasses.is_dataclass(value) else value


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a dataclass field; dataclasses.MISSING if it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Return True if a dataclass field has no default."""
    return default_of(field) is dataclasses.MISSING


def _convert(hint: Any, value: Any, where: str) -> Any:
    if is_union(hint):
        words = words_of(hint)
        if (value is None and None in words) or (isinstance(value, str) and value in words):
            return value
        if isinstance(value, str) and any(words):
            raise UserError(f"{where} must be {describe(hint, {})}, got {shown(value)}")
        return _convert(without_words(hint), value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, Variants) or (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
        return load(hint, value, where)
    if origin is list and isinstance(value, (list, tuple)):
        return [_convert(arguments[0], item, f"{where}[{number}]") for number, item in enumerate(value)]
    if origin is dict and isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _convert(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint is float:
        return _convert_float(value, where)
    if hint is int and isinstance(value, str) and WITH_EXPONENT.fullmatch(value) and float(value).is_integer():
        value = int(float(value))
    if hint in (int, str, bool) and type(value) is hint:
        if isinstance(value, str):
            _check_text(value, where)
        elif abs(value) >= MAXIMUM:
            raise UserError(f"{where} must be a whole number below 2^63, got {shown(value)}")
        return value
    raise UserError(f"{where} must be {describe(hint, {})}, got {shown(value)}")


def is_union(hint: Any) -> bool:
    """Return True for a type beside None or words: `int | None`, `int | Literal["auto"]`."""
    return typing.get_origin(hint) in (types.UnionType, typing.Union)


def words_of(hint: Any) -> list[str | None]:
    """Return the values of a union that stand for themselves: None, and the words of a Literal."""
    words: list[str | None] = []
    for part in typing.get_args(hint):
        words += typing.get_args(part) if typing.get_origin(part) is typing.Literal else []
        words += [None] if part is types.NoneType else []
    return words


def without_words(hint: Any) -> Any:
    """Return the type of a union beside its words."""
    (kept,) = [
        part
        for part in typing.get_args(hint)
        if part is not types.NoneType and typing.get_origin(part) is not typing.Literal
    ]
    return kept


def _check_text(value: str, where: str) -> None:
    """Raise UserError for text that no file name, manifest or log can hold."""
    if "\0" in value or (not value.isascii() and value.encode(errors="replace").decode() != value):
        raise UserError(f"{where} must be text of Unicode characters without NUL, got {shown(value)}")


def shown(value: Any) -> str:
    """Return a value for a message, shortened: it may be megabytes of text, or anchors of YAML that explode."""
    try:
        return _SHORT.repr(value)[:300]
    except ValueError:  # more digits than Python converts
        return "a number of thousands of digits"


def _convert_float(value: Any, where: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value) if abs(value) < MAXIMUM_FLOAT else math.inf
    elif isinstance(value, str):  # YAML 1.1 reads 1e-3 as a string
        try:
            number = float(value)
        except ValueError:
            raise UserError(f"{where} must be a number, got {shown(value)}") from None
    else:
        raise UserError(f"{where} must be a number, got {shown(value)}")
    if not math.isfinite(number):
        raise UserError(f"{where} must be a finite number, got {shown(value)}")
    return number


def _check_bounds(bounds: Mapping[str, Any], value: Any, where: str) -> None:
    if value is None or (isinstance(value, str) and "choices" not in bounds):
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
        raise UserError(f"{where} must be {describe(type(value), bounds)}, got {shown(value)}")


def describe(hint: Any, bounds: Mapping[str, Any]) -> str:
    """Describe in words what a value must be: a whole number at least 1."""
    if "choices" in bounds:
        return "one of " + ", ".join(map(str, bounds["choices"]))
    if is_union(hint):
        return " or ".join([describe(without_words(hint), bounds), *filter(None, words_of(hint))])
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    name = names.get(hint) if isinstance(hint, type) else None
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
