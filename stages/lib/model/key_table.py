"""The key table of a model, from its config: its tensors, their names in FMS and in transformers, and their shapes.

Imports no torch. FMS is IBM's Foundation Model Stack, whose state-dict keys our models have. It fuses matrices that
transformers keeps apart, and rotates neighbouring rows of a head (2i, 2i + 1), where transformers rotates rows i and
i + head_dim / 2. Export, import, initialization, the parameter and FLOP counts and the parity check all read the table.

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

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from stages.lib.errors import UserError
from stages.lib.model.model_recipe import ModelRecipe, RouterShape
from stages.lib.recipe import identity, shown


@dataclass(frozen=True, kw_only=True)
class Part:
    """A Hugging Face tensor: some rows of an FMS tensor."""

    name: str
    """The key in transformers' state dict."""

    rows: int

    rotary_heads: int | None = None
    """Number of heads if RoPE rotates these rows, whose order then differs in transformers; else None."""

    @property
    def module(self) -> str:
        """The name of the module in transformers: model.layers.0.self_attn.q_proj."""
        return self.name.rpartition(".")[0]

    @property
    def projection(self) -> str:
        """The last name of the module, by which LoRA targets it: q_proj."""
        return self.module.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True)
class Weight:
    """An FMS tensor."""

    key: str
    """The key in FMS's state dict."""

    parts: tuple[Part, ...]
    """Its Hugging Face tensors, from the top row down."""

    columns: int | None = None
    """None for a vector, the scale of a norm."""

    into_residual: bool = False
    """True if its product is added to the residual stream: its initial values are smaller."""

    active_rows: int | None = None
    """Number of rows that a token is multiplied by, if it is not all of them: those of its experts."""

    @property
    def shape(self) -> list[int]:
        """The shape of the FMS tensor."""
        return self._shape(sum(part.rows for part in self.parts))

    @property
    def numel(self) -> int:
        """The number of parameters."""
        return math.prod(self.shape)

    @property
    def active_numel(self) -> int:
        """The number of parameters that a token is multiplied by."""
        return self.numel if self.active_rows is None else math.prod(self._shape(self.active_rows))

    def part_shapes(self) -> dict[str, list[int]]:
        """{Hugging Face key: shape}."""
        return {part.name: self._shape(part.rows) for part in self.parts}

    def _shape(self, rows: int) -> list[int]:
        return [rows] if self.columns is None else [rows, self.columns]


@dataclass(frozen=True, kw_only=True)
class KeyTable:
    """The tensors of a model, in the order of its forward pass."""

    embedding: Weight
    layers: tuple[tuple[Weight, ...], ...]
    final_norm: Weight
    head: Weight

    tied: bool
    """True if the head is the embedding. transformers then stores no head, and FMS's state dict has it under both
    keys."""

    layer_modules: tuple[str, ...]
    """The name of each layer's module in transformers."""

    @property
    def groups(self) -> list[list[Weight]]:
        """The weights in groups that are read together: the embedding, each layer, the rest without a tied head."""
        last = [self.final_norm] if self.tied else [self.final_norm, self.head]
        return [[self.embedding], *map(list, self.layers), last]

    @property
    def weights(self) -> list[Weight]:
        """All weights, each once: a tied head is left out."""
        return [weight for group in self.groups for weight in group]

    @cached_property
    def by_key(self) -> dict[str, Weight]:
        """{key of FMS's state dict: weight}; the key of a tied head has the embedding."""
        found = {weight.key: weight for weight in self.weights}
        return found | {self.head.key: self.embedding} if self.tied else found

    def shapes(self) -> dict[str, list[int]]:
        """{Hugging Face key: shape} of all tensors that transformers stores."""
        return {name: shape for weight in self.weights for name, shape in weight.part_shapes().items()}


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


PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The last names of the linear layers' modules in transformers, without the output head."""


@dataclass(frozen=True, kw_only=True)
class LoraRecipe:
    """LoRA: the weights are frozen, and pairs of small matrices beside some of them are trained."""

    rank: int = identity(minimum=1)
    """Rank of the adapters, peft's `r`."""

    alpha: float = identity(16.0, above=0)
    """The product of an adapter's matrices is multiplied by `alpha / rank`."""

    dropout: float = identity(0.0, minimum=0, maximum=0.9)
    """Probability with which an element of an adapter's input is set to zero in training. The mask depends on seed,
    step and the sample's place in the global batch, so it is the same on any number of ranks and after a restart."""

    target_modules: list[str] | Literal["all-linear"] = identity("all-linear")
    """Hugging Face's names of the projections that have an adapter: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj,
    down_proj. all-linear: all of them that the model has. Embedding, output head, routers and experts have none."""

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the projections that have an adapter."""
        return PROJECTIONS if self.target_modules == "all-linear" else tuple(self.target_modules)

    def targets_of(self, table: KeyTable) -> list[str]:
        """The names of the projections of a model that have an adapter."""
        known = {part.projection for layer in table.layers for weight in layer for part in weight.parts}
        return [name for name in self.targets if name in known]

    def check_model(self, table: KeyTable, where: str) -> None:
        """Raise UserError if a named target is not a projection of this model."""
        if self.target_modules != "all-linear" and (missing := set(self.targets).difference(self.targets_of(table))):
            raise UserError(
                f"{where}.target_modules must be all-linear or some of {', '.join(PROJECTIONS)} that the model has, "
                f"got {shown(min(missing))}, which matches no module of it"
            )

    @property
    def scale(self) -> float:
        """The factor of an adapter's product."""
        return self.alpha / self.rank

    def check(self, where: str) -> None:
        """Raise UserError if a target is not a projection of the model, or there is none."""
        known = ", ".join(PROJECTIONS)
        if not self.targets:
            raise UserError(f"{where}.target_modules must be all-linear or have at least one of {known}, got none")
        for name in self.targets:
            if name not in PROJECTIONS:
                raise UserError(
                    f"{where}.target_modules must be all-linear or some of {known}, got {shown(name)}, which matches "
                    "no module"
                )
