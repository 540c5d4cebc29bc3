"""The schemas of a sweep and of a ladder."""

from scripts.schema.keys import Schema, mapping, name, recipe_of, whole


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
