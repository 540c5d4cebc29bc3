"""The interface of an objective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import numpy as np
    import torch

    from stages.lib.model.transformer import Transformer
    from stages.lib.training.trainer import Trainer


class Objective:
    """The loss that a training minimizes: a mean over units, such as targets or pairs. Subclasses override it."""

    figures: tuple[str, ...] = ("loss",)
    """Names of the figures in metrics.jsonl, each a mean over units like the loss, which is the first."""

    validation_figures: ClassVar[tuple[str, ...]] = ("loss",)
    """Names of those that the validation split is scored by."""

    rows_per_sample: ClassVar[int] = 1
    """Rows of seq_len tokens in a sample."""

    def prepare(self, trainer: Trainer) -> None:
        """Compute what the steps need besides their batches; all ranks call it once, before weights are loaded.

        It may set the trainer's weights, and may raise StopRequested.
        """

    def count(self, batch: Sequence[np.ndarray]) -> int:
        """Return the number of units of this rank's share of a batch."""
        raise NotImplementedError

    def sums(
        self, model: Transformer, micro_batch: Sequence[torch.Tensor], document_end: int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (the sum to differentiate, float64 [figures]: the sums of `figures`) over the units of a micro-batch.

        `micro_batch`: the arrays of `Samples.batch` as int64 tensors [samples, ...]. A sample without targets fills up
        a batch, and must add 0. `document_end`: the token that ends a document, if attention stays within documents.
        """
        raise NotImplementedError
