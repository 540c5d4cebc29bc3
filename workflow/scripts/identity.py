"""The identity of a recipe: what a stage keeps of it in a manifest."""

import json
from typing import Any


def identity_of(schema: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    """Return the identity keys of a recipe that differ from their defaults, groups of keys included.

    `schema`: the JSON schema of the recipe. `written`: the keys that the user wrote, with numbers as numbers. The
    stages do the same with their dataclasses (`stages.lib.recipe.written`), and a test holds both equal.
    """
    kept: dict[str, Any] = {}
    for name, value in written.items():
        field = schema["properties"][name]
        group = next((choice for choice in (field, *field.get("anyOf", ())) if "properties" in choice), None)
        if group is not None and isinstance(value, dict):
            if below := identity_of(group, value):
                kept[name] = below
        elif field["x-kind"] == "identity":
            plain = _plain(field, value)
            if name in schema.get("required", ()) or "default" not in field or plain != field["default"]:
                kept[name] = plain
    return kept


def defaults_of(schema: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return {dotted key: default} of a recipe's identity keys, groups of keys included; a list as JSON.

    A manifest leaves them out, and the table of runs shows them.
    """
    found: dict[str, Any] = {}
    for name, field in schema["properties"].items():
        if "properties" in field:
            found |= defaults_of(field, f"{prefix}{name}.")
        elif field["x-kind"] == "identity" and "default" in field:
            default = field["default"]
            found[f"{prefix}{name}"] = json.dumps(default) if isinstance(default, list) else default
    return found


def dotted(data: dict[str, Any], prefix: str = "") -> set[str]:
    """Return the dotted keys of nested mappings."""
    found: set[str] = set()
    for name, value in data.items():
        found |= dotted(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}"}
    return found


def _plain(field: dict[str, Any], value: Any) -> Any:
    """Return a list or mapping of groups with each group's identity, any other value unchanged."""
    items, named = field.get("items", {}), field.get("additionalProperties", {})
    if isinstance(value, list) and "properties" in items:
        return [identity_of(items, item) for item in value]
    if isinstance(value, dict) and named and "properties" in named:
        return {name: identity_of(named, item) for name, item in value.items()}
    return value
