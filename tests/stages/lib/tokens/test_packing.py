"""Packing: nothing is lost, nothing is cut, and rows are full."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.tokens.best_fit import best_fit, best_fit_rows

SIZE = 32
lengths = st.lists(st.integers(1, SIZE), max_size=60)


@settings(deadline=None)
@given(lengths, st.integers(0, 5))
def test_each_sequence_lies_whole_in_one_row(lengths, seed):
    rows = best_fit(lengths, SIZE, seed)
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[number] for number in row) <= SIZE for row in rows)


@settings(deadline=None)
@given(lengths, st.integers(0, 5))
def test_the_rows_are_counted_from_the_lengths_alone(lengths, seed):
    counts = np.bincount(np.array(lengths, dtype=np.int64), minlength=SIZE + 1)
    assert best_fit_rows(counts, SIZE) == len(best_fit(lengths, SIZE, seed))


@settings(deadline=None)
@given(lengths)
def test_no_two_rows_are_half_empty(lengths):
    used = sorted(sum(lengths[number] for number in row) for row in best_fit(lengths, SIZE, 0))
    assert all(first + second > SIZE for first, second in zip(used, used[1:], strict=False))


def test_the_fullest_row_that_has_room_is_taken():
    assert best_fit([20, 25, 7, 5], SIZE, 0) == [[1, 2], [0, 3]]


def test_another_seed_brings_others_together_and_the_same_seed_the_same():
    lengths = [8] * 40
    assert best_fit(lengths, SIZE, 0) == best_fit(lengths, SIZE, 0)
    assert best_fit(lengths, SIZE, 0) != best_fit(lengths, SIZE, 1)


def test_padding_of_many_short_sequences_is_below_two_percent():
    lengths = np.random.default_rng(0).integers(5, 120, 5000)
    rows = best_fit(lengths, 256, 0)
    assert lengths.sum() / (256 * len(rows)) > 0.98
