"""The interface of an objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import numpy as np
    import torch

    from stages.lib.model.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """A training before its weights are loaded, as an objective sees it."""

    samples: Any
    """The training samples, `inputs.Samples`."""

    model: Transformer
    device: torch.device
    micro_batch_size: int
    directory: Path
    """The run directory."""

    init_weights: Callable[[], None]
    """Sets the weights with which the run begins."""

    reshard: Callable[[], None]
    """Frees parameters that forward passes without a backward pass gathered."""

    poll: Callable[[], None]
    """Call it before each forward pass: it restarts the watchdog's clock, and may raise StopRequested."""


class Objective:
    """The loss that a training minimizes: a mean over units, such as targets or pairs. Subclasses override it."""

    figures: tuple[str, ...] = ("loss",)
    """Names of the figures in metrics.jsonl, each a mean over units like the loss, which is the first."""

    validation_figures: ClassVar[tuple[str, ...]] = ("loss",)
    """Names of those that the validation split is scored by."""

    rows_per_sample: ClassVar[int] = 1
    """Rows of seq_len tokens in a sample."""

    def prepare(self, training: Preparation) -> None:
        """Compute what the steps need besides their batches; all ranks call it once. It may raise StopRequested."""

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
