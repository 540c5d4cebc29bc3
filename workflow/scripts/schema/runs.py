"""The schema of a run: its model, its training, and what it starts from."""

from scripts.schema.keys import Schema, mapping, name, names, recipe_of, text, whole

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
