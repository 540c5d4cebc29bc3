"""The keyed permutation: a bijection of any size, looked up position by position."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.tokens.permutation import BLOCK, permute, positions_of

few = settings(max_examples=30, deadline=None)


@few
@given(size=st.integers(1, 3000), key=st.text(max_size=20))
def test_every_position_goes_to_another_place_of_the_range(size, key):
    assert sorted(permute(np.arange(size), size, key).tolist()) == list(range(size))


@few
@given(size=st.integers(1, 2**63 - 1), key=st.text(max_size=20), data=st.data())
def test_the_inverse_brings_every_position_back(size, key, data):
    positions = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    assert positions_of(permute(positions, size, key), size, key).tolist() == positions.tolist()
    assert permute(positions_of(positions, size, key), size, key).tolist() == positions.tolist()


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_blocks_do_not_show(size):
    whole = permute(np.arange(size), size, "key")
    assert np.array_equal(np.sort(whole), np.arange(size))
    assert np.array_equal(whole[::7], permute(np.arange(size)[::7], size, "key"))


@few
@given(size=st.integers(2, 2**63), data=st.data())
def test_a_position_can_be_looked_up_alone_whatever_the_size(size, data):
    positions = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20))
    together = permute(np.array(positions), size, "key")
    assert together.dtype == np.int64
    assert all(0 <= place < size for place in together.tolist())
    assert together.tolist() == [permute(np.array([position]), size, "key").item() for position in positions]
    assert len(set(together.tolist())) == len(set(positions))


def test_the_shape_is_kept_and_the_argument_left_alone():
    positions = np.arange(12).reshape(3, 4)
    assert permute(positions, 12, "key").shape == (3, 4)
    assert np.array_equal(positions, np.arange(12).reshape(3, 4))
    assert permute(np.empty(0, np.int64), 5, "key").shape == (0,)


def test_keys_give_unrelated_orders_without_a_trend():
    size = 5000
    orders = [permute(np.arange(size), size, f"{number}/code/0") for number in range(40)]
    for order, following in zip(orders, orders[1:], strict=False):
        for first, second in ((order, np.arange(size)), (order, following), (order[:-1], order[1:])):
            assert abs(np.corrcoef(first, second)[0, 1]) < 5 / size**0.5


def test_all_orders_of_four_occur():
    assert len({tuple(permute(np.arange(4), 4, str(number)).tolist()) for number in range(400)}) == 24
