"""Preferences as training samples: two rows of L tokens, of which the completions are targets.

    row 0   BOS  prompt  chosen    EOS  EOS ...
    row 1   BOS  prompt  rejected  EOS  EOS ...

Both rows of a pair are in one sample, so a global batch counts pairs, whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.model.loss import IGNORED
from stages.lib.sources.examples import Preference
from stages.lib.tuning.encoded_examples import Encoded, ExampleEncoder
from stages.lib.tuning.tuning_samples import MixedSamples, RowLayout, chosen_for_validation, next_tokens

EncodedPair = tuple[Encoded, Encoded]
"""Chosen and rejected, each with the prompt before it."""

EQUAL = "chosen and rejected have the same tokens"


def encode(preferences: Sequence[Preference], encoder: ExampleEncoder) -> list[EncodedPair]:
    """Return the tokens of the preferences that `encoder` can encode, in order; errors as of `ExampleEncoder.pairs`."""
    rows = encoder.encode_all(encoder.encodable([(one.chosen, one.rejected) for one in preferences]))
    return list(zip(rows[::2], rows[1::2], strict=True))


def usable(pairs: Sequence[EncodedPair], seq_len: int, where: str) -> tuple[list[EncodedPair], dict[str, int]]:
    """Return the pairs that can be trained on, and the numbers of the others by reason.

    A pair is filtered if a row of it is longer than `seq_len`, or both are equal: its loss has no gradient.
    Raises UserError naming `where` (source and split) if no pair remains.
    """
    if not pairs:
        raise UserError(f"{where} has no pair; see its keys validation and split_field")
    longer = f"longer than {seq_len} tokens"
    kept, filtered = [], dict.fromkeys((longer, EQUAL), 0)
    for pair in pairs:
        if max(len(row.ids) for row in pair) > seq_len:
            filtered[longer] += 1
        elif np.array_equal(pair[0].ids, pair[1].ids):
            filtered[EQUAL] += 1
        else:
            kept.append(pair)
    if not kept:
        found = " and ".join(f"{number} {reason}" for reason, number in filtered.items())
        raise UserError(f"{where} must have a pair of at most seq_len ({seq_len}) tokens in two versions, got {found}")
    for reason, number in filtered.items():
        if number:
            logger.warning("%s: %s of %s pairs are filtered: %s", where, number, len(pairs), reason)
    return kept, filtered


class PairRows(RowLayout):
    """The rows of pairs, by the pair's number."""

    row_name = "pair"

    def __init__(self, pairs: Sequence[EncodedPair], seq_len: int, eos: int) -> None:
        self.pairs, self.seq_len, self.eos = pairs, seq_len, eos

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.pairs)

    def read(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of some pairs, int32 [pairs, 2, L] each, chosen before rejected."""
        shape = (len(numbers), 2, self.seq_len)
        inputs, targets = (np.full(shape, fill, dtype=np.int32) for fill in (self.eos, IGNORED))
        for place, number in enumerate(numbers):
            for row, encoded in enumerate(self.pairs[number]):
                inputs[place, row, : len(encoded.ids)] = encoded.ids
                targets[place, row, : len(encoded.ids) - 1] = next_tokens(encoded)
        return inputs, targets


class PreferenceSamples(MixedSamples[PairRows]):
    """The training samples of a preference tuning: a sample is a pair of the one source.

    `pairs`: the training pairs, then all of the validation split; the objective has a reference for each number.
    `filtered`: see `usable`.
    """

    rows_per_sample = 2

    def __init__(
        self,
        weights: Mapping[str, float],
        train: Sequence[EncodedPair],
        validation: Sequence[EncodedPair],
        seq_len: int,
        seed: int,
        eos: int,
        filtered: Mapping[str, int],
    ) -> None:
        (self.source,) = weights
        super().__init__({self.source: PairRows(train, seq_len, eos)}, weights, seq_len, seed, None)
        self.pairs, self.filtered = PairRows([*train, *validation], seq_len, eos), filtered

    @property
    def train_pairs(self) -> int:
        """The number of training pairs."""
        return int(self.rows[0])

    def batch(self, samples: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return inputs and targets of some samples, int32 [samples, 2, L] each, and the numbers of their pairs."""
        _, _, numbers = self.locate(samples)
        return (*self.pairs.read(numbers), numbers)

    def for_validation(self, tokens: int) -> np.ndarray:
        """Return the numbers of the validation pairs that are scored, see `chosen_for_validation`."""
        pairs = self.pairs.pairs[self.train_pairs :]
        lengths = [sum(len(row.ids) for row in pair) for pair in pairs]
        return self.train_pairs + np.array(chosen_for_validation(lengths, tokens))

    def validation(self, tokens: int) -> tuple[np.ndarray, ...]:
        """Return the arrays of `batch` of `for_validation`, int64."""
        numbers = self.for_validation(tokens)
        return (*(rows.astype(np.int64) for rows in self.pairs.read(numbers)), numbers)

    def described(self) -> dict[str, Any]:
        """Return the numbers of pairs of the source per epoch, and of those that are filtered, as JSON data."""
        return {"pairs": {self.source: self.train_pairs}, "filtered": {self.source: self.filtered}}
