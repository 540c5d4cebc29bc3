"""The order of the data: the cycle of sources, the keyed permutation, and the packing of rows."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.errors import UserError
from stages.lib.tokens.data_order import BLOCK, SLOTS, Mixture, permute, positions_of
from stages.lib.tokens.packing import best_fit, best_fit_rows

few = settings(max_examples=15, deadline=None)
weights = st.dictionaries(st.text("abcde", min_size=1, max_size=3), st.floats(0.05, 20), min_size=1, max_size=8)


@few
@given(weights, st.integers(0, 3 * SLOTS), st.integers(1, 500))
def test_at_any_sample_each_source_had_its_share_give_or_take_one_without_gaps(weights, first, number):
    mixture = Mixture(weights)
    taken = mixture.taken(first)
    assert sum(taken.values()) == first
    sources, ordinals = mixture.locate(np.arange(first, first + number))
    for index, (source, count) in enumerate(zip(mixture.sources, mixture.counts.tolist(), strict=True)):
        assert abs(taken[source] - first * count / SLOTS) < 1
        found = ordinals[sources == index].tolist()
        assert found == list(range(taken[source], taken[source] + len(found)))


@few
@given(weights)
def test_shares_are_the_weights_rounded_to_1_in_4096(weights):
    mixture = Mixture(weights)
    assert np.array_equal(mixture.slots, Mixture(dict(reversed(weights.items()))).slots)
    assert mixture.counts.sum() == SLOTS
    assert np.array_equal(np.bincount(mixture.slots, minlength=len(weights)), mixture.counts)
    for source, count in zip(mixture.sources, mixture.counts.tolist(), strict=True):
        assert abs(count - SLOTS * weights[source] / sum(weights.values())) < 1


def test_a_weight_of_zero_is_refused_not_ignored():
    with pytest.raises(UserError, match=r"weights\.prose must be at least 1/4096 .* leave the source out"):
        Mixture({"code": 1.0, "prose": 0.0})
    for weights in ({}, {"code": 0.0}):
        with pytest.raises(UserError, match="at least one source a weight greater than 0"):
            Mixture(weights)


SIZE = 32
lengths = st.lists(st.integers(1, SIZE), max_size=60)


@settings(deadline=None)
@given(lengths, st.integers(0, 5))
def test_each_sequence_lies_whole_in_one_row_and_no_two_rows_are_half_empty(lengths, seed):
    rows = best_fit(lengths, SIZE, seed)
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    counts = np.bincount(np.array(lengths, dtype=np.int64), minlength=SIZE + 1)
    assert best_fit_rows(counts, SIZE) == len(rows)
    used = sorted(sum(lengths[number] for number in row) for row in rows)
    assert all(0 < size <= SIZE for size in used)
    assert all(first + second > SIZE for first, second in itertools.pairwise(used))


def test_the_fullest_row_that_has_room_is_taken():
    assert best_fit([20, 25, 7, 5], SIZE, 0) == [[1, 2], [0, 3]]


def test_another_seed_brings_others_together_and_the_same_seed_the_same():
    lengths = [8] * 40
    assert best_fit(lengths, SIZE, 0) == best_fit(lengths, SIZE, 0)
    assert best_fit(lengths, SIZE, 0) != best_fit(lengths, SIZE, 1)


many = settings(max_examples=30, deadline=None)


@many
@given(size=st.integers(1, 3000), key=st.text(max_size=20))
def test_every_position_goes_to_another_place_of_the_range(size, key):
    assert sorted(permute(np.arange(size), size, key).tolist()) == list(range(size))


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_blocks_do_not_show(size):
    whole = permute(np.arange(size), size, "key")
    assert np.array_equal(np.sort(whole), np.arange(size))
    assert np.array_equal(whole[::7], permute(np.arange(size)[::7], size, "key"))
    assert np.array_equal(whole[:12].reshape(3, 4), permute(np.arange(12).reshape(3, 4), size, "key"))
    assert permute(np.empty(0, np.int64), size, "key").shape == (0,)


@many
@given(size=st.integers(1, 2**63 - 1), key=st.text(max_size=20), data=st.data())
def test_a_position_can_be_looked_up_alone_and_brought_back_whatever_the_size(size, key, data):
    positions = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20))
    given_ = np.array(positions)
    together = permute(given_, size, key)
    assert together.dtype == np.int64 and given_.tolist() == positions
    assert positions_of(together, size, key).tolist() == positions
    assert permute(positions_of(given_, size, key), size, key).tolist() == positions
    assert all(0 <= place < size for place in together.tolist())
    assert together.tolist() == [permute(np.array([position]), size, key).item() for position in positions]
    assert len(set(together.tolist())) == len(set(positions))


def test_keys_give_unrelated_orders_without_a_trend():
    size = 5000
    orders = [permute(np.arange(size), size, f"{number}/code/0") for number in range(40)]
    for order, following in itertools.pairwise(orders):
        for first, second in ((order, np.arange(size)), (order, following), (order[:-1], order[1:])):
            assert abs(np.corrcoef(first, second)[0, 1]) < 5 / size**0.5


def test_all_orders_of_four_occur():
    assert len({tuple(permute(np.arange(4), 4, str(number)).tolist()) for number in range(400)}) == 24
