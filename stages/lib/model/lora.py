"""LoRA adapters (arXiv 2106.09685) beside the matrices of a model.

An adapter belongs to a projection of transformers (q_proj), though our matrix may hold several (`qkv_fused`: q; k; v).
So its keys and shapes are peft's, except that the rows of lora_B have the order of our matrix:

    base_model.layers.N.attn.in_proj.qkv_fused.q_proj.lora_A   [rank, D]
    base_model.layers.N.attn.in_proj.qkv_fused.q_proj.lora_B   [H * hd, rank]

The keys of the weights beside them do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional

from stages.lib.model import key_table
from stages.lib.model.initialize import mixed_seed
from stages.lib.model.key_table import KeyTable, LoraRecipe, Part, Weight
from stages.lib.model.transformer import Transformer


class Rows:
    """The numbers of the rows of a batch within the run, int64 [B] on the CPU."""

    def __init__(self) -> None:
        self.numbers = torch.empty(0, dtype=torch.int64)

    def set(self, numbers: Sequence[int]) -> None:
        """Set the rows of the next forward pass in training, and of its backward pass."""
        self.numbers = torch.tensor(numbers, dtype=torch.int64)


class RowDropout:
    """Dropout of [B, L, D] in one layer. `rows`: those of the batch, for all layers."""

    def __init__(self, probability: float, seed: int, layer: int, rows: Rows) -> None:
        self.probability, self.seed, self.layer, self.rows = probability, seed, layer, rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[B, L, D] -> [B, L, D]: an element is zero with the probability, or divided by the rest of it."""
        if not self.probability:
            return x
        kept = _kept(x.detach(), self.rows.numbers, self.seed, self.layer, 1 - self.probability)
        return torch.where(kept, x / (1 - self.probability), 0)


@torch.library.custom_op("caravan::lora_dropout_mask", mutates_args=())  # torch.compile cannot trace generators
def _kept(x: torch.Tensor, rows: torch.Tensor, seed: int, layer: int, probability: float) -> torch.Tensor:
    """Bool in the shape of `x` [B, L, D], true with a probability."""
    kept = torch.empty(x.shape, dtype=torch.bool, device=x.device)
    for row, number in zip(kept, rows.tolist(), strict=True):
        generator = torch.Generator(x.device).manual_seed(mixed_seed(seed, f"lora dropout {layer}", number))
        row.bernoulli_(probability, generator=generator)
    return kept


@_kept.register_fake
def _(x: torch.Tensor, rows: torch.Tensor, seed: int, layer: int, probability: float) -> torch.Tensor:
    return torch.empty(x.shape, dtype=torch.bool, device=x.device)


MATRICES = ("lora_A", "lora_B")


class Adapter(nn.Module):
    """The product of two matrices of a low rank."""

    def __init__(self, columns: int, rows: int, rank: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.lora_A = nn.Parameter(torch.empty(rank, columns, dtype=dtype, device=device))
        self.lora_B = nn.Parameter(torch.empty(rows, rank, dtype=dtype, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, L, columns] -> [B, L, rows]."""
        # the casts do nothing under FSDP, which has cast the weights (training/parallelize.py)
        return functional.linear(functional.linear(x, self.lora_A.to(x.dtype)), self.lora_B.to(x.dtype))


class LoraLinear(nn.Linear):
    """A frozen matrix, and adapters beside some of its parts."""

    def __init__(self, linear: nn.Linear, parts: Iterable[Part], recipe: LoraRecipe, dropout: RowDropout) -> None:
        """`linear`: the frozen matrix [rows, columns] with its bias. `parts`: the matrix's parts in transformers."""
        weight = linear.weight
        rows, columns = weight.shape
        super().__init__(columns, rows, bias=False, device="meta")
        self.weight, self.bias, self.scale, self.dropout = weight, linear.bias, recipe.scale, dropout
        self.parts = [(part.projection, part.rows) for part in parts]
        for name, part_rows in self.parts:
            if name in recipe.targets:
                dtype = torch.promote_types(weight.dtype, torch.float32)
                self.add_module(name, Adapter(columns, part_rows, recipe.rank, dtype, weight.device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, L, columns] -> [B, L, rows]."""
        products = super().forward(x).split([rows for _, rows in self.parts], -1)
        x = self.dropout(x) if self.training else x
        adapted = [
            torch.add(product, self._modules[name](x), alpha=self.scale) if name in self._modules else product  # type: ignore[misc]
            for (name, _), product in zip(self.parts, products, strict=True)
        ]
        return adapted[0] if len(adapted) == 1 else torch.cat(adapted, -1)


def add_adapters(model: Transformer, recipe: LoraRecipe, seed: int = 0) -> Rows:
    """Freeze a model and put adapters beside the targets; their values are not set. `seed`: of the dropout.

    Adapters have the dtype of the model's weights, at least float32. Returns the rows that the dropout reads.
    """
    model.requires_grad_(False)
    rows = Rows()
    for number, weight in enumerate(adapted_weights(key_table.build(model.recipe, model.vocab_size), recipe)):
        path, _, name = weight.key.removesuffix(".weight").rpartition(".")
        parent = model.get_submodule(path)
        dropout = RowDropout(recipe.dropout, seed, number, rows)
        setattr(parent, name, LoraLinear(getattr(parent, name), weight.parts, recipe, dropout))
    return rows


def adapted_weights(table: KeyTable, recipe: LoraRecipe) -> Iterator[Weight]:
    """Yield the matrices of which a part has an adapter, in the order of the forward pass."""
    for weight in (weight for layer in table.layers for weight in layer if weight.columns is not None):
        if any(part.projection in recipe.targets for part in weight.parts):
            yield weight


def adapter_key(weight: Weight, part: Part, matrix: str) -> str:
    """The key of an adapter's matrix. `matrix`: of MATRICES."""
    return f"{weight.key.removesuffix('.weight')}.{part.projection}.{matrix}"


def adapter_shapes(table: KeyTable, recipe: LoraRecipe) -> dict[str, list[int]]:
    """{key: shape} of the adapters' matrices."""
    shapes = {}
    for weight in adapted_weights(table, recipe):
        for part in weight.parts:
            if part.projection in recipe.targets:
                assert weight.columns is not None
                shapes[adapter_key(weight, part, "lora_A")] = [recipe.rank, weight.columns]
                shapes[adapter_key(weight, part, "lora_B")] = [part.rows, recipe.rank]
    return shapes


@torch.no_grad()
def merged(
    weight: Weight, base: torch.Tensor, adapters: Mapping[str, torch.Tensor], recipe: LoraRecipe
) -> torch.Tensor:
    """A matrix with its adapters added, in float32 (float64 if the base is).

    `base`: the frozen matrix, in the dtype in which it was trained with. `adapters`: {key: tensor}.
    """
    whole = base.to(torch.promote_types(base.dtype, torch.float32), copy=True)
    for part, rows in zip(weight.parts, whole.split([part.rows for part in weight.parts]), strict=True):
        if part.projection in recipe.targets:
            a, b = (adapters[adapter_key(weight, part, matrix)].to(whole.dtype) for matrix in MATRICES)
            rows.addmm_(b, a, alpha=recipe.scale)
    return whole
