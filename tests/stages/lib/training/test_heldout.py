"""Held-out scores of a model whose scores are known."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from stages.lib import parallel
from stages.lib.model import ModelRecipe
from stages.lib.training import heldout
from tests.stages.export_fixtures import random_model

BOS, SEQ_LEN, VOCABULARY = 1, 8, 40
TOKENS = np.random.default_rng(0).integers(3, VOCABULARY, 61).astype(np.uint16)
TOKENS[[0, 20, 41]] = BOS


class OneSource:
    """A corpus of one source, of 2.5 bytes a token."""

    tokenizer = {"bos": BOS}

    def stream(self, source, split):
        assert (source, split) == ("a", "validation")
        return self

    def read(self, start, count):
        return TOKENS[start : start + count]

    def bytes_per_token(self, source):
        return 2.5


@pytest.mark.parametrize("micro_batch", [1, 3, 5])
@pytest.mark.parametrize("limit", [24, 10**6])
def test_loss_is_the_mean_over_every_target_but_bos(micro_batch, limit):
    model = random_model(ModelRecipe(layers=1, width=16, heads=2, hidden=24), VOCABULARY)
    with parallel.ranks() as device:
        scores = heldout.of_corpus(OneSource(), ["a"], SEQ_LEN, limit).evaluate(model, micro_batch, device)["a"]
    losses = []
    given = torch.from_numpy(TOKENS[: limit + 1].astype(np.int64))
    for start in range(0, len(given) - 1, SEQ_LEN):
        inputs, targets = given[start : start + SEQ_LEN], given[start + 1 : start + 1 + SEQ_LEN]
        with torch.no_grad():
            each = cross_entropy(model.logits(inputs[None, : len(targets)])[0], targets, reduction="none")
        losses += each[targets != BOS].tolist()
    assert len(losses) == (24 - 1 if limit == 24 else 60 - 2)
    assert scores["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-6)
    assert scores["bits_per_byte"] == pytest.approx(scores["loss"] / math.log(2) / 2.5, rel=1e-12)
