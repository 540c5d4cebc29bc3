"""Documents in rows, whatever the documents: `concat` and `best_fit` lose, repeat and reorder nothing.

The invariants D1 to D16 are those of test_invariants.py.
"""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.model.loss import IGNORED
from stages.lib.tokens import document_rows
from stages.lib.tokens.corpus import Corpus
from stages.lib.tokens.loader import Samples, share_of
from tests.stages.lib.tokens import made as made_corpora
from tests.stages.lib.tokens.made import EMPTY, FIRST, UNEQUAL, WORLD_SIZES, Made, enough, lengths, trained, write

PACKINGS = ("concat", "best_fit")
every_packing = pytest.mark.parametrize("packing", ["chunk", *PACKINGS])
some = settings(max_examples=12, deadline=None)


@pytest.fixture(autouse=True, scope="module", params=[5, 1 << 16], ids=["small groups", "one group"])
def group(request):
    """Groups so small that a few documents make several; and, of larger ones, batches and looked-up offsets too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_rows, "GROUP", request.param)
        if request.param == 5:
            patch.setattr(made_corpora, "BATCH_DOCUMENTS", 4)
            patch.setattr(document_rows, "IN_MEMORY", 0)
            patch.setattr(document_rows, "AT_ONCE", 3)
        yield request.param


def check_epoch(targets, documents, packing, group):
    """Each token was a target once: but the first of a document, or of a group of documents that are concatenated."""
    found = trained(targets)
    if packing == "best_fit":
        assert found == Counter(token for document in documents for token in document[1:])
    else:
        every = Counter(itertools.chain(*documents))
        assert not found - every
        assert (every - found).total() <= -(-len(documents) // group)


@pytest.mark.parametrize("packing", PACKINGS)
@some
@given(made=lengths, seq_len=st.integers(2, 20), seed=st.integers(0, 9), share=st.floats(0, 1))
@example(made=EMPTY, seq_len=6, seed=0, share=0.5)
@example(made=UNEQUAL, seq_len=10, seed=0, share=0.5)
def test_D2_D4_every_document_is_trained_on_once_an_epoch_wherever_it_is_cut(
    group, packing, made, seq_len, seed, share
):
    with Made({"a": made}, packing, seq_len, seed) as (samples, documents):
        rows = int(samples.rows[0])
        cut = round(share * 2 * rows)
        parts = [samples.batch(np.arange(*part)) for part in ((0, cut), (cut, 2 * rows))]
        inputs, targets = (np.concatenate(side) for side in zip(*parts, strict=True))
        for epoch in (0, 1):
            chosen = slice(epoch * rows, (epoch + 1) * rows)
            check_epoch(targets[chosen], documents["a"], packing, group)
            assert trained(targets[chosen]).total() == samples.layouts[0].targets
            seen = set(inputs[chosen].ravel().tolist()) | set(targets[chosen].ravel().tolist())
            assert seen >= set(itertools.chain(*documents["a"]))


@pytest.mark.parametrize("packing", PACKINGS)
@some
@given(made=lengths, seq_len=st.integers(2, 20), seed=st.integers(0, 9))
def test_D5_pieces_of_a_document_are_contiguous_and_in_order(packing, made, seq_len, seed):
    with Made({"a": made}, packing, seq_len, seed) as (samples, documents):
        rows = samples.read(np.arange(int(samples.rows[0])))
        inputs, targets = samples.batch(np.arange(len(rows)))
        follows = {a: b for document in documents["a"] for a, b in itertools.pairwise(document)}
        for row, expected in zip(inputs.tolist(), targets.tolist(), strict=True):
            for token, target in zip(row, expected, strict=True):
                if token >= FIRST and target != IGNORED:
                    assert target == follows[token]
        if packing == "concat":  # in the order of the samples too
            order = [token for row in inputs.tolist() for token in row if token >= FIRST]
            place = {token: number for number, token in enumerate(dict.fromkeys(order))}
            for document in documents["a"]:
                body = [place[token] for token in document if token in place]
                assert body == list(range(body[0], body[0] + len(body))) if body else True


@some
@given(made=lengths, seq_len=st.integers(2, 20), seed=st.integers(0, 9))
def test_D9_what_fits_into_a_row_is_not_cut(made, seq_len, seed):
    with Made({"a": made}, "best_fit", seq_len, seed) as (samples, documents):
        rows = samples.read(np.arange(int(samples.rows[0]))).tolist()
        held = [" ".join(map(str, row)) + " " for row in rows]
        for document in documents["a"]:
            if 2 < len(document) <= seq_len + 1:
                assert any(" ".join(map(str, document)) + " " in row for row in held)


@some
@given(made=lengths, seq_len=st.integers(2, 20), seed=st.integers(0, 9))
def test_D9_concatenated_rows_share_a_token_and_only_the_last_of_a_group_is_short(group, made, seq_len, seed):
    with Made({"a": made}, "concat", seq_len, seed) as (samples, documents):
        rows, (_, targets) = (read(np.arange(int(samples.rows[0]))) for read in (samples.read, samples.batch))
        short = [number for number, row in enumerate(targets) if IGNORED in row]
        assert len(short) <= -(-len(documents["a"]) // group)
        shared = [a[-1] == b[0] for a, b in itertools.pairwise(rows.tolist())]
        assert shared.count(False) <= -(-len(documents["a"]) // group) - 1


def test_D9_best_fit_leaves_less_than_a_hundredth_free_of_rows_of_many_documents(group):
    sizes = np.exp(np.random.default_rng(0).normal(3, 1.2, 800)).astype(int) + 2
    with Made({"a": [sizes.tolist()]}, "best_fit", 64) as (samples, _):
        full = samples.layouts[0].rows * 65
        used = int(np.sum(sizes + np.maximum(sizes - 2, 0) // 64))  # neighbouring segments share a token
        assert used < full < (used * 1.01 if group > 800 else used * 2)


@every_packing
@some
@given(made=lengths, other=lengths, seq_len=st.integers(2, 20), number=st.integers(0, 60))
def test_D10_counts_of_targets_and_epochs_are_exact(packing, made, other, seq_len, number):
    with Made({"a": enough(made), "b": enough(other)}, packing, seq_len, weights={"a": 1.0, "b": 2.0}) as (samples, _):
        targets, sources = samples.batch(np.arange(number))[1], samples.locate(np.arange(number))[0]
        figures = samples.figures(number)
        for index, name in enumerate("ab"):
            assert figures["source_tokens"][name] == trained(targets[sources == index]).total()
            assert figures["source_epochs"][name] == (sources == index).sum() / samples.rows[index]


@every_packing
@some
@given(made=lengths, seed=st.integers(0, 9), steps=st.lists(st.sampled_from(WORLD_SIZES), min_size=2, max_size=6))
def test_D3_D7_any_chain_of_rescales_gives_the_same_rows_and_none_twice_an_epoch(packing, made, seed, steps):
    with Made({"a": enough(made), "b": [[9, 5]]}, packing, 7, seed, {"a": 3.0, "b": 1.0}) as (samples, _):
        uncut = samples.batch(np.arange(24 * len(steps)))
        parts = [
            samples.batch(share_of(24 * step, rank, world_size, 24))
            for step, world_size in enumerate(steps)
            for rank in range(world_size)
        ]
        for whole, cut in zip(uncut, zip(*parts, strict=True), strict=True):
            assert np.array_equal(whole, np.concatenate(cut))
        located = list(zip(*(part.tolist() for part in samples.locate(np.arange(24 * len(steps)))), strict=True))
        assert len(set(located)) == len(located)


@pytest.mark.parametrize("packing", PACKINGS)
def test_D12_a_source_without_a_target_is_refused(packing, tmp_path):
    path, _ = write(tmp_path, {"a": [[0, 1]] if packing == "best_fit" else [[1]]})
    with pytest.raises(UserError, match="source a has no document of at least two tokens"):
        Samples(Corpus(path), {"a": 1.0}, 7, 0, packing=packing)


@every_packing
def test_D13_seeds_and_epochs_give_unrelated_orders_that_other_sources_do_not_touch(packing):
    sizes = np.random.default_rng(0).integers(3, 20, 300).tolist()

    def order(seed, epoch, weights):
        with Made({"a": [sizes], "b": [sizes]}, packing, 16, seed, weights) as (samples, _):
            number, rows = samples.mixture.sources.index("a"), int(samples.rows[0])
            sources, epochs, _ = samples.locate(np.arange(6 * rows))
            ids = samples.read(np.flatnonzero((sources == number) & (epochs == epoch)))
            return list(dict.fromkeys(token for token in ids.ravel().tolist() if token >= FIRST))

    orders = [order(seed, epoch, {"a": 1.0}) for seed in (0, 1) for epoch in (0, 1)]
    for first, second in itertools.combinations(orders, 2):
        assert sorted(first) == sorted(second)
        place = {token: number for number, token in enumerate(first)}
        steps = Counter((place[token] - number) % len(first) for number, token in enumerate(second))
        assert steps.most_common(1)[0][1] < len(first) / 5  # neither the same order nor a rotation of it
    assert order(0, 0, {"a": 1.0, "b": 1.0}) == orders[0]


@pytest.mark.parametrize("packing", PACKINGS)
def test_D15_a_shard_whose_offsets_are_wrong_is_named(packing, tmp_path):
    path, _ = write(tmp_path, {"a": [[9, 9, 9]]})
    identity = manifest.read(path).identity
    (batch, *_) = identity["sources"]["a"]["train"]["shards"][0]["batches"]
    shard = tmp_path / "a-0.arrow"
    content = bytearray(shard.read_bytes())
    content[batch["offsets_at"] + 9] ^= 1  # 256 tokens more in the first document
    shard.write_bytes(content)
    with pytest.raises(UserError, match=r"a-0\.arrow must have offsets that rise from 0 to its number of tokens"):
        Samples(Corpus(path), {"a": 1.0}, 7, 0, packing=packing)


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_group_that_another_thread_removes_from_the_cache_is_still_read(packing, monkeypatch):
    """The loader reads ahead in a thread, and metrics.jsonl counts targets in another: they share the cached groups."""
    cache = document_rows.cache

    def cache_and_clear(cached, *entry):
        cache(cached, *entry)
        cached.clear()

    with Made({"a": [[9] * 40]}, packing) as (samples, _):
        numbers = np.arange(int(samples.rows[0]))
        expected = [samples.batch(numbers)[1].tolist(), samples.figures(5)]
    monkeypatch.setattr(document_rows, "cache", cache_and_clear)
    with Made({"a": [[9] * 40]}, packing) as (samples, _):
        assert [samples.batch(numbers)[1].tolist(), samples.figures(5)] == expected
