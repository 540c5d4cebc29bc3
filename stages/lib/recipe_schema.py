"""JSON schemas of recipes, from their types, bounds and the docstrings under their fields: for editors and people."""

import ast
import dataclasses
import functools
import inspect
import textwrap
import typing
from collections.abc import Mapping
from typing import Any

from stages.lib import recipe as recipes
from stages.lib.recipe import NO_BOUNDS, Variants, default_of, fields_of, hints_of, is_required


@functools.cache
def docs_of(recipe_type: type) -> dict[str, str]:
    """Return the docstring under each field of a recipe and of the recipes that it extends, by the field's key."""
    docs: dict[str, str] = {}
    for ancestor in filter(dataclasses.is_dataclass, reversed(recipe_type.__mro__)):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(ancestor))).body
        except OSError:  # the recipes of several were joined, see the config's model
            continue
        assert isinstance(tree, ast.ClassDef)
        for statement, following in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
                text = " ".join(ast.literal_eval(following.value).split())
                docs[ast.unparse(statement.target).rstrip("_")] = text
    return docs


def json_schema(recipe_type: type | Variants[Any]) -> dict[str, Any]:
    """Return the JSON schema of a recipe: types, bounds, kinds (`x-kind`), defaults and descriptions.

    Variants have the keys of all of them; a stage refuses those of another one.
    """
    if isinstance(recipe_type, Variants):
        return _schema_of_variants(recipe_type)
    properties: dict[str, Any] = {}
    needs: dict[str, list[str]] = {}
    replacing = None
    for key, field in fields_of(recipe_type).items():
        hint, default = hints_of(recipe_type)[key], default_of(field)
        part = _schema_of(hint, field.metadata)
        part |= {"description": docs_of(recipe_type)[key], "x-kind": field.metadata["kind"]}
        if "like" in field.metadata:
            part["x-like"] = field.metadata["like"]
        if recipes.has_default(field, hint) and not dataclasses.is_dataclass(default):
            part["default"] = default
        properties[key] = part
        needs |= {key: list(field.metadata["needs"])} if "needs" in field.metadata else {}
        replacing = key if "replaces_required" in field.metadata else replacing
    schema: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": properties}
    if required := [key for key, field in fields_of(recipe_type).items() if is_required(field)]:
        needed = {"required": required}
        schema |= {"if": {"not": {"required": [replacing]}}, "then": needed} if replacing else needed
    return schema | ({"dependentRequired": needs} if needs else {})


def _schema_of_variants(variants: Variants[Any]) -> dict[str, Any]:
    """Return the schema of the keys of all variants; required are those that each requires."""
    schemas = {name: json_schema(variant) for name, variant in variants.types.items()}
    first, *others = schemas.values()
    properties = dict(first["properties"])
    for schema in others:
        properties |= {key: part for key, part in schema["properties"].items() if key not in properties}
    properties[variants.key] = properties[variants.key] | {"enum": list(schemas)}
    required = [key for key in first["required"] if all(key in schema["required"] for schema in others)]
    return first | {"properties": properties, "required": required}


def _schema_of(hint: Any, bounds: Mapping[str, Any]) -> dict[str, Any]:
    if recipes.is_union(hint):
        parts = [_schema_of(part, bounds) for part in recipes.members_of(hint)]
        words = recipes.words_of(hint)
        return {"anyOf": parts + [{"type": "string", "enum": [w]} if w else {"type": "null"} for w in words]}
    if recipes.is_group(hint):
        return json_schema(hint)
    if hint is Any:
        return {}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    entries = bounds.get("entries")
    if origin is list:
        items = {"items": _schema_of(arguments[0], bounds)} if arguments[0] is not Any else {}
        unique = {"uniqueItems": True} if "unique" in bounds else {}
        return {"type": "array", **items, **({"minItems": entries} if entries else {}), **unique}
    if origin is dict:
        names = {"propertyNames": {"pattern": f"^{recipes.NAME.pattern}$"}} if "names" in bounds else {}
        below = NO_BOUNDS if recipes.is_group(arguments[1]) else bounds
        values = {"additionalProperties": _schema_of(arguments[1], below)}
        return {"type": "object", **values, **({"minProperties": entries} if entries else {}), **names}
    # YAML 1.1 reads 1e-3 as a string, so the bounds hold for numbers only
    type_name = {float: ["number", "string"], int: "integer", str: "string", bool: "boolean"}[hint]
    names_of_bounds = {"minimum": "minimum", "maximum": "maximum", "above": "exclusiveMinimum", "choices": "enum"}
    limits = {name: bounds[bound] for bound, name in names_of_bounds.items() if bound in bounds}
    return {"type": type_name} | limits | ({"enum": list(limits["enum"])} if "enum" in limits else {})
