"""Parts of the config's schema that several sections share: names, groups of keys, a stage's recipe."""

from collections.abc import Iterable
from typing import Any

from stages.lib import recipe_schema
from stages.registry import STAGES

Schema = dict[str, Any]
NAME = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}(?!\\n)$"}


def recipe_of(stage: str) -> Schema:
    """Return the JSON schema of a stage's recipe."""
    return recipe_schema.json_schema(STAGES[stage].recipe_type)


def mapping(properties: Schema, required: Iterable[str] = ()) -> Schema:
    """Return the schema of a mapping with these keys and no others."""
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    schema["x-expected"] = "a mapping of keys to values"
    return schema | ({"required": list(required)} if required else {})


def section(description: str, entry: Schema) -> Schema:
    """Return the schema of a section: entries under names that the user chooses."""
    return {
        "type": "object",
        "description": description,
        "minProperties": 1,
        "propertyNames": NAME,
        "additionalProperties": entry,
        "x-expected": "a mapping of keys to values with at least one entry",
    }


def text(description: str, kind: str) -> Schema:
    """Return the schema of a key whose value is text."""
    return {"type": "string", "description": description, "x-kind": kind, "x-expected": "text"}


def name(description: str) -> Schema:
    """Return the schema of a key that names an entry of another section."""
    return text(description, "name")


def names(description: str) -> Schema:
    """Return the schema of a key that names entries of another section."""
    return {
        "type": "array",
        "items": {"type": "string", "x-expected": "text"},
        "minItems": 1,
        "uniqueItems": True,
        "description": description,
        "x-kind": "name",
        "x-expected": "a list with at least one entry and none of them twice",
    }


def whole(description: str, kind: str) -> Schema:
    """Return the schema of a key whose value is a whole number of at least 1."""
    expected = "a whole number at least 1"
    return {"type": "integer", "minimum": 1, "description": description, "x-kind": kind, "x-expected": expected}


def switch(description: str) -> Schema:
    """Return the schema of a key of the workflow that is off unless it is set to true."""
    value = {"type": "boolean", "default": False, "description": description}
    return value | {"x-kind": "workflow", "x-expected": "true or false"}
