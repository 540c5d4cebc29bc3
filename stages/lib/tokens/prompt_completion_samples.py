"""Prompt-completion pairs as training samples: rows of L tokens that hold whole pairs; only completions are targets.

    inputs    BOS  def  f():    Return  it   EOS  BOS  def  g():  Go   EOS  EOS  EOS
    targets    .    .   Return  it      EOS   .    .    .   Go    EOS   .    .    .

`.` is loss.IGNORED: no target. The EOS of a pair is an input as well: it separates the pairs of a row, see
`model.documents_of`.

Prompt and completion are encoded separately. In one text, a token may cross the boundary (`"R` in `"Return`), so that
the prompt would end at no token; and at inference a model is given the ids of the prompt alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.model.loss import IGNORED
from stages.lib.sources.prompt_completion import Pair
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tokens.packings.best_fit import best_fit
from stages.lib.tokens.permutation import permute

VALIDATION_SEED = 0  # runs of all seeds have the same validation rows


@dataclass(frozen=True)
class Encoded:
    """A pair's ids, int32 [n]; whether each is a target, bool [n]; the bytes of UTF-8 of the targets' text.

    The first id is no target: nothing precedes it.
    """

    ids: np.ndarray
    is_target: np.ndarray
    num_bytes: int


def encode(pairs: Sequence[Pair], tokenizer: Tokenizer, bos: bool) -> list[Encoded]:
    """Return the Encoded of each pair, in order. `bos`: whether a pair begins with BOS, as documents of the corpus do.

    Raises UserError if no token precedes a completion: its first token could be no target.
    """
    prompts = tokenizer.encode([pair.prompt for pair in pairs])
    for pair, prompt in zip(pairs, prompts, strict=True):
        if not (bos or len(prompt)):
            raise UserError(f"{pair.id} must have a prompt of at least one token, since no BOS precedes it; got none")
    completions = tokenizer.encode([pair.completion for pair in pairs])
    first = [tokenizer.bos] * bos
    return [
        Encoded(
            np.concatenate([first, prompt, completion, [tokenizer.eos]]).astype(np.int32),
            np.arange(len(first) + len(prompt) + len(completion) + 1) >= len(first) + len(prompt),
            len(pair.completion.encode()),
        )
        for pair, prompt, completion in zip(pairs, prompts, completions, strict=True)
    ]


def up_to(seq_len: int, encoded: Sequence[Encoded], where: str) -> list[Encoded]:
    """Return the pairs of at most `seq_len` tokens. Raises UserError naming `where` (source and split) if none is."""
    if not encoded:
        raise UserError(f"{where} must have a pair, and has none; see its key validation")
    kept = [pair for pair in encoded if len(pair.ids) <= seq_len]
    dropped = len(encoded) - len(kept)
    if not kept:
        shortest = min(len(pair.ids) for pair in encoded)
        raise UserError(
            f"{where} must have a pair of at most seq_len ({seq_len}) tokens, and its shortest has {shortest}"
        )
    if dropped:
        logger.warning("%s: %s of %s pairs are filtered: longer than %s tokens", where, dropped, len(encoded), seq_len)
    return kept


class Rows:
    """Pairs packed whole into rows of `seq_len` tokens, filled up with EOS."""

    def __init__(self, encoded: Sequence[Encoded], seq_len: int, eos: int, seed: int) -> None:
        self.encoded, self.seq_len, self.eos = encoded, seq_len, eos
        self.members = best_fit([len(pair.ids) for pair in encoded], seq_len, seed)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.members)

    def read(self, numbers: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of some rows, int32 [rows, L] each."""
        inputs = np.full((len(numbers), self.seq_len), self.eos, dtype=np.int32)
        targets = np.full((len(numbers), self.seq_len), IGNORED, dtype=np.int32)
        for row, number in enumerate(numbers):
            at = 0
            for pair in map(self.encoded.__getitem__, self.members[number]):
                end = at + len(pair.ids)
                inputs[row, at:end] = pair.ids
                targets[row, at : end - 1] = np.where(pair.is_target[1:], pair.ids[1:], IGNORED)
                at = end
        return inputs, targets


class PairSamples:
    """All training samples of a source of pairs, by global number: a sample is a row, each once per epoch.

    Sample g is a pure function of these arguments, so world size and micro-batch cannot change the order; the interface
    is that of `loader.Samples`. `dropped`: number of pairs longer than `seq_len`. `document_end`: EOS if attention must
    stay within a pair. Raises UserError if no pair is short enough.
    """

    def __init__(
        self,
        source: str,
        encoded: Sequence[Encoded],
        seq_len: int,
        seed: int,
        eos: int,
        document_end: int | None = None,
    ) -> None:
        kept = up_to(seq_len, encoded, f"the training split of source {source}")
        self.sources, self.document_end, self.seed = [source], document_end, seed
        self.pairs, self.dropped = len(kept), len(encoded) - len(kept)
        self.rows = Rows(kept, seq_len, eos, seed)

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (epoch, row) of each global sample number; int64 arrays."""
        epochs, positions = np.divmod(np.asarray(samples, dtype=np.int64), len(self.rows))
        rows = np.empty_like(positions)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            rows[chosen] = permute(positions[chosen], len(self.rows), f"{self.seed}/{self.sources[0]}/{epoch}")
        return epochs, rows

    def batch(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of some samples, int32 [samples, L] each."""
        return self.rows.read(self.locate(samples)[1])

    def described(self) -> dict[str, Any]:
        """Return the rows of the source per epoch, as JSON data."""
        return {"rows": {self.sources[0]: len(self.rows)}}

    def figures(self, samples: int) -> dict[str, Any]:
        """Return tokens, filling included, and epochs of the source in the first `samples` samples, as JSON data."""
        source, seq_len = self.sources[0], self.rows.seq_len
        return {"source_tokens": {source: samples * seq_len}, "source_epochs": {source: samples / len(self.rows)}}


def validation(
    source: str, encoded: Sequence[Encoded], seq_len: int, eos: int, tokens: int
) -> tuple[tuple[np.ndarray, np.ndarray], float]:
    """Return (inputs, targets) of validation pairs, int64 [rows, L] each; and bytes of text per target, EOS counted.

    `tokens`: at most so many tokens, but at least one pair; each run has the same pairs. Raises UserError if no pair is
    short enough.
    """
    kept = up_to(seq_len, encoded, f"the validation split of source {source}")
    order = np.random.Generator(np.random.PCG64(VALIDATION_SEED)).permutation(len(kept))
    ends = np.cumsum([len(kept[number].ids) for number in order])
    chosen = [kept[number] for number in order[: max(1, np.searchsorted(ends, tokens, side="right"))]]
    rows = Rows(chosen, seq_len, eos, VALIDATION_SEED)
    inputs, targets = rows.read(range(len(rows)))
    num_bytes = sum(pair.num_bytes for pair in chosen)
    return (inputs.astype(np.int64), targets.astype(np.int64)), num_bytes / np.count_nonzero(targets != IGNORED)
