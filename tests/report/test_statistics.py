import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fl_lightning.report import statistics

numbers = st.floats(-1, 1, allow_nan=False).map(lambda value: round(value, 6))


@given(st.lists(numbers, min_size=2, max_size=12))
def test_confidence_interval_is_scipys(values):
    low, high = statistics.confidence_interval(values)
    result = stats.ttest_1samp(values, 0.0) if len(set(values)) > 1 else None
    if result is None:
        assert low == pytest.approx(high)
    else:
        expected = result.confidence_interval(0.95)
        assert (low, high) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-12)


@given(st.lists(numbers, max_size=20))
def test_sign_test_is_the_exact_binomial_one(values):
    positive, negative = sum(v > 0 for v in values), sum(v < 0 for v in values)
    expected = stats.binomtest(positive, positive + negative).pvalue if positive + negative else 1.0
    assert statistics.sign_test(values) == pytest.approx(expected)


def test_one_seed_has_no_interval_and_no_deviation():
    assert all(math.isnan(end) for end in statistics.confidence_interval([0.3]))
    assert math.isnan(statistics.spread([0.3]).deviation)


def test_differences_use_common_seeds_only():
    result = statistics.paired({0: 1.0, 1: 5.0, 7: 2.0}, {1: 1.0, 7: 4.0, 9: 0.0})
    assert result.differences.tolist() == [4.0, -2.0]
    assert result.mean == 1.0
    assert result.sign_test == 1.0


def test_cost_of_never_is_nan_and_ratio_is_over_common_seeds():
    never = statistics.cost({0: None, 1: None}, {0: 3.0, 1: 4.0})
    assert (never.reached, never.count) == (0, 2)
    assert math.isnan(never.mean)
    assert math.isnan(never.ratio)
    partly = statistics.cost({0: 30.0, 1: None, 2: 10.0}, {0: 10.0, 1: 1.0, 2: None})
    assert partly.ratio == float(Fraction(30, 10))
    assert partly.mean == 20.0


def test_band_over_rounds_is_mean_lowest_and_highest(rng):
    x = np.arange(1.0, 51.0)
    curves = rng.random((4, 50))
    band = statistics.band([(x, y) for y in curves], 100)
    assert np.array_equal(band.x, x)
    np.testing.assert_allclose(band.mean, curves.mean(0))
    assert np.array_equal(band.low, curves.min(0))
    assert np.array_equal(band.high, curves.max(0))


def test_band_on_different_axes_holds_the_last_evaluation():
    first = (np.array([2.0, 6.0, 10.0]), np.array([0.1, 0.5, 0.9]))
    second = (np.array([1.0, 5.0, 8.0]), np.array([0.3, 0.3, 0.7]))
    band = statistics.band([first, second], 7)
    assert band.x.tolist() == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    expected = [0.1, 0.1, 0.1, 0.1, 0.5, 0.5, 0.5], [0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.7]
    np.testing.assert_allclose(band.mean, np.mean(expected, axis=0))


def test_band_skips_rounds_without_evaluation_and_empty_runs():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    y = np.array([math.nan, 0.2, math.nan, 0.4])
    band = statistics.band([(x, y), (x, np.full(4, math.nan))], 10)
    assert band.x.tolist() == [2.0, 4.0]
    assert band.mean.tolist() == [0.2, 0.4]


def test_a_run_that_stopped_early_ends_the_band():
    band = statistics.band([(np.arange(1.0, 4.0), np.ones(3)), (np.arange(1.0, 9.0), np.zeros(8))], 100)
    assert band.x.tolist() == [1.0, 2.0, 3.0]
