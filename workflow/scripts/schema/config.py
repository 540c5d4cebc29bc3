"""The schema of the whole config, from the recipes of the stages."""

from scripts.schema.keys import Schema, mapping, name, names, recipe_of, section, switch, text
from scripts.schema.runs import run_schema
from scripts.schema.sweeps import ladder_schema, sweep_schema


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
