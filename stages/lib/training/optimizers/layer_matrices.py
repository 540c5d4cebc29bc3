"""The matrices of a model's layers, which an optimizer of matrices updates; embedding, head and vectors are others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from stages.lib.model import key_table

if TYPE_CHECKING:
    from stages.lib.model.transformer import Transformer


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerMatrix:
    """A parameter that holds one matrix, or several that transformers keeps apart (q, k and v; gate and up)."""

    parameter: torch.nn.Parameter

    rows: tuple[int, ...]
    """The rows of each matrix, from the top row down."""


def layer_matrices(model: Transformer) -> list[LayerMatrix]:
    """Return the matrices of all layers, by the model's key table."""
    table = key_table.build(model.recipe, model.vocab_size)
    weights = {weight.key: weight for layer in table.layers for weight in layer if weight.columns is not None}
    return [
        LayerMatrix(parameter=parameter, rows=tuple(part.rows for part in weights[name].parts))
        for name, parameter in model.named_parameters()
        if name in weights
    ]
