"""Pairs as training samples: rows of L tokens in which pairs lie whole, and nothing but completions is a target.

    inputs    BOS  def  f():    Return  it   EOS  BOS  def  g():  Go   EOS  EOS  EOS
    targets    .    .   Return  it      EOS   .    .    .   Go    EOS   .    .    .

`.` is loss.IGNORED: no target. The EOS of a pair is an input as well: it tells the pairs of a row apart, see
`model.documents_of`.

The ids of prompt and completion are made apart. In one text, a piece may go over the boundary (`"R` in `"Return`), so
that there is no position at which the prompt ends; and a model that is asked for a completion is given the ids of the
prompt alone.
"""

from dataclasses import dataclass

import numpy as np

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.model.loss import IGNORED
from stages.lib.tokens.packing import best_fit
from stages.lib.tokens.permutation import permute

HELDOUT_SEED = 0  # runs of other seeds are held against the same validation rows


@dataclass(frozen=True)
class Encoded:
    """A pair's ids, int32; how many of them come before the completion; the completion's bytes of UTF-8."""

    ids: np.ndarray
    prompt: int
    num_bytes: int


def encode(pairs, tokenizer, bos):
    """The Encoded of each pair, in order. `bos`: whether a pair begins with BOS, as documents of the corpus do.

    Raises UserError where nothing stands before a completion: its first token could not be learnt.
    """
    prompts = tokenizer.encode([pair.prompt for pair in pairs])
    for pair, prompt in zip(pairs, prompts, strict=True):
        if not (bos or len(prompt)):
            raise UserError(
                f"{pair.id} must have a prompt of a token at least, since no BOS stands before it; got none"
            )
    completions = tokenizer.encode([pair.completion for pair in pairs])
    first = [tokenizer.bos] * bos
    return [
        Encoded(
            np.concatenate([first, prompt, completion, [tokenizer.eos]]).astype(np.int32),
            len(first) + len(prompt),
            len(pair.completion.encode()),
        )
        for pair, prompt, completion in zip(pairs, prompts, completions, strict=True)
    ]


def up_to(seq_len, encoded, where):
    """The pairs of at most `seq_len` tokens. Raises UserError naming `where` (of which source and side) for none."""
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
        logger.warning("%s: %s of %s pairs are left out: longer than %s tokens", where, dropped, len(encoded), seq_len)
    return kept


class Rows:
    """Pairs packed whole into rows of `seq_len` tokens, what is left of a row filled up with EOS."""

    def __init__(self, encoded, seq_len, eos, seed):
        self.encoded, self.seq_len, self.eos = encoded, seq_len, eos
        self.members = best_fit([len(pair.ids) for pair in encoded], seq_len, seed)

    def __len__(self):
        """The number of rows."""
        return len(self.members)

    def read(self, numbers):
        """Inputs and targets of some rows, int32 [rows, L] each."""
        inputs = np.full((len(numbers), self.seq_len), self.eos, dtype=np.int32)
        targets = np.full((len(numbers), self.seq_len), IGNORED, dtype=np.int32)
        for row, number in enumerate(numbers):
            at = 0
            for pair in map(self.encoded.__getitem__, self.members[number]):
                end = at + len(pair.ids)
                inputs[row, at:end] = pair.ids
                targets[row, at + pair.prompt - 1 : end - 1] = pair.ids[pair.prompt :]
                at = end
        return inputs, targets


class PairSamples:
    """All training samples of a pair source, by global number: a sample is a row, each once an epoch.

    Sample g is a pure function of the arguments here, so world size and micro-batch cannot change the order: see
    loader.py, whose interface this is. `dropped`: how many pairs are longer than `seq_len`. `document_end`: EOS where
    attention shall stay within a pair. Raises UserError when no pair is short enough.
    """

    def __init__(self, source, encoded, seq_len, seed, eos, document_end=None):
        kept = up_to(seq_len, encoded, f"the training side of source {source}")
        self.sources, self.document_end, self.seed = [source], document_end, seed
        self.pairs, self.dropped = len(kept), len(encoded) - len(kept)
        self.rows = Rows(kept, seq_len, eos, seed)

    def locate(self, samples):
        """(epoch, row) of each global sample number; int64 arrays."""
        epochs, positions = np.divmod(np.asarray(samples, dtype=np.int64), len(self.rows))
        rows = np.empty_like(positions)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            rows[chosen] = permute(positions[chosen], len(self.rows), f"{self.seed}/{self.sources[0]}/{epoch}")
        return epochs, rows

    def batch(self, samples):
        """Inputs and targets of some samples, int32 [samples, L] each."""
        return self.rows.read(self.locate(samples)[1])

    def described(self):
        """Rows of the source an epoch, as plain data."""
        return {"rows": {self.sources[0]: len(self.rows)}}

    def figures(self, samples):
        """What the first `samples` samples were: tokens of the source, filling included, and how often it was seen."""
        source, seq_len = self.sources[0], self.rows.seq_len
        return {"source_tokens": {source: samples * seq_len}, "source_epochs": {source: samples / len(self.rows)}}


def validation(source, encoded, seq_len, eos, tokens):
    """(inputs, targets), int64 [windows, L] each, of validation pairs; and the bytes of text a target, EOS counted.

    `tokens`: of how many tokens at most, but one pair; which ones is the same for each run. Raises UserError when no
    pair is short enough.
    """
    kept = up_to(seq_len, encoded, f"the validation side of source {source}")
    order = np.random.Generator(np.random.PCG64(HELDOUT_SEED)).permutation(len(kept))
    ends = np.cumsum([len(kept[number].ids) for number in order])
    chosen = [kept[number] for number in order[: max(1, np.searchsorted(ends, tokens, side="right"))]]
    rows = Rows(chosen, seq_len, eos, HELDOUT_SEED)
    inputs, targets = rows.read(range(len(rows)))
    num_bytes = sum(pair.num_bytes for pair in chosen)
    return (inputs.astype(np.int64), targets.astype(np.int64)), num_bytes / np.count_nonzero(targets != IGNORED)
