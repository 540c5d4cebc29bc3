"""Ladders: small models of a target's family, each an ordinary run, from which the target's loss is predicted.

`ladders.NAME` becomes one run per size and number of tokens per parameter, NAME-1.2M-20 for 1.2 million parameters and
20 tokens per parameter. Each has a schedule of its own that ends at its number of tokens.
"""

import copy
import dataclasses
import functools
import math
from typing import Any

from scripts.config.references import listed
from scripts.config.sections import PretrainRecipe
from stages.lib import recipe as recipes
from stages.lib.errors import UserError
from stages.lib.huggingface.config_json import model_identity
from stages.lib.model.architectures import ARCHITECTURES
from stages.lib.model.flops import active_count
from stages.lib.model.model_recipe import ModelRecipe
from stages.lib.training.optimizers.recipe import MATRIX_OPTIMIZERS

MULTIPLE = 8
"""intermediate_size of a smaller model is a multiple of this."""

WEIGHT_OF_RATIO = 0.25
"""Weight of a deviation from the target's ratio of width to depth, against one from the wanted size (logs of both)."""


def num_parameters(model: ModelRecipe, vocab_size: int) -> int:
    """Return the number of parameters of a model, embedding and head included, as Chinchilla's N.

    Of a sparse model's experts those count that a token passes through.
    """
    one, layer = _counts(dataclasses.replace(model, num_hidden_layers=1), vocab_size)
    return one + (model.num_hidden_layers - 1) * layer


@functools.lru_cache
def _counts(model: ModelRecipe, vocab_size: int) -> tuple[int, int]:
    """Return the parameters of a model of one layer, and of each further layer: all layers are alike."""
    one = active_count(model, vocab_size)
    return one, active_count(dataclasses.replace(model, num_hidden_layers=2), vocab_size) - one


def of_shape(target: ModelRecipe, shape: dict[str, Any]) -> ModelRecipe:
    """Return the model with a width and a depth; keys that `shape` has beside them are taken as they are."""
    width = shape["hidden_size"]
    heads = shape.get("num_attention_heads") or max(1, round(width / _width_per_head(target)))
    kv_heads = heads * target.kv_heads / target.num_attention_heads
    divisors = [number for number in range(1, heads + 1) if heads % number == 0]
    inner = target.intermediate_size * width / target.hidden_size
    keys = {
        "num_attention_heads": heads,
        "num_key_value_heads": min(divisors, key=lambda number: abs(number - kv_heads)),
        "intermediate_size": max(MULTIPLE, round(inner / MULTIPLE) * MULTIPLE),
    }
    return dataclasses.replace(target, **keys | shape)


def of_size(target: ModelRecipe, parameters: float, vocab_size: int) -> ModelRecipe:
    """Return the model of the target's proportions that is nearest to a number of parameters."""
    depth = target.num_hidden_layers
    ratio, models = target.hidden_size / depth, []
    for heads in range(1, target.num_attention_heads + 1):
        width = _width_per_head(target) * heads
        thin = of_shape(target, {"hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": heads})
        one, layer = _counts(thin, vocab_size)
        exact = 1 + (parameters - one) / layer
        wanted = {math.floor(exact), math.ceil(exact), round(width / ratio)}
        numbers = sorted(layers for layers in wanted if 1 <= layers <= depth)
        models += [dataclasses.replace(thin, num_hidden_layers=layers) for layers in numbers]
        if one > parameters:  # wider ones are farther off, and a config.json may have a billion heads
            models = models or [thin]
            break

    def distance(model: ModelRecipe) -> float:
        size = math.log(num_parameters(model, vocab_size) / parameters)
        return abs(size) + WEIGHT_OF_RATIO * abs(math.log(model.hidden_size / model.num_hidden_layers / ratio))

    return min(models, key=distance)


def _width_per_head(target: ModelRecipe) -> int:
    return max(1, target.hidden_size // target.num_attention_heads)


Config = dict[str, Any]

MIN_RUNS = 7
"""Fewest runs of a ladder: five constants are fitted, and two points more tell the scatter."""

MIN_STEPS = 10
"""Fewest steps of a run: a schedule with a warm-up needs some."""

MOST_OFF = 1.5
"""Largest factor between the parameters that a ladder requests and those of its model."""

RATE_EXPONENT, BATCH_EXPONENT = -1 / 3, 2 / 3
"""Powers of the number of parameters by which learning rate and batch follow it: those of OLMo's ladder (Bhagia et al.,
arXiv 2412.04403), by Porian et al. (arXiv 2406.19146)."""

SHAPE_KEYS = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    "head_dim",
)
SCALED_STEPS = ("warmup_steps", "decay_steps")


def with_ladders(config: Config) -> Config:
    """Return the config with the runs of its ladders; `ladders.NAME.runs` lists their names.

    Raises UserError for a ladder from which nothing can be predicted.
    """
    if "ladders" not in config:
        return config
    config = config | {"runs": dict(config["runs"]), "ladders": dict(config["ladders"])}
    targets = dict(config["runs"])
    for name, ladder in config["ladders"].items():
        made = _runs_of(f"ladders.{name}", name, ladder, config | {"runs": targets})
        for run in made:
            if run in config["runs"]:
                raise UserError(f"runs.{run} must have another name: ladders.{name} makes a run of this name")
        config["runs"] |= made
        config["ladders"][name] = ladder | {"runs": list(made)}
    return config


def ladder_runs(config: Config) -> list[str]:
    """Return the names of the runs that ladders make."""
    return [run for ladder in config.get("ladders", {}).values() for run in ladder["runs"]]


def planned_tokens(run: Config) -> int:
    """Return the number of tokens that a run is trained on: steps x samples x tokens per sample."""
    recipe = run["pretrain"]
    return recipe["steps"] * recipe["global_batch_size"] * recipe["seq_len"]


def _runs_of(where: str, name: str, ladder: Config, config: Config) -> Config:
    target = _target(where, ladder, config)
    sizes, ratios = len(ladder["sizes"]), len(ladder["tokens_per_parameter"])
    if sizes * ratios < MIN_RUNS:
        raise UserError(
            f"{where} must have at least {MIN_RUNS} runs (sizes x tokens_per_parameter), since 5 constants are fitted, "
            f"got {sizes} x {ratios}"
        )
    vocab_size = _vocab_size(where, ladder, config["corpora"][target["corpus"]], config)
    shape = _shape_of(where, target["model"])
    recipe = _with_defaults(target["pretrain"])
    largest = num_parameters(shape, vocab_size)
    made: Config = {}
    for number, size in enumerate(ladder["sizes"]):
        here = f"{where}.sizes[{number}]"
        given = size if isinstance(size, dict) else {"parameters": size}
        model, parameters = _model_of(here, given, shape, vocab_size)
        asked = given.get("parameters", parameters)
        if parameters >= largest:
            raise UserError(
                f"{here} must be smaller than the target {ladder['target']} ({largest:,} parameters), got {asked:,.0f}"
            )
        if not 1 / MOST_OFF < parameters / asked < MOST_OFF:
            raise UserError(
                f"{here} must be near a model with the target's head size and vocabulary: the nearest has "
                f"{parameters:,} parameters, got {asked:,.0f}"
            )
        for ratio in ladder["tokens_per_parameter"]:
            run = f"{name}-{_short(parameters)}-{ratio:g}"
            if run in made:
                raise UserError(
                    f"{here} must be another model than the sizes before it: {_short(parameters)} parameters are the "
                    "nearest with the target's head size"
                )
            horizon = (planned_tokens(target) / largest / ratio) ** ladder.get("horizon_exponent", 0.0)
            keys = _training_of(here, given, recipe, (parameters, largest), ratio, horizon)
            made[run] = copy.deepcopy(
                {key: value for key, value in target.items() if key in ("corpus", "suites")}
                | {"model": target["model"] | model, "pretrain": keys}
            )
    return made


def _target(where: str, ladder: Config, config: Config) -> Config:
    target = config["runs"].get(ladder["target"], {})
    if "pretrain" not in target or "initial" in target:
        known = [name for name, run in config["runs"].items() if "pretrain" in run and "initial" not in run]
        raise UserError(
            f"{where}.target must be a run with pretrain and without initial ({listed(known)}), "
            f"got {ladder['target']!r}"
        )
    return target


def _vocab_size(where: str, ladder: Config, corpus: Config, config: Config) -> int:
    name = corpus["tokenizer"]
    known = config["tokenizers"][name].get("vocab_size")
    if known is None and "vocab_size" not in ladder:
        raise UserError(
            f"{where}.vocab_size is missing: it must be the number of token ids of the custom tokenizer {name}"
        )
    if known is not None and "vocab_size" in ladder:
        raise UserError(f"{where}.vocab_size must be omitted: tokenizers.{name} has it")
    return ladder["vocab_size"] if known is None else known


def _shape_of(where: str, model: Config) -> ModelRecipe:
    """Return the target's model, with the keys of its config.json."""
    overrides = {key: value for key, value in model.items() if key != "from"}
    try:
        keys = model_identity(model["from"], overrides) if "from" in model else model
        return recipes.load(ARCHITECTURES, keys, "model")
    except UserError as error:
        raise UserError(f"{where}.target must have a valid model: {error}") from None


def _with_defaults(recipe: Config) -> Config:
    """Return the target's recipe with the defaults of the keys that a smaller model changes."""
    filled = {"micro_batch_size": PretrainRecipe.micro_batch_size} | recipe
    for group, key in (("optimizer", "learning_rate"), ("schedule", "warmup_steps")):
        filled[group] = {key: getattr(getattr(PretrainRecipe, group), key)} | recipe.get(group, {})
    return filled


def _model_of(where: str, given: Config, shape: ModelRecipe, vocab_size: int) -> tuple[Config, int]:
    """Return the keys of the model that differ from the target's, and its number of parameters."""
    explicit = {key: given[key] for key in SHAPE_KEYS if key in given}
    is_shape = {"hidden_size", "num_hidden_layers"} <= explicit.keys()
    if (explicit and "parameters" in given) or not (is_shape or "parameters" in given):
        raise UserError(f"{where} must have parameters, or hidden_size and num_hidden_layers")
    model = of_shape(shape, explicit) if explicit else of_size(shape, given["parameters"], vocab_size)
    keys = {key: getattr(model, key) for key in SHAPE_KEYS}
    return {key: value for key, value in keys.items() if value is not None}, num_parameters(model, vocab_size)


def _training_of(
    where: str, given: Config, recipe: Config, sizes: tuple[int, int], ratio: float, horizon: float
) -> Config:
    """Return `pretrain` of a run of the ladder.

    `sizes`: its number of parameters, and the target's; `ratio`: its tokens per parameter; `horizon`: the factor of the
    learning rate that follows from them.
    """
    parameters, largest = sizes
    scale = parameters / largest
    batch = given.get("global_batch_size") or _batch(recipe["global_batch_size"], scale)
    steps = round(ratio * parameters / (batch * recipe["seq_len"]))
    if steps < MIN_STEPS:
        raise UserError(
            f"{where} must be trained for at least {MIN_STEPS} steps, and {ratio:g} tokens per parameter are {steps} "
            f"steps of {batch * recipe['seq_len']:,} tokens; give it a smaller global_batch_size"
        )
    share = steps / recipe["steps"]
    scaled = {key: recipe["schedule"].get(key) for key in SCALED_STEPS}
    made = {key: value for key, value in recipe.items() if key != "milestones"}
    made |= {
        "steps": steps,
        "global_batch_size": batch,
        "micro_batch_size": math.gcd(recipe["micro_batch_size"], batch),
        "optimizer": _optimizer(recipe["optimizer"], given, scale**RATE_EXPONENT, horizon),
        "schedule": recipe["schedule"] | {key: _part(number, share) for key, number in scaled.items() if number},
    }
    if "data_stages" in recipe:
        stages = recipe["data_stages"]
        made["data_stages"] = [stage | {"step": _part(stage["step"], share)} for stage in stages]
    return made


def _part(steps: int, share: float) -> int:
    return max(1, round(steps * share))


def _optimizer(optimizer: Config, given: Config, factor: float, horizon: float) -> Config:
    """Return the optimizer with its learning rates scaled, to three digits; a given rate is that of all parameters.

    `factor` follows from the size, `horizon` from the number of tokens, for a given rate too.
    """
    rate = optimizer["learning_rate"]
    factor = (given["learning_rate"] / rate if "learning_rate" in given else factor) * horizon
    made = optimizer | {"learning_rate": _digits(rate * factor)}
    for name in MATRIX_OPTIMIZERS:
        keys = optimizer.get(name) or {}
        if keys.get("learning_rate") is not None:
            made[name] = keys | {"learning_rate": _digits(keys["learning_rate"] * factor)}
    return made


def _digits(value: float) -> float:
    return float(f"{value:.3g}")


def _batch(batch: int, scale: float) -> int:
    """Return the target's batch, halved as often as comes nearest to the rule and leaves a whole number."""
    halvings = round(math.log2(1 / scale**BATCH_EXPONENT))
    return next(batch >> number for number in range(halvings, -1, -1) if batch % (1 << number) == 0)


def _short(parameters: int) -> str:
    """Return a number of parameters in three digits, as 1.2M."""
    units = ((1e9, "B"), (1e6, "M"), (1e3, "k"))
    unit, letter = next((pair for pair in units if parameters >= 0.9995 * pair[0]), (1, ""))
    return f"{float(f'{parameters / unit:.3g}'):g}{letter}"
