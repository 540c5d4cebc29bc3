"""Dropout whose mask is a function of the seed, the sample and the layer, and of nothing else.

torch's dropout draws from the generator of a rank, so that its mask depends on the number of ranks, on the micro-batch
size, and on all that was drawn before. Here each row of a batch has its own generator. So every sharding and world size
trains the same model, a restart continues with the same bits, and a block that is recomputed has the same mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stages.lib.model.initialize import mixed_seed


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
