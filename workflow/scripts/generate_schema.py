"""Write the config's schema and README from the recipes of the stages.

python workflow/scripts/generate_schema.py [DIRECTORY]

writes workflow/schemas/config.schema.yaml and config/README.md, below DIRECTORY if given.
"""

import functools
import json
import sys
from pathlib import Path
from typing import Any

import yaml

HOME = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOME / "workflow"))

from scripts.config.sections import Config  # noqa: E402
from stages.lib.manifest import TRAINING  # noqa: E402
from stages.lib.recipe_schema import json_schema  # noqa: E402

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"

INTRODUCTION = """\
# The config

A config defines what is made: from which text, with which tokenizer, which models, how they are trained and scored. A
profile defines where it is made and with which resources (see ../profiles/README.md).

Without `--configfile`, `config.yaml` beside this page is used. With `--configfile mine.yaml`, nothing of it is used.
`--configfile mine.yaml more.yaml` reads both, and `--config set=runs.base.pretrain.steps=240` replaces one value: see
[running](../docs/running.md#values-of-the-command-line). `python -m tools.check mine.yaml` checks a config.

`python workflow/scripts/generate_schema.py` makes this page. The **kind** of a key tells what a change of it does:

- *identity*: the result changes. What is made with this key is made again, and everything after it;
- *operation*: how the work is done. Nothing is made again; the next job uses the new value;
- *horizon*: how far a run trains. Nothing that exists is made again;
- *name*: refers to an entry of another section;
- *workflow*: read by the workflow only, not by a stage.

Examples are of the configs beside this page and of `../workflow/schemas/examples.yaml`; a key without one takes
values like its default. Numbers may be written as `0.001` or `1e-3`. Names are yours: up to 100 letters, digits, dots,
dashes and underscores.
"""


EXAMPLES = "workflow/schemas/examples.yaml"
WIDTH = 60
"""Characters of an example at most."""


@functools.cache
def _shown_configs() -> list[Schema]:
    """Return the configs that have examples: those that come with the project, and EXAMPLES."""
    places = [*sorted((HOME / "config").rglob("*.yaml")), HOME / EXAMPLES]
    return [yaml.safe_load(place.read_text(encoding="utf-8")) for place in places]


def _values(configs: list[Any], path: list[str]) -> list[Any]:
    """Return the values of a key in configs. `path`: names of keys; NAME stands for any, [] for items of a list."""
    for part in path:
        if part == "[]":
            configs = [item for value in configs if isinstance(value, list) for item in value]
        else:
            groups = [value for value in configs if isinstance(value, dict)]
            configs = [value for group in groups for name, value in group.items() if part in ("NAME", name)]
    return configs


def _example_of(path: list[str], schema: Schema) -> str:
    """Return an example of a key in Markdown: a value other than its default, or "" if only the default is known.

    Raises ValueError if the key has neither.
    """
    default = schema.get("default")
    choices = [*schema.get("enum", ()), *([not default] if schema.get("type") == "boolean" else ())]
    for value in [*_values(_shown_configs(), path), *choices]:
        text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).removesuffix("...\n").strip()
        if value is not None and value != default and len(text) <= WIDTH:
            return "`{}`".format(text.replace("|", "\\|"))
    if default is None:
        raise ValueError(f"{EXAMPLES} must have an example of {'.'.join(path)}")
    return ""


def readme(schema: Schema) -> str:
    """Return the config's README: one table of keys per section."""
    lines: list[str] = [INTRODUCTION]
    beside: Schema = {}
    for key, part in schema["properties"].items():
        if part.get("additionalProperties"):
            lines += [f"\n## {key}.NAME\n", part["description"], *_table(part["additionalProperties"], f"{key}.NAME.")]
        else:
            beside[key] = part
    lines += ["\n## Beside the sections", *_table({"properties": beside}, "")]
    return "\n".join(lines) + "\n"


def _table(schema: Schema, section: str) -> list[str]:
    head = ["", "| key | type | default | example | kind | meaning |", "|---|---|---|---|---|---|"]
    return [*head, *_rows(schema, section, "")]


def _rows(schema: Schema, section: str, prefix: str) -> list[str]:
    rows: list[str] = []
    needed = _needed(schema)
    for key, part in schema["properties"].items():
        if "x-like" in part:
            rows += _rows_of_difference(section, prefix, key, part, schema["properties"][part["x-like"]])
            continue
        group = next((choice for choice in part.get("anyOf", [part]) if "properties" in choice), None)
        if group:
            rows += _rows(group, section, f"{prefix}{key}.")
            continue
        default = needed.get(key) or ("" if part.get("default") is None else f"`{json.dumps(part['default'])}`")
        meaning = part["description"].replace("|", "\\|")
        example = _example_of(f"{section}{prefix}{key}".replace("[]", ".[]").split("."), part)
        rows.append(f"| `{prefix}{key}` | {_type_of(part)} | {default} | {example} | {part['x-kind']} | {meaning} |")
        for item in [part.get("items", {}), *part.get("items", {}).get("anyOf", ())]:
            rows += _rows(item, section, f"{prefix}{key}[].") if "properties" in item else []
        if "properties" in (part.get("additionalProperties") or {}):
            rows += _rows(part["additionalProperties"], section, f"{prefix}{key}.NAME.")
    return rows


def _needed(schema: Schema) -> dict[str, str]:
    """{required key: the words in place of its default}."""
    needed = dict.fromkeys(schema.get("required", ()), "**required**")
    needed |= dict.fromkeys(schema.get("then", {}).get("required", ()), "**required** without `from`")
    for given, keys in schema.get("dependentRequired", {}).items():
        needed |= dict.fromkeys(keys, f"**required** with `{given}`")
    return needed


def _rows_of_difference(section: str, prefix: str, key: str, part: Schema, other: Schema) -> list[str]:
    """Return rows of a group that shares keys with another, which is shown in full: its own, and one for the others."""
    own, others, like = part["properties"], other["properties"], part["x-like"]
    different = {name: schema for name, schema in own.items() if others.get(name) != schema}
    shown = _rows({"properties": different, "required": part.get("required", ())}, section, f"{prefix}{key}.")
    without = ", ".join(f"`{name}`" for name in others if name not in own)
    meaning = f"For a tuned run: the other keys of `{like}`, except {without}."
    return [*shown, f"| `{prefix}{key}.KEY` | as `{like}.KEY` | | | | {meaning} |"]


def _type_of(schema: Schema) -> str:
    if "anyOf" in schema:
        return " or ".join(_type_of(part) for part in schema["anyOf"] if part["type"] != "null")
    if "properties" in schema:
        return "group of keys"
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    if schema["type"] == "array" and "items" not in schema:
        return "list of values"
    if schema["type"] == "array" and "properties" in schema["items"]:
        return "list of groups of keys"
    if schema["type"] == "array":
        return f"list of {_type_of(schema['items'])}"
    if schema["type"] == "object" and "properties" in schema["additionalProperties"]:
        return "name: group of keys"
    if schema["type"] == "object":
        return f"name: {_type_of(schema['additionalProperties'])}"
    kind = "number" if isinstance(schema["type"], list) else schema["type"]
    words = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true, false"}
    bounds = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<="}
    limits = [f"{sign} {schema[bound]}" for bound, sign in bounds.items() if bound in schema]
    return " ".join([words[kind], ", ".join(limits)]).strip()


def main(directory: Path | str = HOME) -> None:
    """Write both files below `directory`."""
    schema = {"$schema": DIALECT, "title": "The config of Caravan", **json_schema(Config)}
    page = readme(schema)
    runs = schema["properties"]["runs"]
    # keys of both trainings are written once
    pretrain, finetune = (runs["additionalProperties"]["properties"][name]["properties"] for name in TRAINING)
    for key in [key for key, part in finetune.items() if pretrain.get(key) == part]:
        finetune[key] = {"$ref": f"#/properties/runs/additionalProperties/anyOf/0/properties/pretrain/properties/{key}"}
    # a run that copies another may lack any key, and remove keys by null
    runs["additionalProperties"] = {"anyOf": [runs["additionalProperties"], {"type": "object", "required": ["from"]}]}
    text = "# Made by `python workflow/scripts/generate_schema.py` from the stages' recipes.\n"
    text += yaml.safe_dump(schema, sort_keys=False, width=120, allow_unicode=True)
    for path, content in (("workflow/schemas/config.schema.yaml", text), ("config/README.md", page)):
        Path(directory, path).parent.mkdir(parents=True, exist_ok=True)
        Path(directory, path).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
