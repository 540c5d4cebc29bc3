"""Encoded examples as training samples: rows of L tokens that hold whole examples, of several sources in a mixture.

    inputs    BOS  def  f():    Return  it   END  BOS  def  g():  Go   END  END  END
    targets    .    .   Return  it      EOS   .    .    .   Go    EOS   .    .    .

`.` is loss.IGNORED: no target. In place of an example's last id stands END, the token that separates the examples of a
row, see `transformer.documents_of`: no target follows it, and no other token attends to it, so any id will do that
stands nowhere else. It is EOS, unless conversations have an EOS after each turn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tokens.data_order import Mixture, permute
from stages.lib.tokens.packing import best_fit
from stages.lib.tuning.encoded_examples import Encoded

DROP, TRUNCATE = TOO_LONG = ("drop", "truncate")
BEST_FIT, NONE = "best_fit", "none"

PACKINGS: dict[str, Callable[[Sequence[int], int, int], list[list[int]]]] = {
    BEST_FIT: best_fit,
    NONE: lambda lengths, *_: [[number] for number in range(len(lengths))],
}
"""{value of `finetune.packing`: function of (lengths, seq_len, seed) that returns the numbers of each row}"""

VALIDATION_SEED = 0  # runs of all seeds have the same validation rows


class RowLayout(ABC):
    """The rows of a source, the same in each epoch; `row_name`, `packs_documents`: as of `packing.Layout`."""

    row_name = "row"
    packs_documents = False

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""


AnyLayout = TypeVar("AnyLayout", bound=RowLayout)


class MixedSamples(ABC, Generic[AnyLayout]):
    """All training samples of a fine-tuning, by global number: a sample is a row of a source, each once per epoch.

    `weights`: {source: weight}, its share of the samples. Sample g is a pure function of these arguments, so world size
    and micro-batch cannot change the order; the interface is that of `loader.Samples`. `document_end`: the id that
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


def fitted(
    encoded: Sequence[Encoded], seq_len: int, where: str, too_long: str = DROP, tokenizer: Tokenizer | None = None
) -> list[Encoded]:
    """Return the examples with at most `seq_len` tokens; longer ones are dropped or truncated, and counted.

    `where`: source and split, for messages. `tokenizer` is needed to truncate. Raises UserError if nothing is left.
    """
    if not encoded:
        raise UserError(f"{where} is empty; see its keys validation and split_field")
    longer = sum(len(one.ids) > seq_len for one in encoded)
    kept = [one for one in encoded if len(one.ids) <= seq_len]
    if too_long == TRUNCATE:
        assert tokenizer is not None
        cut = [one if len(one.ids) <= seq_len else truncated(one, seq_len, tokenizer) for one in encoded]
        kept = [one for one in cut if one.is_target.any()]
    if not kept:
        shortest = min(len(one.ids) for one in encoded)
        raise UserError(
            f"{where} must have an example of at most seq_len ({seq_len}) tokens, and its shortest has {shortest}"
        )
    if longer:
        how = (
            f"truncated, and {len(encoded) - len(kept)} without a target dropped" if too_long == TRUNCATE else "dropped"
        )
        message = "%s: %s of %s examples are longer than %s tokens: they are %s"
        logger.warning(message, where, longer, len(encoded), seq_len, how)
    return kept


def truncated(encoded: Encoded, seq_len: int, tokenizer: Tokenizer) -> Encoded:
    """Return the first `seq_len` tokens of an example."""
    ids, is_target = encoded.ids[:seq_len], encoded.is_target[:seq_len]
    return Encoded(ids, is_target, len(tokenizer.decode(ids[is_target].tolist()).encode()))


def separator(sources: Iterable[Sequence[Encoded]], eos: int, vocab_size: int) -> int:
    """Return the id that separates the examples of a row: EOS, or the first id that stands in no example.

    Raises UserError if all ids are used.
    """
    used = np.zeros(vocab_size, dtype=bool)
    for encoded in sources:
        for one in encoded:
            used[one.ids[:-1]] = True
    if not used[eos]:
        return eos
    free = np.flatnonzero(~used)
    if not len(free):
        raise UserError(
            "finetune.packing must be none: the examples use every token id, and none is left to separate them"
        )
    return int(free[0])


def next_tokens(encoded: Encoded) -> np.ndarray:
    """Return the target after each id of an example but the last, loss.IGNORED where it is none."""
    from stages.lib.model.loss import IGNORED  # here, since it imports torch

    return np.where(encoded.is_target[1:], encoded.ids[1:], IGNORED)


class Rows(RowLayout):
    """Examples packed whole into rows of `seq_len` tokens, filled up with `end`."""

    def __init__(self, encoded: Sequence[Encoded], seq_len: int, end: int, seed: int, packing: str = BEST_FIT) -> None:
        self.encoded, self.seq_len, self.end = encoded, seq_len, end
        self.members = PACKINGS[packing]([len(one.ids) for one in encoded], seq_len, seed)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.members)

    def read(self, numbers: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of some rows, int32 [rows, L] each."""
        from stages.lib.model.loss import IGNORED  # here, since it imports torch

        inputs = np.full((len(numbers), self.seq_len), self.end, dtype=np.int32)
        targets = np.full((len(numbers), self.seq_len), IGNORED, dtype=np.int32)
        for row, number in enumerate(numbers):
            at = 0
            for one in map(self.encoded.__getitem__, self.members[number]):
                last = at + len(one.ids) - 1
                inputs[row, at:last] = one.ids[:-1]
                targets[row, at:last] = next_tokens(one)
                at = last + 1
        return inputs, targets


class TuningSamples(MixedSamples[Rows]):
    """The training samples of a fine-tuning on next tokens: rows of whole examples.

    `examples`: {source: its examples, none longer than `seq_len`}. `end`: the id that separates those of a row.
    """

    def __init__(
        self,
        examples: Mapping[str, Sequence[Encoded]],
        weights: Mapping[str, float],
        seq_len: int,
        seed: int,
        end: int,
        packing: str = BEST_FIT,
    ) -> None:
        layouts = {source: Rows(examples[source], seq_len, end, seed, packing) for source in weights}
        super().__init__(layouts, weights, seq_len, seed, None if packing == NONE else end)

    def batch(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of some samples, int32 [samples, L] each."""
        sources, _, rows = self.locate(samples)
        inputs, targets = (np.empty((len(rows), self.seq_len), dtype=np.int32) for _ in range(2))
        for source in np.unique(sources).tolist():
            chosen = sources == source
            inputs[chosen], targets[chosen] = self.layouts[source].read(rows[chosen])
        return inputs, targets

    def described(self) -> dict[str, Any]:
        """Return the slots of the mixture and the rows of each source per epoch, as JSON data."""
        rows = dict(zip(self.mixture.sources, self.rows.tolist(), strict=True))
        return {"mixture": self.mixture.described(), "rows": rows}


def validation(
    encoded: Sequence[Encoded], seq_len: int, end: int, tokens: int, packing: str = BEST_FIT
) -> tuple[tuple[np.ndarray, np.ndarray], int]:
    """Return (inputs, targets) of validation examples, int64 [rows, L] each; and the bytes of all targets' text.

    `encoded`: none longer than `seq_len`. `tokens`: see `chosen_for_validation`.
    """
    chosen = [encoded[number] for number in chosen_for_validation([len(one.ids) for one in encoded], tokens)]
    rows = Rows(chosen, seq_len, end, VALIDATION_SEED, packing)
    inputs, targets = rows.read(range(len(rows)))
    return (inputs.astype(np.int64), targets.astype(np.int64)), sum(one.num_bytes for one in chosen)
