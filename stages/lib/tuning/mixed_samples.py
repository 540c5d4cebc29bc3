"""The order of the samples of a fine-tuning: rows of several sources, by global number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from stages.lib.tokens.data_order import Mixture, permute

VALIDATION_SEED = 0  # runs of all seeds have the same validation rows


class RowLayout(Protocol):
    """The rows of a source; `row_name`, `packs_documents`: as of `packing.Layout`."""

    row_name: str
    packs_documents: bool

    def __len__(self) -> int:
        """Return the number of rows."""


AnyLayout = TypeVar("AnyLayout", bound=RowLayout)


class MixedSamples(ABC, Generic[AnyLayout]):
    """All training samples of a fine-tuning, by global number: a sample is a row of a source, each once per epoch.

    `weights`: {source: weight}, its share of the samples. Sample g is a pure function of these arguments, so world size
    and micro-batch cannot change the order; the interface is that of `inputs.Samples`. `document_end`: the id that
    separates the examples of a row, None if a row has one.
    """

    rows_per_sample = 1

    def __init__(
        self,
        layouts: Mapping[str, AnyLayout],
        weights: Mapping[str, float],
        seq_len: int,
        seed: int,
        document_end: int | None,
    ) -> None:
        self.mixture, self.seed, self.seq_len = Mixture(weights, "finetune.weights"), seed, seq_len
        self.document_end = document_end
        self.layouts = [layouts[source] for source in self.mixture.sources]
        self.rows = np.array([len(layout) for layout in self.layouts], dtype=np.int64)

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (source number, epoch, row) of each global sample number; int64 arrays."""
        sources, ordinals = self.mixture.locate(samples)
        epochs, positions = np.divmod(ordinals, self.rows[sources])
        rows = np.empty_like(positions)
        for source, epoch in set(zip(sources.tolist(), epochs.tolist(), strict=True)):
            chosen = (sources == source) & (epochs == epoch)
            key = f"{self.seed}/{self.mixture.sources[source]}/{epoch}"
            rows[chosen] = permute(positions[chosen], int(self.rows[source]), key)
        return sources, epochs, rows

    @property
    def samples_per_epoch(self) -> int:
        """The number of samples of all sources, each once."""
        return int(self.rows.sum())

    @abstractmethod
    def batch(self, samples: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return inputs and targets of some samples, int32 each, and what else the objective reads."""

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """Return the record of the data for a milestone's manifest, as JSON data."""

    def figures(self, samples: int) -> dict[str, Any]:
        """Return tokens, filling included, and epochs of each source in the first `samples` samples, as JSON data."""
        taken, size = self.mixture.taken(samples), self.rows_per_sample * self.seq_len
        tokens = {source: count * size for source, count in taken.items()}
        epochs = {source: taken[source] / rows for source, rows in zip(taken, self.rows.tolist(), strict=True)}
        return {"source_tokens": tokens, "source_epochs": epochs}


def chosen_for_validation(lengths: Sequence[int], tokens: int) -> list[int]:
    """Return numbers of examples of at most `tokens` tokens, but at least one.

    Each run has the same, and more tokens only add.
    """
    order = np.random.Generator(np.random.PCG64(VALIDATION_SEED)).permutation(len(lengths))
    ends = np.cumsum([lengths[number] for number in order])
    return [int(number) for number in order[: max(1, np.searchsorted(ends, tokens, side="right"))]]
