"""Examples as training samples: each once an epoch, only targets are learnt, whatever the ranks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.model.loss import IGNORED
from stages.lib.model.transformer import documents_of
from stages.lib.sources.examples import Pair
from stages.lib.tuning import tuning_samples
from stages.lib.tuning.encoded_examples import Encoded, ExampleEncoder
from stages.lib.tuning.tuning_samples import TuningSamples, fitted, separator

EOS = 2
SEQ_LEN = 24


class Letters:
    """A tokenizer of letters, but that the pair `ab` is one piece, as it would be over a boundary."""

    bos, eos = 1, EOS

    def encode(self, texts, names=None):
        return [np.array([ord(letter) for letter in text.replace("ab", "@")], np.int32) for text in texts]


texts = st.text("abcd", min_size=1, max_size=14)
# some are too long for a row, the first never
many = st.lists(st.tuples(texts, texts), max_size=40).map(lambda made: [("a", "b"), *made])
some = settings(max_examples=60, deadline=None)


def pairs_of(made):
    """Pairs that can be told apart by their first letter."""
    return [
        Pair(str(number), f"{chr(200 + number)}{prompt}", completion, "train")
        for number, (prompt, completion) in enumerate(made)
    ]


def encode(pairs, bos=True):
    return ExampleEncoder(tokenizer=Letters(), bos=bos).encode(pairs)


def short(pairs, bos=True):
    return fitted(encode(pairs, bos), SEQ_LEN, "the training split of source qa")


def samples_of(made, bos=True, seed=0):
    return TuningSamples({"qa": short(pairs_of(made), bos)}, {"qa": 1}, SEQ_LEN, seed, EOS)


def validation(encoded, tokens):
    return tuning_samples.validation(encoded, SEQ_LEN, EOS, tokens)


def pairs_in(inputs, targets):
    """(prompt's ids with BOS, target ids) of each pair in a batch; what is left over must be filling."""
    found = []
    for row, expected in zip(inputs, targets, strict=True):
        at = 0
        while at < len(row) and row[at] != EOS:
            end = at + int(np.argmax(row[at:] == EOS)) + 1  # its EOS is an input, too
            counted = np.flatnonzero(expected[at:end] != IGNORED) + at
            assert (np.diff(counted) == 1).all() and counted[-1] == end - 2
            assert (expected[counted] == row[counted + 1]).all()
            found.append((row[at : counted[0] + 1].tolist(), expected[counted].tolist()))
            at = end
        assert (row[at:] == EOS).all() and (expected[at:] == IGNORED).all()
    return found


@some
@given(many, st.booleans(), st.integers(0, 3))
def test_every_pair_is_there_once_an_epoch_and_nothing_else_is_a_target(made, bos, seed):
    letters = Letters()
    samples = samples_of(made, bos, seed)
    expected = sorted(
        ([1] * bos + letters.encode([pair.prompt])[0].tolist(), letters.encode([pair.completion])[0].tolist() + [EOS])
        for pair in pairs_of(made)
        if bos + len(letters.encode([pair.prompt])[0]) + len(letters.encode([pair.completion])[0]) < SEQ_LEN
    )
    for epoch in range(3):
        numbers = np.arange(samples.rows[0]) + epoch * samples.rows[0]
        assert sorted(pairs_in(*samples.batch(numbers))) == expected


def test_rows_come_in_another_order_each_epoch_and_by_each_seed():
    made = [("abcd" * 3, "dcba" * 2)] * 30
    samples = samples_of(made)
    rows = int(samples.rows[0])
    orders = [samples.locate(np.arange(rows) + epoch * rows)[2].tolist() for epoch in range(3)]
    orders.append(samples_of(made, seed=1).locate(np.arange(rows))[2].tolist())
    assert len({tuple(order) for order in orders}) == 4
    assert all(sorted(order) == list(range(rows)) for order in orders)


def test_longer_examples_are_dropped_or_truncated_and_counted(caplog, monkeypatch):
    monkeypatch.setattr(logger, "propagate", True)  # a stage before may have set it

    class Decoding(Letters):
        def decode(self, ids):
            return "".join(map(chr, ids))

    encoded = encode(pairs_of([("a", "b"), ("a" * SEQ_LEN, "b"), ("a", "b" * SEQ_LEN)]))
    (kept,) = fitted(encoded, SEQ_LEN, "mine")
    assert kept is encoded[0]
    assert "mine: 2 of 3 examples are longer than 24 tokens: they are dropped" in caplog.text
    kept, cut = fitted(encoded, SEQ_LEN, "mine", "truncate", Decoding())
    assert (len(cut.ids), cut.is_target.sum(), cut.num_bytes) == (SEQ_LEN, SEQ_LEN - 3, SEQ_LEN - 3)
    assert "they are truncated, and 1 without a target dropped" in caplog.text


def test_mixture_has_rows_of_each_source_by_its_weight():
    examples = {name: short(pairs_of([(name * 9, name * 9)] * count)) for name, count in (("c", 5), ("d", 3))}
    samples = TuningSamples(examples, {"c": 3, "d": 1}, SEQ_LEN, 0, EOS)
    inputs, _ = samples.batch(np.arange(400))
    counts = [sum(row[2] == ord(name) for row in inputs) for name in "cd"]
    assert counts == [300, 100]
    sources, epochs, rows = samples.locate(np.arange(400))
    for number, size in ((0, 5), (1, 3)):
        for epoch in range(4):
            assert sorted(rows[(sources == number) & (epochs == epoch)]) == list(range(size))
    assert samples.figures(400)["source_epochs"] == {"c": 60, "d": 100 / 3}


def test_eos_inside_an_example_does_not_end_it():
    ids = np.array([1, 70, EOS, 71, 72, EOS], np.int32)
    chats = [Encoded(ids, np.array([False, False, True, False, True, True]), 2)] * 2
    end = separator([chats], EOS, 80)
    assert end == 0
    inputs, targets = TuningSamples({"qa": chats}, {"qa": 1}, 14, 0, end).batch(np.array([0]))
    assert inputs[0].tolist() == [1, 70, EOS, 71, 72, 0] * 2 + [0, 0]
    assert targets[0].tolist() == [IGNORED, EOS, IGNORED, 72, EOS, IGNORED] * 2 + [IGNORED] * 2
    assert documents_of(torch.from_numpy(inputs).long(), end)[0].tolist()[:13] == [0] * 6 + [1] * 6 + [2]
    assert separator([encode(pairs_of([("a", "b")]))], EOS, 300) == EOS
    with pytest.raises(UserError, match="^finetune.packing must be none: "):
        separator([[Encoded(np.array([0, 1, 2, 2]), np.ones(4, bool), 1)]], EOS, 3)


def test_packing_none_has_one_example_per_row_and_no_mask_and_samples_say_what_is_counted():
    samples = TuningSamples({"qa": short(pairs_of([("a", "b")] * 3))}, {"qa": 1}, SEQ_LEN, 0, EOS, "none")
    assert samples.rows.tolist() == [3] and samples.document_end is None
    inputs, targets = samples.batch(np.arange(3))
    assert [len(pairs) for pairs in (pairs_in(inputs[[n]], targets[[n]]) for n in range(3))] == [1, 1, 1]
    samples = samples_of([("a", "b")])
    assert samples.document_end == EOS
    assert samples.figures(7) == {"source_tokens": {"qa": 7 * SEQ_LEN}, "source_epochs": {"qa": 7}}
    assert samples.described() == {"mixture": [{"from_sample": 0, "slots": {"qa": 4096}}], "rows": {"qa": 1}}


@some
@given(many, st.integers(1, 400))
def test_validation_rows_hold_whole_pairs_up_to_the_limit(made, limit):
    encoded = short(pairs_of(made))
    (inputs, targets), num_bytes = validation(encoded, limit)
    found = pairs_in(inputs, targets)
    known = sorted((pair.ids[~pair.is_target].tolist(), pair.ids[pair.is_target].tolist()) for pair in encoded)
    assert all(pair in known for pair in found) and len({tuple(prompt) for prompt, _ in found}) == len(found)
    size = sum(len(prompt) + len(ids) for prompt, ids in found)
    assert size <= limit or len(found) == 1
    if len(found) < len(encoded):
        assert size + SEQ_LEN > limit
    assert num_bytes == sum(len("".join("ab" if i == ord("@") else chr(i) for i in ids[:-1])) for _, ids in found)
    assert inputs.dtype == targets.dtype == np.int64


def test_a_pair_without_anything_before_its_completion_is_refused():
    pair = Pair("a.jsonl:3", "", "b", "train")
    assert [made.is_target.tolist() for made in encode([pair])] == [[False, True, True]]
    with pytest.raises(UserError, match="^a.jsonl:3 must have a prompt of at least one token, "):
        encode([pair], bos=False)
