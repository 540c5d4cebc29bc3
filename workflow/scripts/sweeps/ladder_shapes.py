"""Models of a target's family: their number of parameters, and smaller ones of the same proportions.

A smaller model keeps the target's head size, its ratio of intermediate_size to hidden_size, its query heads per
key-value head, its vocabulary and all else. Width and depth shrink together, as in Chinchilla's and OLMo's ladders: of
all numbers of heads and layers, the one is taken that comes near the wanted size and near the target's ratio of width
to depth.
"""

import dataclasses
import functools
import math
from typing import Any

from stages.lib.model.flops import active_count
from stages.lib.model.model_recipe import ModelRecipe

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
    keys = {
        "num_attention_heads": heads,
        "num_key_value_heads": _kv_heads(target, heads),
        "intermediate_size": _inner(target, width),
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
        if one > parameters:
            break  # wider ones are farther off, and a config.json may have a billion heads

    def distance(model: ModelRecipe) -> float:
        size = math.log(num_parameters(model, vocab_size) / parameters)
        return abs(size) + WEIGHT_OF_RATIO * abs(math.log(model.hidden_size / model.num_hidden_layers / ratio))

    return min(models, key=distance)


def _width_per_head(target: ModelRecipe) -> int:
    return max(1, target.hidden_size // target.num_attention_heads)


def _kv_heads(target: ModelRecipe, heads: int) -> int:
    wanted = heads * target.kv_heads / target.num_attention_heads
    divisors = [number for number in range(1, heads + 1) if heads % number == 0]
    return min(divisors, key=lambda number: abs(number - wanted))


def _inner(target: ModelRecipe, width: int) -> int:
    exact = target.intermediate_size * width / target.hidden_size
    return max(MULTIPLE, round(exact / MULTIPLE) * MULTIPLE)
