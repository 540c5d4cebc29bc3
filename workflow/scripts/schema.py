"""The schema of the config, from the recipes of the stages: for editors, the README and the check of a config."""

from collections.abc import Iterable
from typing import Any

from stages.lib import recipe_schema
from stages.registry import STAGES

Schema = dict[str, Any]
NAME = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}(?!\\n)$"}


def recipe_of(stage: str) -> Schema:
    """Return the JSON schema of a stage's recipe."""
    recipe_type = STAGES[stage].recipe_type
    assert recipe_type is not None
    return recipe_schema.json_schema(recipe_type)


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


MILESTONES = {
    "type": "array",
    "items": {"type": "integer", "minimum": 1, "x-expected": "a whole number at least 1"},
    "minItems": 1,
    "description": "Milestones: steps (or epochs) whose checkpoints are kept, exported and scored. Increasing, at most "
    "`steps` (or `epochs`); one job each. Appending one resumes from the last. Default: the last step.",
    "x-kind": "horizon",
    "x-expected": "a list with at least one entry",
}


def initial_schema() -> Schema:
    """Return the schema of what a run starts from."""
    properties = {
        "run": name(
            "The run whose model this run starts from; for a tuned run, the run to tune. A run with "
            "`pretrain` states in `pretrain.initial` what else it takes over."
        ),
        "step": whole("The milestone of that run: its number of steps, or of epochs.", "identity"),
        "sweep": name("In place of `run` and `step`: a sweep with `best`, whose best run this run starts from."),
        "path": text(
            "In place of `run` and `step`: the directory of a Hugging Face model, or a checkpoint of "
            "ibm-fms or fms-fsdp (a directory or file), relative to the working directory. A tuned run then needs "
            "`corpus`, which must have the model's tokenizer.",
            "identity",
        ),
        "config": text(
            "For a tuned run whose `path` is a checkpoint of ibm-fms or fms-fsdp: the config.json of "
            "its model. A run with `pretrain` has the config in `model`.",
            "identity",
        ),
    }
    return mapping(properties)


def model_schema(shape: Schema) -> Schema:
    """Return the schema of a run's model: its shape by keys, or by the config.json that `from` names."""
    properties = {
        "from": text(
            "The config.json of a Hugging Face model, or its directory, relative to the working "
            "directory. It gives the keys below, except those written beside it; the vocabulary is the tokenizer's.",
            "identity",
        ),
        **shape["properties"],
    }
    needed = {"required": shape["required"], "properties": shape["properties"]}
    return mapping(properties) | {"if": {"not": {"required": ["from"]}}, "then": needed}


def run_schema() -> Schema:
    """Return the schema of a run. Its trainer reads `pretrain` or `finetune`, other stages the keys around it.

    The workflow makes a job per entry of `milestones`.
    """
    pretrain, finetune = recipe_of("pretrain"), recipe_of("finetune")
    model = model_schema(pretrain["properties"].pop("model"))
    pretrain["properties"]["weights"]["description"] += " Default: all sources of the corpus, in equal shares."
    pretrain["required"] = [key for key in pretrain["required"] if key not in ("model", "weights")]
    for recipe in (pretrain, finetune):
        recipe["properties"]["milestones"] = MILESTONES
    properties = {
        "from": name(
            "The run to copy. The keys beside `from` override its own: mappings are merged, lists and other values "
            "are replaced, and `null` removes a key. See docs/sweeps.md."
        ),
        "corpus": name("The corpus to train on (default: the only one); a tuned run has that of its initial run."),
        "model": model,
        "pretrain": pretrain,
        "initial": initial_schema(),
        "finetune": finetune | {"x-like": "pretrain"},
        "convert": recipe_of("convert"),
        "card": recipe_of("describe"),
        "suites": names(
            "The suites that score every milestone (default: the only one); of a tuned run also the milestone that it "
            "was tuned from."
        ),
    }
    return mapping(properties) | {"dependentRequired": {"pretrain": ["model"], "finetune": ["initial"]}}


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


def ladder_schema() -> Schema:
    """Return the schema of a ladder. Only the workflow reads it: its runs are ordinary ones."""
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
    keys |= {key: whole(description, "workflow") for key, description in shape.items()}
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
    properties = {
        "target": name("The run whose loss is predicted: one with `pretrain`, without `initial`."),
        "sizes": sizes,
        "tokens_per_parameter": ratios,
        "vocab_size": whole(
            "Number of token ids: required with a custom tokenizer, not allowed otherwise.",
            "workflow",
        ),
    }
    return mapping(properties, ["target", "sizes", "tokens_per_parameter"])


def config_schema() -> Schema:
    """Return the JSON schema of the whole config."""
    sections = {
        "sources": section("Where text comes from.", recipe_of("list")),
        "tokenizers": section("How text becomes tokens.", tokenizer_schema()),
        "corpora": section("Sources, tokenized and cut into shards.", corpus_schema()),
        "suites": section("What a model is scored by.", suite_schema()),
        "runs": section(
            "Models, each trained on a corpus (`pretrain`) or on conversations, prompts and completions, or text "
            "(`finetune`).",
            run_schema(),
        ),
    }
    optional = {
        "sweeps": section("Runs by a grid of values: see docs/sweeps.md.", sweep_schema()),
        "ladders": section(
            "Small models of a run's family, from which its loss is predicted before it is trained: see "
            "[ladders](../docs/ladders.md).",
            ladder_schema(),
        ),
        "baselines": section(
            "Other models that the suites of all runs score, to compare with.",
            baseline_schema(),
        ),
        "contamination": recipe_of("find_contamination"),
        "results": text(
            "The directory of all results, logs and the summary, relative to the working directory or absolute; two "
            "configs with one each do not overwrite each other. No result depends on its name, and it may be moved.",
            "workflow",
        )
        | {"default": "results"},
        "tune": switch(
            "Include the tuned runs in `all`, `models`, `exports`, `scores` and `report`; the target `tuned` makes "
            "them in any case."
        ),
        "rerun_on_code": switch(
            "Rerun a stage before `convert`, training included, when its code changes. Comments never count. "
            "Switching it on reruns everything once. Later stages always follow their code."
        ),
    }
    schema = mapping(sections | optional, sections)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "The config of Caravan", **schema}


def tokenizer_schema() -> Schema:
    """Return the schema of a trained or custom tokenizer: either way some keys need each other."""
    schema = recipe_of("train_tokenizer")
    schema["properties"]["sample"]["description"] += " Default: all sources of text, in equal shares."
    return schema | {"dependentRequired": {"sample": ["vocab_size"], "path": ["bos", "eos"]}}


def corpus_schema() -> Schema:
    """Return the schema of a corpus."""
    properties = {
        "tokenizer": name("The tokenizer. Default: the only one."),
        "sources": names("Its sources; a run mixes them by its weights. Default: all sources of text."),
        "tokenize": recipe_of("tokenize"),
    }
    return mapping(properties)


def suite_schema() -> Schema:
    """Return the schema of a suite: the recipe of its evaluation, and the source that its own tasks read."""
    schema = recipe_of("evaluate")
    schema["properties"]["prompt_completion"] = name(
        "The prompt-completion source whose validation split the tasks completion_* read."
    )
    return schema


def baseline_schema() -> Schema:
    """Return the schema of a model that was made elsewhere."""
    properties = {
        "path": text(
            "A directory with config.json, *.safetensors and a tokenizer with a BOS token, relative to the working "
            "directory; or a repository of the Hub (`rule prefetch` downloads it).",
            "identity",
        ),
        "revision": text("Branch, tag or commit of the repository. Default: its newest.", "identity"),
    }
    return mapping(properties, ["path"])
