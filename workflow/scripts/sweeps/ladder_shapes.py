"""Models of a target's family: their number of parameters, and smaller ones of the same proportions.

A smaller model keeps the target's head size, its ratio of intermediate_size to hidden_size, its query heads per
key-value head, its vocabulary and all else. Width and depth shrink together, as in Chinchilla's and OLMo's ladders: of
all numbers of heads and layers, the one is taken that comes near the wanted size and near the target's ratio of width
to depth.
"""

import math
from typing import Any

Model = dict[str, Any]

MULTIPLE = 8
"""intermediate_size of a smaller model is a multiple of this."""

WEIGHT_OF_RATIO = 0.25
"""Weight of a deviation from the target's ratio of width to depth, against one from the wanted size (logs of both)."""


def num_parameters(model: Model, vocab_size: int) -> int:
    """Return the number of parameters of a model, embedding and head included, as Chinchilla's N.

    Of a sparse model's experts those count that a token passes through.
    """
    width, inner, heads = model["hidden_size"], model["intermediate_size"], model["num_attention_heads"]
    head_dim, kv_heads = head_dim_of(model), kv_heads_of(model)
    attention = 2 * width * head_dim * (heads + kv_heads)
    if model.get("attention_bias"):
        attention += head_dim * (heads + 2 * kv_heads) + width
    if model.get("architecture") == "qwen3":
        attention += 2 * head_dim
    feed_forward = 3 * width * inner
    if model.get("architecture") == "mixtral":
        feed_forward = feed_forward * model.get("num_experts_per_tok", 2) + width * model.get("num_local_experts", 8)
    embeddings = vocab_size * width * (1 if model.get("tie_word_embeddings") else 2)
    return model["num_hidden_layers"] * (attention + feed_forward + 2 * width) + width + embeddings


def head_dim_of(model: Model) -> int:
    """Return the dimension of a head."""
    return model.get("head_dim") or model["hidden_size"] // model["num_attention_heads"]


def kv_heads_of(model: Model) -> int:
    """Return the number of key-value heads."""
    return model.get("num_key_value_heads") or model["num_attention_heads"]


def of_shape(target: Model, shape: Model) -> Model:
    """Return the keys of a model by its width and depth; keys that `shape` has beside them are taken as they are."""
    width = shape["hidden_size"]
    heads = shape.get("num_attention_heads") or max(1, round(width / _width_per_head(target)))
    model = {
        "num_hidden_layers": shape["num_hidden_layers"],
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": _kv_heads(target, heads),
        "intermediate_size": _inner(target, width),
    }
    if "head_dim" in target:
        model["head_dim"] = target["head_dim"]
    return target | model | shape


def of_size(target: Model, parameters: float, vocab_size: int) -> Model:
    """Return the model of the target's proportions that is nearest to a number of parameters."""
    most, depth = target["num_attention_heads"], target["num_hidden_layers"]
    ratio, models = target["hidden_size"] / depth, []
    for heads in range(1, most + 1):
        width = _width_per_head(target) * heads
        thin = of_shape(target, {"hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": heads})
        one, two = (num_parameters(thin | {"num_hidden_layers": layers}, vocab_size) for layers in (1, 2))
        exact = 1 + (parameters - one) / (two - one)
        wanted = {math.floor(exact), math.ceil(exact), round(width / ratio)}
        models += [thin | {"num_hidden_layers": layers} for layers in sorted(wanted) if 1 <= layers <= depth]

    def distance(model: Model) -> float:
        size = math.log(num_parameters(model, vocab_size) / parameters)
        return abs(size) + WEIGHT_OF_RATIO * abs(math.log(model["hidden_size"] / model["num_hidden_layers"] / ratio))

    return min(models, key=distance)


def _width_per_head(target: Model) -> int:
    return max(1, target["hidden_size"] // target["num_attention_heads"])


def _kv_heads(target: Model, heads: int) -> int:
    wanted = heads * kv_heads_of(target) / target["num_attention_heads"]
    divisors = [number for number in range(1, heads + 1) if heads % number == 0]
    return min(divisors, key=lambda number: abs(number - wanted))


def _inner(target: Model, width: int) -> int:
    exact = target["intermediate_size"] * width / target["hidden_size"]
    return max(MULTIPLE, round(exact / MULTIPLE) * MULTIPLE)
