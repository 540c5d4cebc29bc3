"""Validation scores of a model whose scores are known."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from stages.lib.distributed.process_group import process_group
from stages.lib.errors import UserError
from stages.lib.model.architectures.llama import LlamaRecipe
from stages.lib.model.loss import IGNORED
from stages.lib.tokens import validation_text
from stages.lib.tokens.corpus import Corpus
from stages.lib.training import validation
from stages.lib.training.objectives.next_token import NextToken
from tests.helpers.data_fixtures import tiny_corpus
from tests.helpers.export_fixtures import random_model

BOS, EOS, SEQ_LEN, VOCABULARY = 1, 2, 8, 40
TOKENS = np.random.default_rng(0).integers(3, VOCABULARY, 61).astype(np.uint16)
TOKENS[[0, 20, 41]], TOKENS[[19, 40]] = BOS, EOS


class OneSource:
    """A corpus of one source, of 2.5 bytes a target."""

    tokenizer = {"bos": BOS, "eos": EOS, "bos_added": True}

    def stream(self, source, split):
        assert (source, split) == ("a", "validation")
        return self

    def read(self, start, count):
        return TOKENS[start : start + count]

    def bytes_per_target(self, source):
        return 2.5


@pytest.mark.parametrize("micro_batch_size", [1, 3, 5])
@pytest.mark.parametrize("limit", [24, 10**6])
def test_loss_is_the_mean_over_every_target_but_bos(micro_batch_size, limit):
    model = random_model(
        LlamaRecipe(num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=24), VOCABULARY
    )
    with process_group() as device:
        scored = validation.from_corpus(OneSource(), ["a"], SEQ_LEN, limit)
        scores = scored.evaluate(NextToken(), model, micro_batch_size, device)["a"]
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


@pytest.mark.parametrize("bos", [True, False])
def test_bits_per_byte_are_the_bits_of_all_targets_by_the_bytes_of_the_text(tmp_path, bos):
    corpus = Corpus(tiny_corpus(tmp_path, documents=60, bos=bos))
    scored = validation.from_corpus(corpus, ["a"], SEQ_LEN, 10**9)
    model = random_model(
        LlamaRecipe(num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=24),
        corpus.tokenizer["vocab_size"],
    )
    with process_group() as device:
        scores = scored.evaluate(NextToken(), model, 8, device)["a"]
    targets = int((scored.windows["a"][1] != IGNORED).sum())
    text = "".join(text for _, text in validation_text.documents(corpus.manifest, "a"))
    bits = scores["loss"] * targets / math.log(2)
    # without BOS, the first token of all has nothing before it, and is none that a model could be asked for
    assert scores["bits_per_byte"] == pytest.approx(bits / len(text.encode()), rel=1e-12 if bos else 1 / targets)


@pytest.mark.parametrize(
    ("bos", "added", "targets"), [(1, True, [5, 2, 9, 2]), (2, True, [5, 2, 9, 2]), (2, False, [5, 2, 2, 9, 2])]
)
def test_no_begin_of_a_document_is_a_target_also_where_bos_and_eos_are_one(bos, added, targets):
    class Given(OneSource):
        tokenizer = {"bos": bos, "eos": EOS, "bos_added": added}

        def read(self, start, count):
            return np.array([bos, 5, EOS, bos, 9, EOS])[start : start + count]

    found = validation.from_corpus(Given(), ["a"], SEQ_LEN, 99).windows["a"][1]
    assert found[found != IGNORED].tolist() == targets


def test_held_out_text_without_a_target_is_refused():
    class Empty(OneSource):
        def read(self, start, count):
            return np.array([EOS])[start : start + count]

    with pytest.raises(UserError, match="^source a must have at least two tokens of validation text, and has fewer; "):
        validation.from_corpus(Empty(), ["a"], SEQ_LEN, 99)
