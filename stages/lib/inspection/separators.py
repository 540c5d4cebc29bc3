"""Whether the documents of a shard are framed as the corpus says: BOS in front, EOS behind, neither inside."""

from collections import Counter

import numpy as np

FAULTS = {
    "no BOS": "do not begin with BOS",
    "BOS": "begin with BOS, which the corpus does not add",
    "no EOS": "do not end with EOS",
    "doubled BOS": "begin with more than one BOS",
    "doubled EOS": "end with more than one EOS",
    "inside": "have BOS or EOS inside",
    "empty": "are empty: nothing stands between BOS and EOS",
    "unknown": "have the id of what the tokenizer does not know",
    "outside": "have ids that the tokenizer has not",
}
"""What is counted of documents, and how it is said."""


class Separators:
    """Counts documents by fault. `counts`: by the keys of FAULTS; `lengths`: ids of each, all of them counted.

    `facts`: the corpus' tokenizer (bos, eos, bos_added, vocabulary); `unknown`: an id or None.
    """

    def __init__(self, facts, unknown):
        self.facts, self.unknown = facts, unknown
        self.counts, self.lengths = Counter(), []
        self.unknown_ids = 0

    def add(self, ids):
        """Count a document by its ids, an integer array."""
        bos, eos, bos_added = (self.facts[key] for key in ("bos", "eos", "bos_added"))
        self.lengths.append(len(ids))
        other = np.flatnonzero((ids != bos) & (ids != eos))
        begin, end = (int(other[0]), int(other[-1]) + 1) if len(other) else 2 * (_head(ids, bos, eos),)
        leading = int(np.count_nonzero(ids[:begin] == bos))
        trailing = int(np.count_nonzero(ids[end:] == eos))
        unknown = 0 if self.unknown is None else int(np.count_nonzero(ids == self.unknown))
        self.unknown_ids += unknown
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
                "outside": len(ids) > 0 and int(ids.max()) >= self.facts["vocab_size"],
            }
        )


def _head(ids, bos, eos):
    """How many BOS a document begins with, that has nothing but BOS and EOS. (Some tokenizers have one id for both.)"""
    others = np.flatnonzero(ids != bos)
    if bos == eos:
        return len(ids) // 2
    return int(others[0]) if len(others) else len(ids)
