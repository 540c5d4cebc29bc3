"""Recipes: frozen dataclasses that configure a stage, and their reading from JSON.

A recipe stands beside the code that it configures. Each field has a kind:

- identity: changes the result (model, optimizer, data, seed, dtype);
- operation: does not (micro-batch size, checkpoint interval, logging);
- horizon: the total number of steps.

A docstring stands under each field; `recipe_schema` reads it, so that the schema, the config's README and `--help` say
the same.

A recipe may have variants, of which its data name one: see Variants.
"""

import contextlib
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
NO_BOUNDS: Mapping[str, Any] = types.MappingProxyType({})
MAXIMUM, MAXIMUM_FLOAT = 1 << 63, 1e308
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200
_SHORT.maxlist = _SHORT.maxdict = 20
_SHORT.maxlong = 40
_SHORT.maxlevel = 3
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""A name of the user's, by which files and directories are named."""

NAME_IN_WORDS = "a name of up to 100 letters, digits, dots, dashes and underscores"
NUMBERS = ("no", "one", "two", "three")
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


def field(
    kind: str,
    default: Any = dataclasses.MISSING,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: Iterable[str] | None = None,
    entries: int | None = None,
    unique: bool | None = None,
    names: bool | None = None,
    needs: Iterable[str] | None = None,
    replaces_required: bool | None = None,
    switch: bool | None = None,
    variants: Variants[Any] | None = None,
    like: str | None = None,
) -> Any:
    """Declare a field of a kind.

    minimum, maximum, above, choices: bounds of a number or text, or of those in a list or mapping; inclusive except
    `above`. entries: the fewest entries of a list or mapping (at most 3). unique: no entry of a list is in it twice.
    names: the keys of a mapping are names, see NAME. needs: keys that must stand beside this one.
    replaces_required: beside this key no other is required. switch: a group without keys is not what null is. variants:
    the recipes of which the field has one. like: the field whose keys it shares, for the config's README.
    """
    values = dict(
        minimum=minimum, maximum=maximum, above=above, choices=choices, entries=entries, unique=unique, names=names,
        needs=needs, replaces_required=replaces_required, switch=switch, variants=variants, like=like,
    )  # fmt: skip
    metadata = {"kind": kind, **{name: value for name, value in values.items() if value is not None}}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    if isinstance(default, (dict, list)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


identity = functools.partial(field, "identity")
"""Declare a field that changes the result."""

operation = functools.partial(field, "operation")
"""Declare a field that may change in the middle of a run and does not change the result."""

horizon = functools.partial(field, "horizon")
"""Declare a field for the length of a run."""


def load(recipe_type: type[Recipe] | Variants[Recipe], data: Any, where: str) -> Recipe:
    """Build a recipe from plain data, as JSON or YAML gives it.

    `where`: the dotted key under which the user wrote the data, for errors.
    Raises UserError on an unknown or missing key, a wrong type or a value out of bounds.
    """
    return Reader().group(recipe_type, data, where)


class Reader:
    """Reads plain data as the types of recipes; a subclass may make other objects of them, or take other values.

    Each method takes `where`, the dotted key of its data for errors, and raises UserError for the first mistake.
    """

    is_partial = False
    """True if keys may be missing, and any value may be null: the data are differences from others."""

    def make(self, recipe_type: type, keys: dict[str, Any], where: str) -> Any:
        """Return the recipe with these keys, which are read; a recipe that has `written_out` puts values for words."""
        if hasattr(recipe_type, "written_out"):
            keys = recipe_type.written_out(keys, where)
        recipe = recipe_type(**keys)
        if hasattr(recipe, "check"):
            recipe.check(where)
        return recipe

    def of_text(self, hint: Any, text: str) -> Any:
        """Return the value that a text stands for."""
        return text

    def meant(self, recipe_type: type, key: str, where: str) -> str | None:
        """Return the key of a recipe, or of a group in it, that an unknown one may be; None without a similar one."""
        hints = hints_of(recipe_type)
        inner = [
            f"{name}.{key}" for name, hint in hints.items() if any(key in hints_of(group) for group in groups_of(hint))
        ]
        return next(iter([*difflib.get_close_matches(key, hints, n=1), *inner]), None)

    def group(self, recipe_type: Any, data: Any, where: str) -> Any:
        """Return what `make` returns for a mapping with the keys of a recipe, or of one of its variants."""
        if not isinstance(data, dict):
            raise UserError(f"{where or 'the config'} must be a mapping of keys to values, got {shown(data)}")
        check_keys(data, where)
        variants = None
        if isinstance(recipe_type, Variants):
            variants, name = recipe_type, data.get(recipe_type.key, recipe_type.default)
            if not isinstance(name, str) or name not in variants.types:
                raise UserError(f"{where}.{variants.key} must be one of {', '.join(variants.types)}, got {shown(name)}")
            recipe_type = variants.types[name]
        fields, hints = fields_of(recipe_type), hints_of(recipe_type)
        for key in data:
            if key not in fields:
                if variants is not None:
                    _check_variant(recipe_type, variants, key, where)
                meant = self.meant(recipe_type, key, where)
                hint = f"did you mean {joined(where, meant)}? " if meant else ""
                raise UserError(f"unknown key {joined(where, key)}; {hint}known here: {', '.join(sorted(fields))}")
        if not self.is_partial:
            _check_missing(fields, hints, data, where)
        keys = {
            fields[key].name: self.value(hints[key], value, joined(where, key), fields[key].metadata)
            for key, value in data.items()
        }
        return self.make(recipe_type, keys, where)

    def value(self, hint: Any, value: Any, where: str, bounds: Mapping[str, Any] = NO_BOUNDS) -> Any:
        """Return a value of a type, read."""
        if value is None and self.is_partial:
            return None
        if isinstance(value, str):
            value = self.of_text(hint, value)
        if is_union(hint):
            words = words_of(hint)
            if (value is None and None in words) or (isinstance(value, str) and value in words):
                return value
            if isinstance(value, str) and any(words):
                raise _wrong(hint, bounds, value, where)
            return self.value(_member(hint, value), value, where, bounds)
        if is_group(hint):
            return self.group(hint, value, where)
        if typing.get_origin(hint) in (list, dict):
            return self._collection(hint, value, where, bounds)
        return value if hint is Any else _scalar(hint, value, where, bounds)

    def _collection(self, hint: Any, value: Any, where: str, bounds: Mapping[str, Any]) -> Any:
        is_list = typing.get_origin(hint) is list
        collections: Any = (list, tuple) if is_list else dict
        if not isinstance(value, collections) or len(value) < bounds.get("entries", 0):
            raise _wrong(hint, bounds, value, where)
        item_type = typing.get_args(hint)[-1]
        if is_list:
            items = [self.value(item_type, item, f"{where}[{at}]", bounds) for at, item in enumerate(value)]
            if "unique" in bounds and any(item in items[:at] for at, item in enumerate(items)):
                raise _wrong(hint, bounds, value, where)
            return items
        check_keys(value, where)
        for key in value if "names" in bounds else ():
            if not NAME.fullmatch(key):
                raise UserError(f"{ascii(joined(where, key))[1:-1]:.200} must be {NAME_IN_WORDS}")
        return {key: self.value(item_type, item, joined(where, key), bounds) for key, item in value.items()}


def _scalar(hint: Any, value: Any, where: str, bounds: Mapping[str, Any]) -> Any:
    if hint is float:
        value = _convert_float(value, where)
    if hint is int and isinstance(value, str) and WITH_EXPONENT.fullmatch(value) and float(value).is_integer():
        value = int(float(value))
    if type(value) is not hint:
        raise _wrong(hint, bounds, value, where)
    if isinstance(value, str):
        # no file name, manifest or log can hold other text
        if "\0" in value or (not value.isascii() and value.encode(errors="replace").decode() != value):
            raise UserError(f"{where} must be text of Unicode characters without NUL, got {shown(value)}")
    elif isinstance(value, int) and abs(value) >= MAXIMUM:
        raise UserError(f"{where} must be a whole number below 2^63, got {shown(value)}")
    if (
        ("choices" in bounds and value not in bounds["choices"])
        or ("minimum" in bounds and value < bounds["minimum"])
        or ("maximum" in bounds and value > bounds["maximum"])
        or ("above" in bounds and value <= bounds["above"])
    ):
        raise _wrong(hint, bounds, value, where)
    return value


def _wrong(hint: Any, bounds: Mapping[str, Any], value: Any, where: str) -> UserError:
    return UserError(f"{where} must be {describe(hint, bounds)}, got {shown(value)}")


def _check_missing(
    fields: Mapping[str, dataclasses.Field[Any]], hints: Mapping[str, Any], data: Mapping[str, Any], where: str
) -> None:
    """Raise UserError for a key that is missing: a required one, or one that another key needs."""
    replacing = next((key for key, field in fields.items() if "replaces_required" in field.metadata), None)
    for key, field in fields.items():
        needing = [
            other for other in data if key in fields[other].metadata.get("needs", ()) and data[other] is not None
        ]
        if (needing and data.get(key) is None) or (is_required(field) and not {key, replacing} & data.keys()):
            reason = f" (or set {where.rpartition('.')[2]}.{replacing})" if replacing else ""
            reason = f", since {joined(where, needing[0])} is set" if needing else reason
            expected = describe(hints[key], field.metadata)
            raise UserError(f"{joined(where, key)} is missing: it must be {expected}{reason}")


def check_keys(data: Mapping[Any, Any], where: str) -> None:
    """Raise UserError for a key of a mapping that is not text."""
    for key in data:
        if not isinstance(key, str):
            raise UserError(
                f"{where or 'the config'} has the key {key!r}, which YAML reads as another type than text: quote it"
            )


def joined(where: str, key: str) -> str:
    """Return the dotted key of a key below `where`, "" for the config itself."""
    return f"{where}.{key}" if where else key


def _check_variant(recipe_type: type, variants: Variants[Any], key: str, where: str) -> None:
    """Raise UserError if a key belongs to other variants than the one that is loaded."""
    if owners := [name for name, variant in variants.types.items() if key in fields_of(variant)]:  # type: ignore[arg-type]
        (name,) = (name for name, variant in variants.types.items() if variant is recipe_type)
        raise UserError(f"{where}.{key} must be left out for {variants.key} {name}: it is a key of {', '.join(owners)}")


@functools.cache
def fields_of(recipe_type: type) -> dict[str, dataclasses.Field[Any]]:
    """Return {key: field} of a recipe. A key that is a keyword of Python has an underscore at its end in Python."""
    return {field.name.rstrip("_"): field for field in dataclasses.fields(recipe_type)}


@functools.cache
def hints_of(recipe_type: type) -> dict[str, Any]:
    """Return the types of a recipe's keys, or their Variants; to resolve them takes longer than to check a recipe."""
    hints = typing.get_type_hints(recipe_type)
    return {key: field.metadata.get("variants", hints[field.name]) for key, field in fields_of(recipe_type).items()}


def is_group(hint: Any) -> bool:
    """Return True for a recipe, or the variants of one."""
    return isinstance(hint, Variants) or (isinstance(hint, type) and dataclasses.is_dataclass(hint))


def groups_of(hint: Any) -> list[type]:
    """Return the recipe that a value of a type may be, beside null or other types; [] if it may be none."""
    return [part for part in members_of(hint) if isinstance(part, type) and dataclasses.is_dataclass(part)]


def below(hint: Any, key: str) -> Any:
    """Return the type of a key of a group, or of an entry of a mapping; None for an unknown key."""
    for part in members_of(hint):
        if part in groups_of(hint) and key in hints_of(part):
            return hints_of(part)[key]
        if typing.get_origin(part) is dict:
            return typing.get_args(part)[1]
    return None


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
    recipe_type: Any = type(recipe)
    keys = {key: getattr(recipe, field.name) for key, field in fields_of(recipe_type).items()}
    return written_keys(recipe_type, keys, kind)


def written_keys(recipe_type: type, keys: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the same of some keys of a recipe, whose groups are recipes, or plain data as a user wrote them."""
    result: dict[str, Any] = {}
    for key, value in keys.items():
        field, hint = fields_of(recipe_type)[key], hints_of(recipe_type)[key]
        if dataclasses.is_dataclass(value) or (groups_of(hint) and isinstance(value, dict)):
            group = _plain(hint, value, kind)
            if group or (field.metadata.get("switch") and field.metadata["kind"] == kind):
                result[key] = group
        elif field.metadata["kind"] == kind and (is_required(field) or value != default_of(field)):
            result[key] = _plain(hint, value, kind)
    return result


def _plain(hint: Any, value: Any, kind: str) -> Any:
    """Return recipes, in a list or mapping too, by `written_keys`, any other value unchanged."""
    groups, item_type = groups_of(hint), next(reversed(typing.get_args(hint)), None)
    if dataclasses.is_dataclass(value):
        return written(value, kind)
    if groups and isinstance(value, dict):
        return written_keys(groups[0], value, kind)
    if isinstance(value, list):
        return [_plain(item_type, item, kind) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item_type, item, kind) for name, item in value.items()}
    return value


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a dataclass field; dataclasses.MISSING if it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Return True if a dataclass field has no default."""
    return default_of(field) is dataclasses.MISSING


def has_default(field: dataclasses.Field[Any], hint: Any) -> bool:
    """Return True if a key has a default of its type; None for a type that may not be null says that it may be left
    out, and what that means is said elsewhere."""
    return not is_required(field) and (default_of(field) is not None or may_be_null(hint))


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


def may_be_null(hint: Any) -> bool:
    """Return True for a type beside None."""
    return is_union(hint) and None in words_of(hint)


def members_of(hint: Any) -> list[Any]:
    """Return the types of a union beside its words; of another type, itself."""
    parts = typing.get_args(hint) if is_union(hint) else [hint]
    return [part for part in parts if part is not types.NoneType and typing.get_origin(part) is not typing.Literal]


def _member(hint: Any, value: Any) -> Any:
    """Return the type of a union that a value may have: a mapping is a group, if the union has one."""
    members = members_of(hint)
    return next((part for part in members if is_group(part) == isinstance(value, dict)), members[0])


def shown(value: Any) -> str:
    """Return a value for a message, shortened: it may be megabytes of text, or anchors of YAML that explode."""
    if value is None:
        return "null"
    try:
        return _SHORT.repr(value)[:300]
    except ValueError:  # more digits than Python converts
        return "a number of thousands of digits"


def _convert_float(value: Any, where: str) -> float:
    number = None
    if isinstance(value, str):  # YAML 1.1 reads 1e-3 as a string
        with contextlib.suppress(ValueError):
            number = float(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value) if abs(value) < MAXIMUM_FLOAT else math.inf
    if number is None:
        raise UserError(f"{where} must be a number, got {shown(value)}")
    if not math.isfinite(number):
        raise UserError(f"{where} must be a finite number, got {shown(value)}")
    return number


def describe(hint: Any, bounds: Mapping[str, Any]) -> str:
    """Describe in words what a value must be: a whole number at least 1."""
    if "choices" in bounds:
        choices = "one of " + ", ".join(map(str, bounds["choices"]))
        return f"a list, each entry {choices}" if typing.get_origin(hint) is list else choices
    if is_union(hint):
        return " or ".join([*(describe(part, bounds) for part in members_of(hint)), *filter(None, words_of(hint))])
    if is_group(hint):
        return "a mapping of keys to values"
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (list, dict):
        name = "a list" if origin is list else "a mapping"
        if origin is dict and (is_group(arguments[1]) or typing.get_origin(arguments[1]) is list):
            name += f" of keys to {'values' if is_group(arguments[1]) else 'lists'}"
        number = bounds.get("entries", 0)
        entries = f" with at least {NUMBERS[number]} {'entry' if number == 1 else 'entries'}" if number else ""
        is_unique = "unique" in bounds and origin is list
        repeated = " and none of them twice" if entries else " without repeated entries"
        return name + entries + (repeated if is_unique else "")
    name = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[hint]
    words = {"minimum": "at least", "above": "greater than", "maximum": "at most"}
    limits = [f"{word} {bounds[bound]}" for bound, word in words.items() if bound in bounds]
    return " ".join([name, " and ".join(limits)]).strip()
