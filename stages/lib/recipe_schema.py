"""JSON schemas of recipes, from their types, bounds and the docstrings under their fields."""

import ast
import dataclasses
import functools
import inspect
import textwrap
import typing
from collections.abc import Mapping
from typing import Any

from stages.lib.recipe import Variants, default_of, describe, hints_of, is_required, is_union, without_words, words_of


@functools.cache
def docs_of(recipe_type: type) -> dict[str, str]:
    """Return the docstring under each field of a recipe and of the recipes that it extends, by the field's name."""
    docs: dict[str, str] = {}
    for ancestor in filter(dataclasses.is_dataclass, reversed(recipe_type.__mro__)):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(ancestor))).body
        assert isinstance(tree, ast.ClassDef)
        for statement, following in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
                docs[ast.unparse(statement.target)] = " ".join(ast.literal_eval(following.value).split())
    return docs


def json_schema(recipe_type: type | Variants[Any]) -> dict[str, Any]:
    """Return the JSON schema of a recipe: types, bounds, kinds (`x-kind`), defaults and descriptions.

    `x-expected` describes a value in words, for errors: the config's check, which imports no stage, reads it. Variants
    have the keys of all of them; a stage refuses those of another one.
    """
    if isinstance(recipe_type, Variants):
        return _schema_of_variants(recipe_type)
    hints = hints_of(recipe_type)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for field in dataclasses.fields(recipe_type):
        part = _schema_of(hints[field.name], field.metadata)
        part["description"] = docs_of(recipe_type)[field.name]
        part["x-kind"] = field.metadata["kind"]
        default = default_of(field)
        if is_required(field):
            required.append(field.name)
        elif not dataclasses.is_dataclass(default):
            part["default"] = default
        properties[field.name] = part
    schema: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": properties}
    schema["x-expected"] = "a mapping of keys to values"
    return schema | ({"required": required} if required else {})


def _schema_of_variants(variants: Variants[Any]) -> dict[str, Any]:
    """Return the schema of the keys of all variants; required are those that each requires."""
    schemas = {name: json_schema(variant) for name, variant in variants.types.items()}
    first, *others = schemas.values()
    properties = dict(first["properties"])
    for schema in others:
        properties |= {key: part for key, part in schema["properties"].items() if key not in properties}
    names = {"enum": list(schemas), "x-expected": describe(str, {"choices": list(schemas)})}
    properties[variants.key] = properties[variants.key] | names
    required = [key for key in first["required"] if all(key in schema["required"] for schema in others)]
    return first | {"properties": properties, "required": required}


def _schema_of(hint: Any, bounds: Mapping[str, Any]) -> dict[str, Any]:
    if is_union(hint):
        words = [_schema_of_word(word) for word in words_of(hint)]
        return {"anyOf": [_schema_of(without_words(hint), bounds), *words]}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, Variants) or (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
        return json_schema(hint)
    expected = {"x-expected": describe(hint, bounds)}
    if origin is list:
        return {"type": "array", "items": _schema_of(arguments[0], bounds), "x-expected": describe(hint, {})}
    if origin is dict:
        return {
            "type": "object",
            "additionalProperties": _schema_of(arguments[1], bounds),
            "x-expected": describe(hint, {}),
        }
    if hint is float:  # YAML 1.1 reads 1e-3 as a string, so the bounds hold for numbers only
        return {"type": ["number", "string"]} | _schema_bounds(bounds) | expected
    return {"type": {int: "integer", str: "string", bool: "boolean"}[hint]} | _schema_bounds(bounds) | expected


def _schema_of_word(word: str | None) -> dict[str, Any]:
    if word is None:
        return {"type": "null", "x-expected": "null"}
    return {"type": "string", "enum": [word], "x-expected": word}


def _schema_bounds(bounds: Mapping[str, Any]) -> dict[str, Any]:
    names = {"minimum": "minimum", "maximum": "maximum", "above": "exclusiveMinimum", "choices": "enum"}
    return {names[name]: list(bound) if name == "choices" else bound for name, bound in bounds.items() if name in names}
