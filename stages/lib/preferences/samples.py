"""Preferences as training samples: two rows of L tokens, of which the completions are targets.

    row 0   BOS  prompt  chosen    EOS  EOS ...
    row 1   BOS  prompt  rejected  EOS  EOS ...

Both rows of a pair are in one sample, so a global batch counts pairs, whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.model.loss import IGNORED
from stages.lib.preferences.source import Preference
from stages.lib.sources.prompt_completion import Pair
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tokens import prompt_completion_samples
from stages.lib.tokens.permutation import permute
from stages.lib.tokens.prompt_completion_samples import VALIDATION_SEED, Encoded

EncodedPair = tuple[Encoded, Encoded]
"""Chosen and rejected, each with the prompt before it."""

EQUAL = "chosen and rejected have the same tokens"


def encode(preferences: Sequence[Preference], tokenizer: Tokenizer, bos: bool) -> list[EncodedPair]:
    """Return the tokens of preferences, in order; arguments and errors as of `prompt_completion_samples.encode`."""
    chosen, rejected = (
        prompt_completion_samples.encode([Pair(one.id, one.prompt, text, "") for one, text in texts], tokenizer, bos)
        for texts in ([(one, one.chosen) for one in preferences], [(one, one.rejected) for one in preferences])
    )
    return list(zip(chosen, rejected, strict=True))


def usable(pairs: Sequence[EncodedPair], seq_len: int, where: str) -> tuple[list[EncodedPair], dict[str, int]]:
    """Return the pairs that can be trained on, and the numbers of the others by reason.

    A pair is filtered if a row of it is longer than `seq_len`, or both are equal: its loss has no gradient.
    Raises UserError naming `where` (source and split) if no pair remains.
    """
    if not pairs:
        raise UserError(f"{where} must have a pair, and has none; see its key validation")
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


class PairRows:
    """The rows of pairs, by the pair's number."""

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
                ids, prompt = encoded.ids, encoded.prompt
                inputs[place, row, : len(ids)] = ids
                targets[place, row, prompt - 1 : len(ids) - 1] = ids[prompt:]
        return inputs, targets


class PreferenceSamples:
    """All training samples of a source of preferences, by global number: a sample is a pair, each once per epoch.

    Sample g is a pure function of these arguments. `pairs`: the training pairs, then those of the validation split;
    the interface is that of `inputs.Samples`. `filtered`: see `usable`.
    """

    document_end: int | None = None

    def __init__(
        self,
        source: str,
        train: Sequence[EncodedPair],
        validation: Sequence[EncodedPair],
        seq_len: int,
        seed: int,
        eos: int,
        validation_tokens: int,
    ) -> None:
        """Raises UserError if a split has no usable pair. `validation_tokens`: see `chosen_for_validation`."""
        kept, self.filtered = usable(train, seq_len, f"the training split of source {source}")
        others, _ = usable(validation, seq_len, f"the validation split of source {source}")
        self.source, self.seed, self.train_pairs = source, seed, len(kept)
        self.pairs = PairRows([*kept, *others], seq_len, eos)
        self.for_validation = self.train_pairs + chosen_for_validation(others, validation_tokens)

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (epoch, pair) of each global sample number; int64 arrays."""
        epochs, positions = np.divmod(np.asarray(samples, dtype=np.int64), self.train_pairs)
        pairs = np.empty_like(positions)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            pairs[chosen] = permute(positions[chosen], self.train_pairs, f"{self.seed}/{self.source}/{epoch}")
        return epochs, pairs

    def batch(self, samples: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return inputs and targets of some samples, int32 [samples, 2, L] each, and the numbers of their pairs."""
        numbers = self.locate(samples)[1]
        return (*self.pairs.read(numbers), numbers)

    def validation(self) -> tuple[np.ndarray, ...]:
        """Return the arrays of `batch` of the validation pairs, int64."""
        rows = (array.astype(np.int64) for array in self.pairs.read(self.for_validation))
        return (*rows, self.for_validation)

    def described(self) -> dict[str, Any]:
        """Return the numbers of pairs of the source per epoch, and of those that are filtered, as JSON data."""
        return {"pairs": {self.source: self.train_pairs}, "filtered": {self.source: self.filtered}}

    def figures(self, samples: int) -> dict[str, Any]:
        """Return tokens, filling included, and epochs of the source in the first `samples` samples, as JSON data."""
        tokens = samples * 2 * self.pairs.seq_len
        return {"source_tokens": {self.source: tokens}, "source_epochs": {self.source: samples / self.train_pairs}}


def chosen_for_validation(pairs: Sequence[EncodedPair], tokens: int) -> np.ndarray:
    """Return the numbers of pairs of at most `tokens` tokens, but at least one; each run has the same."""
    order = np.random.Generator(np.random.PCG64(VALIDATION_SEED)).permutation(len(pairs))
    ends = np.cumsum([sum(len(row.ids) for row in pairs[number]) for number in order])
    return order[: max(1, np.searchsorted(ends, tokens, side="right"))]
