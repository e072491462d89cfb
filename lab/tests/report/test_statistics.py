"""Intervals cover what they should as often as they say, and agree with scipy's own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dcem_lab.report.claims import beside, judge
from dcem_lab.report.statistics import Interval, bootstrap, interval, log_interval


def test_intervals_cover_the_mean_as_often_as_they_say():
    samples = np.random.default_rng(0).normal(3.0, 2.0, (4, 20_000))
    _, low, high = interval(samples)
    assert np.mean((low < 3) & (high > 3)) == pytest.approx(0.95, abs=0.01)
    mean, low, high = log_interval(np.exp(samples))
    assert np.all((low > 0) & (low < mean) & (mean < high))


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=30))
def test_the_interval_is_that_of_students_test(samples):
    found = interval(np.array(samples))
    if np.ptp(samples) > 1e-3:
        assert found[1:] == pytest.approx(tuple(stats.ttest_1samp(samples, 0).confidence_interval()))


def test_a_single_sample_has_no_interval():
    assert [value.tolist() for value in interval(np.array([[1.0, 2.0]]))] == [[1.0, 2.0]] * 3
    assert bootstrap(np.array([7.0]), np.median, 10) == Interval(7, 7, 7)


def test_a_bootstrap_interval_shrinks_with_the_root_of_the_samples():
    few, many = (np.random.default_rng(0).normal(size=n) for n in (100, 10_000))
    (_, a, b), (_, c, d) = (bootstrap(x, np.mean, 500) for x in (few, many))
    assert (b - a) / (d - c) == pytest.approx(10, rel=0.2)


@pytest.mark.parametrize(
    ("ours", "known", "lower", "words"),
    [
        ([1.0, 1.1, 1.2], 1.1, False, "agrees"),
        ([1.0, 1.1, 1.2], 0.5, False, "better"),
        ([1.0, 1.1, 1.2], 2.0, False, "worse"),
        ([1.0, 1.1, 1.2], 2.0, True, "better"),
        ([0.1, 1.1, 2.2], 1.0, False, "agrees, but wide"),
        ([1.0], 0.9, False, "better, one seed"),
    ],
)
def test_verdicts(ours, known, lower, words):
    assert judge(np.array(ours), known, lower_is_better=lower).words == words


@pytest.mark.parametrize(("known", "words"), [(600, "better"), (695, "agrees"), (800, "worse")])
def test_verdicts_on_an_interval(known, words):
    assert beside(Interval(700, 690, 710), known).words == words
