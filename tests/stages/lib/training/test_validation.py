"""Validation scores of a model whose scores are known."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from stages.lib.distributed.process_group import process_group
from stages.lib.errors import UserError
from stages.lib.model.architectures import LlamaRecipe
from stages.lib.model.loss import IGNORED
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tokens.corpus import BYTES_OF_IDS, Corpus, validation_documents
from stages.lib.training import validation
from stages.lib.training.objectives.objective import NextToken
from tests.helpers.data_fixtures import tiny_corpus
from tests.helpers.export_fixtures import random_model

TINY = LlamaRecipe(num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=24)
BOS, EOS, SEQ_LEN, VOCABULARY = 1, 2, 8, 40
TOKENS = np.random.default_rng(0).integers(3, VOCABULARY, 61).astype(np.uint16)
TOKENS[[0, 20, 41]], TOKENS[[19, 40]] = BOS, EOS


class OneSource:
    """A corpus of one source, of 2.5 bytes per id."""

    tokenizer = {"bos": BOS, "eos": EOS, "bos_added": True}
    tokens = TOKENS

    def __len__(self):
        return len(self.tokens)

    def stream(self, source, split):
        assert (source, split) == ("a", "validation")
        return self

    def read(self, start, count):
        return self.tokens[start : start + count]

    def bytes_of_ids(self, source):
        return np.full(VOCABULARY, 2.5)


@pytest.mark.parametrize("micro_batch_size", [1, 3, 5])
@pytest.mark.parametrize("limit", [24, 10**6])
def test_loss_is_the_mean_over_every_target_but_bos(micro_batch_size, limit):
    model = random_model(TINY, VOCABULARY)
    with process_group() as device:
        scored = validation.from_corpus(OneSource(), ["a"], SEQ_LEN, limit)
        scores = scored.evaluate(NextToken(), model, micro_batch_size, device)["a"]
    losses, starts = [], []
    given = torch.from_numpy(TOKENS.astype(np.int64))
    for start in range(0, len(given) - 1, SEQ_LEN):
        inputs, targets = given[start : start + SEQ_LEN], given[start + 1 : start + 1 + SEQ_LEN]
        if inputs[: len(targets)].tolist() not in scored.windows["a"][0][:, : len(targets)].tolist():
            continue
        with torch.no_grad():
            each = cross_entropy(model.logits(inputs[None, : len(targets)])[0], targets, reduction="none")
        losses += each[targets != BOS].tolist()
        starts.append(start)
    assert starts == ([16, 24, 48] if limit == 24 else list(range(0, 60, SEQ_LEN)))
    assert scores["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-6)
    assert scores["loss_bits_per_byte"] == pytest.approx(scores["loss"] / math.log(2) / 2.5, rel=1e-12)


def test_fewer_tokens_are_windows_of_the_same_text_and_another_curve():
    sizes = (8, 20, 40, 10**6)
    found = [validation.from_corpus(OneSource(), ["a"], SEQ_LEN, tokens) for tokens in sizes]
    windows = [{tuple(row) for row in one.windows["a"][0].tolist()} for one in found]
    assert [int((one.windows["a"][1] != IGNORED).sum()) for one in found][:2] <= [8, 20]
    assert windows[0] < windows[2] < windows[3]
    assert len({one.texts["a"] for one in found}) == len(sizes)
    assert found[1].texts == validation.from_corpus(OneSource(), ["a"], SEQ_LEN, 20).texts


@pytest.mark.parametrize("bos", [True, False])
def test_bits_per_byte_are_the_bits_of_all_targets_by_the_bytes_of_the_text(tmp_path, bos):
    corpus = Corpus(tiny_corpus(tmp_path, documents=60, bos=bos))
    scored = validation.from_corpus(corpus, ["a"], SEQ_LEN, 10**9)
    model = random_model(TINY, corpus.tokenizer["vocab_size"])
    with process_group() as device:
        scores = scored.evaluate(NextToken(), model, 8, device)["a"]
    targets = int((scored.windows["a"][1] != IGNORED).sum())
    text = "".join(text for _, text in validation_documents(corpus.manifest, "a"))
    bits = scores["loss"] * targets / math.log(2)
    # without BOS, the first token of all has nothing before it, and is none that a model could be asked for
    assert scores["loss_bits_per_byte"] == pytest.approx(bits / len(text.encode()), rel=1e-12 if bos else 1 / targets)


def test_bytes_are_those_of_the_windows_own_targets(tmp_path):
    """In a split whose first documents have tokens of other lengths than its last ones."""
    path = tiny_corpus(tmp_path, documents=60, validation=0.5)
    corpus, tokenizer = Corpus(path), Tokenizer(tmp_path / "tokenizers/main/manifest.json")
    for tokens in (40, 200, 1000):
        scored = validation.from_corpus(corpus, ["a"], SEQ_LEN, tokens)
        targets = scored.windows["a"][1]
        rows = tokenizer.decode_batch([row[row != IGNORED] for row in targets])
        assert scored.num_bytes["a"] == sum(len(row.encode()) for row in rows) > 0


def test_a_corpus_without_the_bytes_of_its_ids_is_refused(tmp_path):
    path = tiny_corpus(tmp_path, documents=60)
    (path.parent / BYTES_OF_IDS).unlink()
    with pytest.raises(UserError, match=f"{BYTES_OF_IDS} is missing, but .* lists it"):
        validation.from_corpus(Corpus(path), ["a"], SEQ_LEN, 100)


@pytest.mark.parametrize(
    ("bos", "added", "targets"), [(1, True, [5, 2, 9, 2]), (2, True, [5, 2, 9, 2]), (2, False, [5, 2, 2, 9, 2])]
)
def test_no_begin_of_a_document_is_a_target_also_where_bos_and_eos_are_one(bos, added, targets):
    class Given(OneSource):
        tokenizer = {"bos": bos, "eos": EOS, "bos_added": added}

        tokens = np.array([bos, 5, EOS, bos, 9, EOS])

    found = validation.from_corpus(Given(), ["a"], SEQ_LEN, 99).windows["a"][1]
    assert found[found != IGNORED].tolist() == targets


def test_held_out_text_without_a_target_is_refused():
    class Empty(OneSource):
        tokens = np.array([EOS])

    with pytest.raises(UserError, match="^source a has fewer than two tokens of validation text; "):
        validation.from_corpus(Empty(), ["a"], SEQ_LEN, 99)
