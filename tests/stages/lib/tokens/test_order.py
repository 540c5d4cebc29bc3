"""The cycle of sources: shares, evenness, and the weights that are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.errors import UserError
from stages.lib.tokens.mixture import SLOTS, Mixture

few = settings(max_examples=15, deadline=None)
weights = st.dictionaries(st.text("abcde", min_size=1, max_size=3), st.floats(0.05, 20), min_size=1, max_size=8)


@few
@given(weights, st.integers(0, 3 * SLOTS))
def test_at_any_sample_each_source_had_its_share_give_or_take_one(weights, samples):
    mixture = Mixture(weights)
    taken = mixture.taken(samples)
    assert sum(taken.values()) == samples
    for source, count in zip(mixture.sources, mixture.counts.tolist(), strict=True):
        assert abs(taken[source] - samples * count / SLOTS) < 1


@few
@given(weights)
def test_shares_are_the_weights_rounded_to_1_in_4096(weights):
    mixture = Mixture(weights)
    assert mixture.counts.sum() == SLOTS
    assert np.array_equal(np.bincount(mixture.slots, minlength=len(weights)), mixture.counts)
    for source, count in zip(mixture.sources, mixture.counts.tolist(), strict=True):
        assert abs(count - SLOTS * weights[source] / sum(weights.values())) < 1


@few
@given(weights, st.integers(0, 2 * SLOTS), st.integers(1, 500))
def test_a_source_is_counted_without_gaps(weights, first, number):
    mixture = Mixture(weights)
    before = mixture.taken(first)
    sources, ordinals = mixture.locate(np.arange(first, first + number))
    for index, source in enumerate(mixture.sources):
        found = ordinals[sources == index].tolist()
        assert found == list(range(before[source], before[source] + len(found)))


def test_the_order_of_the_mapping_does_not_matter():
    assert np.array_equal(Mixture({"a": 1, "b": 3}).slots, Mixture({"b": 3, "a": 1}).slots)


def test_a_weight_that_rounds_to_nothing_is_refused():
    with pytest.raises(UserError, match=r"pretrain\.weights\.rare must be at least 1/4096 of the sum"):
        Mixture({"code": 1.0, "rare": 1e-5})


def test_a_weight_of_zero_is_refused_not_ignored():
    with pytest.raises(UserError, match=r"weights\.prose must be at least 1/4096 .* leave the source out"):
        Mixture({"code": 1.0, "prose": 0.0})


@pytest.mark.parametrize("weights", [{}, {"code": 0.0}])
def test_weights_must_give_something(weights):
    with pytest.raises(UserError, match="at least one source a weight greater than 0"):
        Mixture(weights)
