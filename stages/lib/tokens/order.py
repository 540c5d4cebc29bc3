"""The order of a pretraining's samples: the recipe fixes it, and a checkpoint stores the rest.

A training that starts from another's checkpoint with `initial.data: continue` continues the order of the samples too:
its first sample is the one after the other's last. Each source resumes at its position, whatever the weights are now; a
source that is new in the corpus begins at its start. The checkpoint stores the past: `history`, the weights and the
sample from which they hold, and `sources`, the digest of each source's text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stages.lib.tokens.corpus import Corpus
from stages.lib.tokens.loader import Samples
from stages.lib.tokens.packing import CHUNK

SEED = 0
"""The recipe's default: a checkpoint holds only the keys that the user wrote."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of a run's samples.

    `history`: [[first sample, {source: weight}]], the first at sample 0. `begin`: the first sample of this run, None if
    its checkpoints do not store it. `sources`: {source: digest of its training text}, None likewise.
    """

    seq_len: int
    seed: int
    packing: str
    history: list[Any]
    begin: int | None
    sources: dict[str, str] | None

    def to_json(self) -> dict[str, Any]:
        """Return the part of the order that a checkpoint stores beside the recipe, as JSON data."""
        return {"history": self.history, "begin": self.begin, "sources": self.sources}

    def samples(self, corpus: Corpus, document_end: int | None = None) -> Samples:
        """Return the Samples of a corpus in this order."""
        return Samples(corpus, self.history, self.seq_len, self.seed, document_end, self.packing)

    def difference(self, other: Order, corpus: Corpus) -> str | None:
        """Return why this order on `corpus` cannot continue `other`: the property that differs; None if it can."""
        for key in ("seq_len", "packing", "seed"):
            if getattr(self, key) != getattr(other, key):
                return key
        for source, digest in (other.sources or {}).items():
            if source not in corpus.sources:
                return f"corpus, which had the source {source}"
            if corpus.digest_of(source) != digest:
                return f"text of the source {source}"
        return None


def from_recipe(recipe: Any, corpus: Corpus, before: Mapping[str, Any] | None = None) -> Order:
    """Return the Order of a run by its PretrainRecipe. `before`: commit.json of the checkpoint that it continues."""
    begin, history = 0, []
    if before is not None:
        begin = before["samples"]
        history = [entry for entry in from_commit(before).history if entry[0] < begin]
    data_stages = [(stage.step * recipe.global_batch_size, stage.weights) for stage in recipe.data_stages]
    for first, weights in [(0, recipe.weights), *data_stages]:
        if not history or history[-1][1] != weights:  # equal weights continue in the same cycle
            history.append([begin + first, weights])
    named = sorted({source for _, weights in history for source in weights if source in corpus.sources})
    return Order(
        seq_len=recipe.seq_len,
        seed=recipe.seed,
        packing=recipe.packing,
        history=history,
        begin=begin,
        sources={source: corpus.digest_of(source) for source in named},
    )


def from_commit(commit: Mapping[str, Any]) -> Order:
    """Return the Order of a pretraining by the commit.json of one of its checkpoints."""
    recipe = commit["recipe"]
    data = commit.get("data", {})  # checkpoints of earlier versions have none
    return Order(
        seq_len=recipe["seq_len"],
        seed=recipe.get("seed", SEED),
        packing=recipe.get("packing", CHUNK),
        history=data.get("history", [[0, recipe["weights"]]]),
        begin=data.get("begin"),
        sources=data.get("sources"),
    )
