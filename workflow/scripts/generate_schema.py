"""Write the config's schema and README from the recipes of the stages.

python workflow/scripts/generate_schema.py [DIRECTORY]

writes workflow/schemas/config.schema.yaml and config/README.md, below DIRECTORY if given.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

HOME = Path(__file__).resolve().parents[2]
Schema = dict[str, Any]
NAME = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}(?!\\n)$"}
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

Numbers may be written as `0.001` or `1e-3`. Names are yours: up to 100 letters, digits, dots, dashes and underscores.
[Renamed keys](../docs/renamed_keys.md) lists the names of earlier versions.
"""


MILESTONES = {
    "type": "array",
    "items": {"type": "integer", "minimum": 1, "x-expected": "a whole number at least 1"},
    "minItems": 1,
    "description": "Milestones: steps (or epochs) whose checkpoints are kept, exported and scored. Increasing, at most "
    "`steps` (or `epochs`); one job each. Appending one resumes from the last. Default: the last step.",
    "x-kind": "workflow",
    "x-expected": "a list with at least one entry",
}
INITIAL = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "run": {
            "type": "string",
            "description": "The run whose model this run starts from; for a tuned run, the run to tune. A run with "
            "`pretrain` states in `pretrain.initial` what else it takes over.",
            "x-kind": "name",
            "x-expected": "text",
        },
        "step": {
            "type": "integer",
            "minimum": 1,
            "description": "The milestone of that run: its number of steps, or of epochs.",
            "x-kind": "identity",
            "x-expected": "a whole number at least 1",
        },
        "sweep": {
            "type": "string",
            "description": "In place of `run` and `step`: a sweep with `best`, whose best run this run starts from.",
            "x-kind": "name",
            "x-expected": "text",
        },
        "path": {
            "type": "string",
            "description": "In place of `run` and `step`: the directory of a Hugging Face model, or a checkpoint of "
            "ibm-fms or fms-fsdp (a directory or file), relative to the working directory. A tuned run then needs "
            "`corpus`, which must have the model's tokenizer.",
            "x-kind": "identity",
            "x-expected": "text",
        },
        "config": {
            "type": "string",
            "description": "For a tuned run whose `path` is a checkpoint of ibm-fms or fms-fsdp: the config.json of "
            "its model. A run with `pretrain` has the config in `model`.",
            "x-kind": "identity",
            "x-expected": "text",
        },
    },
    "x-expected": "a mapping of keys to values",
}


def ladder_schema() -> Schema:
    """Return the schema of a ladder. Only the workflow reads it: its runs are ordinary ones."""
    whole = {"type": "integer", "minimum": 1, "x-kind": "workflow", "x-expected": "a whole number at least 1"}
    positive = {"type": ["number", "string"], "exclusiveMinimum": 0, "x-kind": "workflow"}
    positive["x-expected"] = "a number greater than 0"
    shape = {
        "hidden_size": "Width of the model; with `num_hidden_layers`, in place of `parameters`.",
        "num_hidden_layers": "Number of its blocks.",
        "num_attention_heads": "Default: as many as keep the target's head size.",
        "num_key_value_heads": "Default: as many as keep the target's query heads per key-value head.",
        "head_dim": "Default: the target's, if the config has it.",
        "intermediate_size": "Default: the target's ratio to `hidden_size`, as a multiple of 8.",
        "global_batch_size": "Default: the target's, halved until it is near (N / N of the target)^(2/3) of it.",
    }
    keys = {"parameters": positive | {"description": "Number of parameters, embedding and head included."}}
    keys |= {key: whole | {"description": text} for key, text in shape.items()}
    keys["learning_rate"] = positive | {
        "description": "Peak learning rate. Default: the target's times (N / N of the target)^(-1/3)."
    }
    size = {"anyOf": [positive, mapping(keys)], "x-expected": "a number greater than 0 or a mapping of keys to values"}
    sizes = {
        "type": "array",
        "items": size,
        "minItems": 3,
        "description": "Its sizes, at least three, each smaller than the target: a number of parameters (embedding and "
        "head included), for which the nearest model of the target's proportions is taken, or a group of keys.",
        "x-kind": "workflow",
        "x-expected": "a list with at least three entries",
    }
    ratios = sizes | {
        "items": positive,
        "minItems": 2,
        "uniqueItems": True,
        "description": "Tokens per parameter, at least two. Each size is trained once per entry, with a schedule that "
        "ends there.",
        "x-expected": "a list with at least two entries and none of them twice",
    }
    vocabulary = "Number of token ids, required with a custom tokenizer and for it alone."
    properties = {
        "target": name("The run whose loss is predicted: one with `pretrain`, without `initial`."),
        "sizes": sizes,
        "tokens_per_parameter": ratios,
        "vocab_size": whole | {"description": vocabulary},
    }
    return mapping(properties, ["target", "sizes", "tokens_per_parameter"])


def recipe_of(stage: str) -> Schema:
    """Return the JSON schema of a stage's recipe."""
    command = [sys.executable, "-P", "-m", f"stages.{stage}", "--schema"]
    environment = {**os.environ, "PYTHONPATH": str(HOME)}
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True).stdout)


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


def name(description: str) -> Schema:
    """Return the schema of a key that names an entry of another section."""
    return {"type": "string", "description": description, "x-kind": "name", "x-expected": "text"}


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


def model_schema(shape: Schema) -> Schema:
    """Return the schema of a run's model: its shape by keys, or by the config.json that `from` names."""
    properties = {
        "from": {
            "type": "string",
            "description": "The config.json of a Hugging Face model, or its directory, relative to the working "
            "directory. It gives the keys below, except those written beside it; the vocabulary is the tokenizer's.",
            "x-kind": "identity",
            "x-expected": "text",
        },
        **shape["properties"],
    }
    needed = {"required": shape["required"], "properties": shape["properties"]}
    return mapping(properties) | {"if": {"not": {"required": ["from"]}}, "then": needed}


def run_schema() -> Schema:
    """Return the schema of a run. Its trainer reads `pretrain` or `finetune`, other stages the keys around it.

    Only the workflow reads `milestones`.
    """
    pretrain, finetune = recipe_of("pretrain"), recipe_of("finetune")
    model = model_schema(pretrain["properties"].pop("model"))
    pretrain["required"].remove("model")
    for recipe in (pretrain, finetune):
        recipe["properties"]["milestones"] = MILESTONES
    properties = {
        "from": name(
            "Another run, which this one is with the differences that stand beside `from`: mappings are merged, lists "
            "and other values replaced, and `null` removes a key. See docs/sweeps.md."
        ),
        "corpus": name("The corpus to train on; a tuned run has that of its initial run."),
        "model": model,
        "pretrain": pretrain,
        "initial": INITIAL,
        "finetune": finetune | {"x-like": "pretrain"},
        "convert": recipe_of("convert"),
        "card": recipe_of("describe"),
        "suites": names(
            "The suites that score every milestone; of a tuned run also the milestone that it was tuned from."
        ),
    }
    needed = {"pretrain": ["corpus", "model"], "finetune": ["initial"]}
    return mapping(properties, ["suites"]) | {"dependentRequired": needed}


def sweep_schema() -> Schema:
    """Return the schema of a sweep."""
    axis = {"type": "array", "minItems": 1, "x-expected": "a list with at least one entry"}
    grid = {
        "type": "object",
        "additionalProperties": axis,
        "minProperties": 1,
        "description": "Values of each key of a run, as `pretrain.optimizer.learning_rate: [1e-3, 3e-3]`; `seed` is "
        "short for `pretrain.seed` or `finetune.seed`. One run per combination.",
        "x-kind": "workflow",
        "x-expected": "a mapping of keys to lists with at least one entry",
    }
    base = name("The run that each run of the sweep is with other values.")
    return mapping({"base": base, "grid": grid, "best": recipe_of("select_best")}, ["base", "grid"])


def tokenizer_schema() -> Schema:
    """Return the schema of a trained or custom tokenizer: either way some keys need each other."""
    needed = {"vocab_size": ["sample"], "sample": ["vocab_size"], "path": ["bos", "eos"]}
    return recipe_of("train_tokenizer") | {"dependentRequired": needed}


def config_schema() -> Schema:
    """Return the JSON schema of the whole config."""
    corpus = {
        "tokenizer": name("The tokenizer."),
        "sources": names("Its sources; a run mixes them by its weights."),
        "tokenize": recipe_of("tokenize"),
    }
    suite = recipe_of("evaluate")
    suite["properties"]["prompt_completion"] = name(
        "The prompt-completion source whose validation split the tasks completion_* read."
    )
    tune = {
        "type": "boolean",
        "default": False,
        "description": "Include the tuned runs in `all`, `models`, `exports`, `scores` and `report`; the target "
        "`tuned` makes them in any case.",
        "x-kind": "workflow",
        "x-expected": "true or false",
    }
    rerun_on_code = {
        "type": "boolean",
        "default": False,
        "description": "Rerun a stage before `convert`, training included, when its code changes. Comments never "
        "count. Switching it on reruns everything once. Later stages always follow their code.",
        "x-kind": "workflow",
        "x-expected": "true or false",
    }
    results = {
        "type": "string",
        "default": "results",
        "description": "The directory of all results, logs and the summary, relative to the working directory or "
        "absolute; two configs with one each do not overwrite each other. No result depends on its name, and it may be "
        "moved.",
        "x-kind": "workflow",
        "x-expected": "text",
    }
    sections = {
        "sources": section("Where text comes from.", recipe_of("list")),
        "tokenizers": section("How text becomes tokens.", tokenizer_schema()),
        "corpora": section("Sources, tokenized and cut into shards.", mapping(corpus, ["tokenizer", "sources"])),
        "suites": section("What a model is scored by.", suite),
        "runs": section(
            "Models, each trained on a corpus (`pretrain`) or on conversations, prompts and completions, or text "
            "(`finetune`).",
            run_schema(),
        ),
    }
    baseline = mapping(
        {
            "path": {
                "type": "string",
                "description": "A directory with config.json, *.safetensors and a tokenizer with a BOS token, relative "
                "to the working directory; or a repository of the Hub (`rule prefetch` downloads it).",
                "x-kind": "identity",
                "x-expected": "text",
            },
            "revision": {
                "type": "string",
                "description": "Branch, tag or commit of the repository. Default: its newest.",
                "x-kind": "identity",
                "x-expected": "text",
            },
        },
        ["path"],
    )
    baselines = section("Other models that the suites of all runs score, to compare with.", baseline)
    contamination = recipe_of("find_contamination")
    sweeps = section("Runs by a grid of values: see docs/sweeps.md.", sweep_schema())
    ladders = section(
        "Small models of a run's family, from which its loss is predicted before it is trained: see "
        "[ladders](../docs/ladders.md).",
        ladder_schema(),
    )
    beside = {"sweeps": sweeps, "ladders": ladders, "baselines": baselines, "contamination": contamination}
    beside |= {"results": results}
    beside |= {"tune": tune, "rerun_on_code": rerun_on_code}
    schema = mapping(sections | beside, sections)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "The config of Caravan", **schema}


def readme(schema: Schema) -> str:
    """Return the config's README: one table of keys per section."""
    lines: list[str] = [INTRODUCTION]
    beside: Schema = {}
    for key, part in schema["properties"].items():
        if part.get("additionalProperties"):
            lines += [f"\n## {key}.NAME\n", part["description"], *_table(part["additionalProperties"])]
        else:
            beside[key] = part
    lines += ["\n## Beside the sections", *_table({"properties": beside})]
    return "\n".join(lines) + "\n"


def _table(schema: Schema) -> list[str]:
    return ["", "| key | type | default | kind | meaning |", "|---|---|---|---|---|", *_rows(schema, "")]


def _rows(schema: Schema, prefix: str) -> list[str]:
    rows: list[str] = []
    needed = _needed(schema)
    for key, part in schema["properties"].items():
        if "x-like" in part:
            rows += _rows_of_difference(prefix, key, part, schema["properties"][part["x-like"]])
            continue
        group = next((choice for choice in part.get("anyOf", [part]) if "properties" in choice), None)
        if group:
            rows += _rows(group, f"{prefix}{key}.")
            continue
        default = needed.get(key) or _default_of(part)
        meaning = part["description"].replace("|", "\\|")
        rows.append(f"| `{prefix}{key}` | {_type_of(part)} | {default} | {part['x-kind']} | {meaning} |")
        for item in [part.get("items", {}), *part.get("items", {}).get("anyOf", ())]:
            rows += _rows(item, f"{prefix}{key}[].") if "properties" in item else []
        if "properties" in (part.get("additionalProperties") or {}):
            rows += _rows(part["additionalProperties"], f"{prefix}{key}.NAME.")
    return rows


def _needed(schema: Schema) -> dict[str, str]:
    """{required key: the words in place of its default}."""
    needed = dict.fromkeys(schema.get("required", ()), "**required**")
    needed |= dict.fromkeys(schema.get("then", {}).get("required", ()), "**required** without `from`")
    for given, keys in schema.get("dependentRequired", {}).items():
        needed |= dict.fromkeys(keys, f"**required** with `{given}`")
    return needed


def _rows_of_difference(prefix: str, key: str, part: Schema, other: Schema) -> list[str]:
    """Return rows of a group that shares keys with another, which is shown in full: its own, and one for the others."""
    own, others, like = part["properties"], other["properties"], part["x-like"]
    different = {name: schema for name, schema in own.items() if others.get(name) != schema}
    shown = _rows({"properties": different, "required": part.get("required", ())}, f"{prefix}{key}.")
    without = ", ".join(f"`{name}`" for name in others if name not in own)
    meaning = f"For a tuned run: the other keys of `{like}`, except {without}."
    return [*shown, f"| `{prefix}{key}.KEY` | as `{like}.KEY` | | | {meaning} |"]


def _default_of(schema: Schema) -> str:
    value = schema.get("default")
    return "" if value is None else f"`{json.dumps(value)}`"


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
    schema = config_schema()
    text = "# Made by `python workflow/scripts/generate_schema.py` from the stages' recipes.\n"
    text += yaml.safe_dump(schema, sort_keys=False, width=120, allow_unicode=True)
    for path, content in (("workflow/schemas/config.schema.yaml", text), ("config/README.md", readme(schema))):
        Path(directory, path).parent.mkdir(parents=True, exist_ok=True)
        Path(directory, path).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
