"""The bootstrap: standard errors of means and ratios against their closed forms, and the coverage of the interval."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.scoring import aggregations


def error_of(numerators, denominators):
    """The standard error of sum(numerators) / sum(denominators)."""
    sums = aggregations.resampled_sums(np.stack([numerators, denominators], axis=1), 0)
    return aggregations.resampled_error(sums[:, 0] / sums[:, 1], len(numerators))


def test_standard_errors_of_a_mean_and_of_a_ratio_are_the_closed_form_and_the_linearization():
    values = np.random.default_rng(1).normal(size=12)
    assert error_of(values, np.ones(12)) == pytest.approx(values.std(ddof=1) / math.sqrt(12), rel=0.03)
    rng = np.random.default_rng(2)
    sizes = rng.integers(100, 2000, size=400).astype(float)
    bits = sizes * rng.normal(2.0, 0.3, size=400)
    ratio = bits.sum() / sizes.sum()
    linear = (bits - ratio * sizes) / sizes.mean()  # the delta method
    found = error_of(bits, sizes)
    assert found == pytest.approx(linear.std(ddof=1) / math.sqrt(400), rel=0.03)


def test_equal_ratios_have_no_error_and_one_document_none_that_is_known():
    sizes = np.array([1.0, 5.0, 9.0])
    assert error_of(2 * sizes, sizes) == 0
    assert math.isnan(error_of(sizes[:1], sizes[:1]))


def test_draws_do_not_depend_on_the_size_of_a_block(monkeypatch):
    columns = np.random.default_rng(3).normal(size=(50, 2))
    whole = aggregations.resampled_sums(columns, 7, 200)
    monkeypatch.setattr(aggregations, "BLOCK", 51)
    assert np.array_equal(whole, aggregations.resampled_sums(columns, 7, 200))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=2, max_size=30), st.integers(0, 9))
def test_difference_of_swapped_scores_is_the_negative_and_the_interval_contains_it(pairs, seed):
    a, b = np.array(pairs).T
    low, high = interval_of(b - a, seed)
    assert interval_of(a - b, seed) == pytest.approx((-high, -low), abs=1e-12)
    assert low <= (b - a).mean() <= high


def interval_of(values, seed, resamples=300):
    sums = aggregations.resampled_sums(values[:, None], seed, resamples)[:, 0]
    return aggregations.interval(values.mean(), sums / len(values), len(values))


def test_95_percent_interval_of_a_paired_difference_covers_it_in_95_percent():
    rng = np.random.default_rng(4)
    trials, covered = 400, 0
    for trial in range(trials):
        documents = rng.normal(scale=3.0, size=50)  # easy and hard ones, for both models
        a, b = documents + rng.normal(size=50), documents + rng.normal(0.4, size=50)
        low, high = interval_of(b - a, trial, 300)
        covered += low <= 0.4 <= high
    assert abs(covered / trials - 0.95) < 3 * math.sqrt(0.95 * 0.05 / trials)
