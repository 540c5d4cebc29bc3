"""Key tables: the tensors of a model, their names in FMS and in Hugging Face transformers, and their shapes.

FMS is IBM's Foundation Model Stack, whose state-dict keys our models have. It fuses matrices that transformers keeps
apart, and rotates neighbouring rows of a head (2i, 2i + 1), where transformers rotates rows i and i + head_dim / 2.

`key_table.build` makes the table of a model from its config. Export, import, initialization, the
parameter and FLOP counts and the parity check all read it.
"""

import math
from dataclasses import dataclass
from functools import cached_property


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


def keys_of(weights: list[Weight] | tuple[Weight, ...]) -> list[str]:
    """The FMS keys of some weights."""
    return [weight.key for weight in weights]
