"""The key table of a model, from its config. Imports no torch.

    base_model.embedding.weight                        [V, D]
    base_model.layers.N.ln.weight / ff_ln.weight       [D]
    base_model.layers.N.attn.in_proj.qkv_fused.weight  [(H + 2K) * hd, D]   rows: q; k; v
    base_model.layers.N.attn.dense.weight              [D, H * hd]
    base_model.layers.N.ff_sub_layer.wg1_fused.weight  [2F, D]              rows: gate; up
    base_model.layers.N.ff_sub_layer.w2.weight         [D, F]
    base_model.dec_norm.weight ; head.weight           [D] ; [V, D]

and for some architectures

    base_model.layers.N.attn.in_proj.qkv_fused.bias    [(H + 2K) * hd]
    base_model.layers.N.attn.dense.bias                [D]
    base_model.layers.N.attn.q_norm.weight / k_norm    [hd]

and for sparse ones, in place of wg1_fused and w2

    base_model.layers.N.ff_sub_layer.gate.weight       [E, D]
    base_model.layers.N.ff_sub_layer.cond_ffn.w13      [E * 2F, D]          rows: gate; up of each expert
    base_model.layers.N.ff_sub_layer.cond_ffn.w2       [E * D, F]

V is the vocabulary size, D the hidden size, H and K the numbers of attention heads and of key-value heads, hd the head
dimension, F the intermediate size, E the number of experts. FMS keeps the experts apart in a dimension of its own.
"""

from __future__ import annotations

from stages.lib.model.keys import KeyTable, Part, Weight
from stages.lib.model.model_recipe import ModelRecipe, RouterShape


def build(recipe: ModelRecipe, vocab_size: int) -> KeyTable:
    """The tensors of a model with an embedding of `vocab_size` rows."""
    hidden_size, numbers = recipe.hidden_size, range(recipe.num_hidden_layers)
    return KeyTable(
        embedding=_matrix("base_model.embedding", ("model.embed_tokens", vocab_size), columns=hidden_size),
        layers=tuple(_layer(recipe, f"base_model.layers.{number}.", f"model.layers.{number}.") for number in numbers),
        final_norm=_vector("base_model.dec_norm", ("model.norm", hidden_size)),
        head=_matrix("head", ("lm_head", vocab_size), columns=hidden_size),
        tied=recipe.tie_word_embeddings,
        layer_modules=tuple(f"model.layers.{number}" for number in numbers),
    )


def _layer(recipe: ModelRecipe, fms: str, hf: str) -> tuple[Weight, ...]:
    """The weights of a layer, in the order of its forward pass, by the prefixes of its keys."""
    return (
        _vector(fms + "ln", (hf + "input_layernorm", recipe.hidden_size)),
        *_attention(recipe, fms + "attn.", hf + "self_attn."),
        _vector(fms + "ff_ln", (hf + "post_attention_layernorm", recipe.hidden_size)),
        *(_feed_forward(recipe, fms, hf) if recipe.router is None else _experts(recipe, recipe.router, fms, hf)),
    )


def _attention(recipe: ModelRecipe, fms: str, hf: str) -> list[Weight]:
    q_rows, kv_rows = recipe.num_attention_heads * recipe.head_size, recipe.kv_heads * recipe.head_size
    query = (hf + "q_proj", q_rows, recipe.num_attention_heads)
    key = (hf + "k_proj", kv_rows, recipe.kv_heads)
    value, output = (hf + "v_proj", kv_rows), (hf + "o_proj", recipe.hidden_size)
    weights = [_matrix(fms + "in_proj.qkv_fused", query, key, value, columns=recipe.hidden_size)]
    if recipe.has_attention_bias:
        weights.append(_vector(fms + "in_proj.qkv_fused", query, key, value, kind=".bias"))
    if recipe.has_qk_norm:  # its scales are those of a rotated head
        weights.append(_vector(fms + "q_norm", (hf + "q_norm", recipe.head_size, 1)))
        weights.append(_vector(fms + "k_norm", (hf + "k_norm", recipe.head_size, 1)))
    weights.append(_matrix(fms + "dense", output, columns=q_rows, into_residual=True))
    if recipe.has_attention_bias:
        weights.append(_vector(fms + "dense", output, kind=".bias"))
    return weights


def _feed_forward(recipe: ModelRecipe, fms: str, hf: str) -> list[Weight]:
    size, fms, hf = recipe.intermediate_size, fms + "ff_sub_layer.", hf + "mlp."
    return [
        _matrix(fms + "wg1_fused", (hf + "gate_proj", size), (hf + "up_proj", size), columns=recipe.hidden_size),
        _matrix(fms + "w2", (hf + "down_proj", recipe.hidden_size), columns=size, into_residual=True),
    ]


def _experts(recipe: ModelRecipe, router: RouterShape, fms: str, hf: str) -> list[Weight]:
    """A router and its experts, under the keys of Mixtral's files; transformers 5 joins them when it loads them."""
    size, width, fms, hf = recipe.intermediate_size, recipe.hidden_size, fms + "ff_sub_layer.", hf + "block_sparse_moe."
    names = [f"{hf}experts.{number}." for number in range(router.num_experts)]
    gate_up = tuple(Part(name=f"{name}{matrix}.weight", rows=size) for name in names for matrix in ("w1", "w3"))
    down = tuple(Part(name=f"{name}w2.weight", rows=width) for name in names)
    active = router.experts_per_token
    return [
        _matrix(fms + "gate", (hf + "gate", router.num_experts), columns=width),
        Weight(key=fms + "cond_ffn.w13", parts=gate_up, columns=width, active_rows=2 * size * active),
        Weight(key=fms + "cond_ffn.w2", parts=down, columns=size, active_rows=width * active, into_residual=True),
    ]


Named = tuple[str, int] | tuple[str, int, int]
"""A part: its Hugging Face key without `.weight`, its rows, and its heads if RoPE rotates them."""


def _matrix(key: str, *parts: Named, columns: int, into_residual: bool = False) -> Weight:
    return Weight(key=key + ".weight", parts=_parts(parts, ".weight"), columns=columns, into_residual=into_residual)


def _vector(key: str, *parts: Named, kind: str = ".weight") -> Weight:
    return Weight(key=key + kind, parts=_parts(parts, kind))


def _parts(parts: tuple[Named, ...], kind: str) -> tuple[Part, ...]:
    return tuple(Part(name=name + kind, rows=rows, rotary_heads=next(iter(more), None)) for name, rows, *more in parts)
