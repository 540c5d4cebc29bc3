"""What fixes the order of a pretraining's samples: it stands in the recipe, and in each checkpoint what goes beyond.

A training that goes on from another's checkpoint with `initial.data: continue` goes on in the order of the samples too:
its first sample is the one after the other's last. Each source goes on where it was, whatever the weights are now; one
that the corpus has since begins at its start. What was before stands in the checkpoint: `history`, the weights from
which sample on, and `sources`, what the text of each source is known by.
"""

from dataclasses import dataclass

from stages.lib.tokens.loader import CHUNK, Samples

SEED = 0
"""The recipe's default: a checkpoint leaves out what the user did not write."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of a run's samples.

    `history`: [[first sample, {source: weight}]], the first at sample 0. `begin`: the first sample of this run, None
    where its checkpoints do not say it. `sources`: {source: digest of its training text}, None likewise.
    """

    seq_len: int
    seed: int
    packing: str
    history: list
    begin: int | None
    sources: dict | None

    def facts(self):
        """What a checkpoint says besides the recipe, as plain data."""
        return {"history": self.history, "begin": self.begin, "sources": self.sources}

    def samples(self, corpus, document_end=None):
        """The Samples of a corpus in this order."""
        return Samples(corpus, self.history, self.seq_len, self.seed, document_end, self.packing)

    def difference(self, other, corpus):
        """What of another order, which it shall go on from with a Corpus, is not the same, in words; None for none."""
        for key in ("seq_len", "packing", "seed"):
            if getattr(self, key) != getattr(other, key):
                return key
        for source, digest in (other.sources or {}).items():
            if source not in corpus.sources:
                return f"corpus, which had the source {source}"
            if corpus.digest_of(source) != digest:
                return f"text of the source {source}"
        return None


def of_run(plan, corpus, before=None):
    """The Order of a run by its recipe. `before`: what the commit.json of the checkpoint says that it goes on from."""
    begin, history = 0, []
    if before is not None:
        begin = before["samples"]
        history = [entry for entry in of_commit(before).history if entry[0] < begin]
    data_stages = [
        (0, plan.weights),
        *((phase.step * plan.global_batch_size, phase.weights) for phase in plan.data_stages),
    ]
    for first, weights in data_stages:
        if not history or history[-1][1] != weights:  # the same weights go on in the same cycle
            history.append([begin + first, weights])
    named = sorted({source for _, weights in history for source in weights if source in corpus.sources})
    return Order(
        seq_len=plan.seq_len,
        seed=plan.seed,
        packing=plan.packing,
        history=history,
        begin=begin,
        sources={source: corpus.digest_of(source) for source in named},
    )


def of_commit(commit):
    """The Order of a pretraining by what the commit.json of one of its checkpoints says."""
    recipe = commit["recipe"]
    data = commit.get("data", {})  # checkpoints of before have none
    return Order(
        seq_len=recipe["seq_len"],
        seed=recipe.get("seed", SEED),
        packing=recipe.get("packing", CHUNK),
        history=data.get("history", [[0, recipe["weights"]]]),
        begin=data.get("begin"),
        sources=data.get("sources"),
    )
