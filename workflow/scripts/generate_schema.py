"""Write the config's schema and its README from what the stages say of their recipes.

python workflow/scripts/generate_schema.py [DIRECTORY]

writes workflow/schemas/config.schema.yaml and config/README.md, below DIRECTORY where one is given.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

HOME = Path(__file__).resolve().parents[2]
NAME = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]*$"}
INTRODUCTION = """\
# The config

A config says what is made: from which text, with which tokenizer, which models, how they are trained and scored. Where
it is made, and with how much, is said by a profile (see ../profiles/README.md).

`config.yaml` beside this page is used where no `--configfile` is given; with `--configfile mine.yaml`, none of it is.

This page is made by `python workflow/scripts/generate_schema.py`. The **kind** of a key says what a change of it does:

- *identity*: the result changes, so what is made with this key is made anew, and all after it;
- *operation*: how the work is done. Nothing is made anew; it holds from the next job on;
- *horizon*: how far a run goes. Nothing that is made is made anew;
- *name*: refers to an entry of another section;
- *workflow*: read by the workflow alone, no stage is told.

Numbers may be written as `0.001` or `1e-3`. Names are yours: letters, digits, dots, dashes and underscores.
"""


MILESTONES = {
    "type": "array",
    "items": {"type": "integer", "minimum": 1},
    "minItems": 1,
    "description": "Steps after which the model is converted and scored, increasing, none beyond `steps`; one job "
    "each. Appending one trains on from the last. Default: the last step alone.",
    "x-kind": "workflow",
}
INITIAL = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "run": {
            "type": "string",
            "description": "The run whose model this one goes on from; for a tuned run, that which is tuned. A run "
            "with `pretrain` says in `pretrain.initial` what else it takes over.",
            "x-kind": "name",
        },
        "step": {"type": "integer", "minimum": 1, "description": "That run's milestone.", "x-kind": "identity"},
        "path": {
            "type": "string",
            "description": "In place of `run` and `step`: the directory of a Hugging Face Llama, relative to the "
            "working directory. A tuned run then needs `corpus`, which must have the model's tokenizer.",
            "x-kind": "identity",
        },
    },
}


def recipe_of(stage):
    """The JSON schema of a stage's recipe."""
    command = [sys.executable, "-P", "-m", f"stages.{stage}", "--schema"]
    environment = {**os.environ, "PYTHONPATH": str(HOME)}
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True).stdout)


def mapping(properties, required=()):
    """The schema of a mapping with these keys and no others."""
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return schema | ({"required": list(required)} if required else {})


def section(description, entry):
    """The schema of a section: entries under names of the user's."""
    return {
        "type": "object",
        "description": description,
        "minProperties": 1,
        "propertyNames": NAME,
        "additionalProperties": entry,
    }


def name(description):
    """The schema of a key that names an entry of another section."""
    return {"type": "string", "description": description, "x-kind": "name"}


def names(description):
    """The schema of a key that names entries of another section."""
    return {
        "type": "array",
        "items": {"type": "string"},
        "minItems": 1,
        "uniqueItems": True,
        "description": description,
        "x-kind": "name",
    }


def run_schema():
    """The schema of a run: what its trainer is told stands in `pretrain` or `finetune`, and around it what others read.

    `milestones` is read by the workflow alone.
    """
    pretrain, finetune = recipe_of("pretrain"), recipe_of("finetune")
    model = pretrain["properties"].pop("model")
    pretrain["required"].remove("model")
    for recipe in (pretrain, finetune):
        recipe["properties"]["milestones"] = MILESTONES
    properties = {
        "corpus": name("The corpus that it is trained on; a tuned run has that of its initial run."),
        "model": model,
        "pretrain": pretrain,
        "initial": INITIAL,
        "prompt_completion": name("For a tuned run: the source of pairs that it is tuned on."),
        "finetune": finetune | {"x-like": "pretrain"},
        "convert": recipe_of("convert"),
        "suites": names(
            "The suites by which every milestone is scored; with a tuned run also the milestone that it was tuned from."
        ),
    }
    needed = {"pretrain": ["corpus", "model"], "finetune": ["initial", "prompt_completion"]}
    return mapping(properties, ["suites"]) | {"dependentRequired": needed}


def tokenizer_schema():
    """The schema of a tokenizer, which is trained, or a file of the user's: either way some keys need each other."""
    needed = {"vocab_size": ["sample"], "sample": ["vocab_size"], "path": ["bos", "eos"]}
    return recipe_of("train_tokenizer") | {"dependentRequired": needed}


def config_schema():
    """The JSON schema of the whole config."""
    corpus = {
        "tokenizer": name("The tokenizer."),
        "sources": names("The sources that it holds; a run mixes them by its weights."),
        "tokenize": recipe_of("tokenize"),
    }
    suite = recipe_of("evaluate")
    suite["properties"]["prompt_completion"] = name(
        "The source of pairs whose validation side completion_choice and completion_bits ask of."
    )
    tune = {
        "type": "boolean",
        "default": False,
        "description": "Whether `all`, `models`, `exports`, `scores` and `report` include the tuned runs; the target "
        "`tuned` makes them in any case.",
        "x-kind": "workflow",
    }
    rerun_on_code = {
        "type": "boolean",
        "default": False,
        "description": "Whether a stage before `convert`, training included, is run again when its code changes. "
        "Comments never count. Switching it on runs everything once. Later stages always follow their code.",
        "x-kind": "workflow",
    }
    sections = {
        "sources": section("Where text comes from.", recipe_of("list")),
        "tokenizers": section("How text becomes tokens.", tokenizer_schema()),
        "corpora": section("Sources, tokenized and cut into shards.", mapping(corpus, ["tokenizer", "sources"])),
        "suites": section("What a model is scored by.", suite),
        "runs": section("Models, each trained on a corpus (`pretrain`), or on pairs (`finetune`).", run_schema()),
    }
    schema = mapping(sections | {"tune": tune, "rerun_on_code": rerun_on_code}, sections)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "The config of Caravan", **schema}


def readme(schema):
    """The config's README: a table of keys for each section."""
    lines, beside = [INTRODUCTION], {}
    for key, part in schema["properties"].items():
        if "additionalProperties" in part:
            lines += [f"\n## {key}.NAME\n", part["description"], *_table(part["additionalProperties"])]
        else:
            beside[key] = part
    lines += ["\n## Beside the sections", *_table({"properties": beside})]
    return "\n".join(lines) + "\n"


def _table(schema):
    return ["", "| key | type | default | kind | meaning |", "|---|---|---|---|---|", *_rows(schema, "")]


def _rows(schema, prefix):
    rows, needed = [], _needed(schema)
    for key, part in schema["properties"].items():
        if "x-like" in part:
            rows.append(_row_of_difference(prefix, key, part, schema["properties"][part["x-like"]]))
            continue
        group = next((choice for choice in part.get("anyOf", [part]) if "properties" in choice), None)
        if group:
            rows += _rows(group, f"{prefix}{key}.")
            continue
        default = needed.get(key) or _default_of(part)
        meaning = part["description"].replace("|", "\\|")
        rows.append(f"| `{prefix}{key}` | {_type_of(part)} | {default} | {part['x-kind']} | {meaning} |")
        if "properties" in part.get("items", {}):
            rows += _rows(part["items"], f"{prefix}{key}[].")
    return rows


def _needed(schema):
    """{key: what stands in the place of its default, since there is none}."""
    needed = dict.fromkeys(schema.get("required", ()), "**required**")
    for given, keys in schema.get("dependentRequired", {}).items():
        needed |= dict.fromkeys(keys, f"**required** with `{given}`")
    return needed


def _row_of_difference(prefix, key, part, other):
    """One row for a group that has keys of another, which is shown in full; it must have no others."""
    own, others = part["properties"], other["properties"]
    if any(others[name] != schema for name, schema in own.items()):
        raise ValueError(f"{key} has keys that are not those of {part['x-like']}: show them")
    without = ", ".join(f"`{name}`" for name in others if name not in own)
    like = part["x-like"]
    return f"| `{prefix}{key}.KEY` | as `{like}.KEY` | | | For a tuned run: the keys of `{like}`, but for {without}. |"


def _default_of(schema):
    value = schema.get("default")
    return "" if value is None else f"`{json.dumps(value)}`"


def _type_of(schema):
    if "anyOf" in schema:
        return _type_of(next(part for part in schema["anyOf"] if part["type"] != "null"))
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    if schema["type"] == "array" and "properties" in schema["items"]:
        return "list of groups of keys"
    if schema["type"] == "array":
        return f"list of {_type_of(schema['items'])}"
    if schema["type"] == "object":
        return f"name: {_type_of(schema['additionalProperties'])}"
    kind = "number" if isinstance(schema["type"], list) else schema["type"]
    words = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true, false"}
    bounds = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<="}
    limits = [f"{sign} {schema[bound]}" for bound, sign in bounds.items() if bound in schema]
    return " ".join([words[kind], ", ".join(limits)]).strip()


def main(directory=HOME):
    """Write both files below `directory`."""
    schema = config_schema()
    text = "# Made by `python workflow/scripts/generate_schema.py` from the stages' recipes.\n"
    text += yaml.safe_dump(schema, sort_keys=False, width=120, allow_unicode=True)
    for path, content in (("workflow/schemas/config.schema.yaml", text), ("config/README.md", readme(schema))):
        Path(directory, path).parent.mkdir(parents=True, exist_ok=True)
        Path(directory, path).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
