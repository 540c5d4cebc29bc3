"""Check that the documents of a shard have BOS and EOS as the corpus requires: BOS first, EOS last, neither inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

FAULTS = {
    "no BOS": "do not begin with BOS",
    "BOS": "begin with BOS, which the corpus does not add",
    "no EOS": "do not end with EOS",
    "doubled BOS": "begin with more than one BOS",
    "doubled EOS": "end with more than one EOS",
    "inside": "have BOS or EOS inside",
    "empty": "are empty: no id between BOS and EOS",
    "unknown": "have the unknown id, of text that the tokenizer cannot encode",
    "outside": "have ids that are not in the vocabulary",
}
"""Faults of documents, and their descriptions."""


class Separators:
    """Counts documents by fault. `counts`: by the keys of FAULTS; `lengths`: the number of ids of each document.

    `tokenizer`: of the corpus' manifest (bos, eos, bos_added, vocab_size); `unknown`: the unknown id or None.
    """

    def __init__(self, tokenizer: Mapping[str, Any], unknown: int | None) -> None:
        self.tokenizer, self.unknown = tokenizer, unknown
        self.counts: Counter[str] = Counter()
        self.lengths: list[int] = []
        self.num_unknown_ids = 0

    def add(self, ids: np.ndarray) -> None:
        """Count a document by its ids, an integer array [L]."""
        bos, eos, bos_added = (self.tokenizer[key] for key in ("bos", "eos", "bos_added"))
        self.lengths.append(len(ids))
        other = np.flatnonzero((ids != bos) & (ids != eos))
        begin, end = (int(other[0]), int(other[-1]) + 1) if len(other) else 2 * (_num_leading_bos(ids, bos, eos),)
        leading = int(np.count_nonzero(ids[:begin] == bos))
        trailing = int(np.count_nonzero(ids[end:] == eos))
        unknown = 0 if self.unknown is None else int(np.count_nonzero(ids == self.unknown))
        self.num_unknown_ids += unknown
        self.counts += Counter(
            {
                "no BOS": bos_added and not (len(ids) and ids[0] == bos),
                "BOS": not bos_added and leading > 0,
                "no EOS": not (len(ids) and ids[-1] == eos),
                "doubled BOS": leading > 1,
                "doubled EOS": trailing > 1,
                "inside": begin + len(ids) - end != leading + trailing or np.isin(ids[begin:end], (bos, eos)).any(),
                "empty": begin == end,
                "unknown": unknown > 0,
                "outside": len(ids) > 0 and int(ids.max()) >= self.tokenizer["vocab_size"],
            }
        )


def _num_leading_bos(ids: np.ndarray, bos: int, eos: int) -> int:
    """Return the number of leading BOS of a document of BOS and EOS only. (Some tokenizers have one id for both.)"""
    others = np.flatnonzero(ids != bos)
    if bos == eos:
        return len(ids) // 2
    return int(others[0]) if len(others) else len(ids)
