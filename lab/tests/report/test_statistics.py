"""Intervals cover what they should as often as they say, and agree with scipy's own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dcem_lab.report.claims import Verdict, beside, judge, qualified
from dcem_lab.report.statistics import (
    Interval,
    bootstrap,
    interquartile_mean,
    interval,
    log_interval,
    optimality_gap,
    stratified,
    two_humps,
)


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


# The shape behind a median


def hump(at: float, n: int, spread: float = 30.0) -> np.ndarray:
    """Evenly through a normal distribution."""
    return stats.norm(at, spread).ppf((np.arange(n) + 0.5) / n)


@pytest.mark.parametrize(
    ("low", "n_low", "high"), [(150, 40, 930), (20, 8, 960), (400, 50, 700), (50, 90, 900)]
)
def test_two_humps_are_found(low, n_low, high):
    found = two_humps(np.concatenate([hump(low, n_low), hump(high, 100 - n_low)]))
    assert found is not None and (found.n_low, found.n_high) == (n_low, 100 - n_low)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1)


@pytest.mark.parametrize(
    "shape", [stats.norm(), stats.uniform(), stats.expon(), stats.t(3), stats.beta(8, 1), stats.lognorm(1)]
)
def test_one_hump_is_not_split(shape):
    """However skewed or heavy its tail is; of samples of 100, at most one in twenty looks as if."""
    drawn = shape.rvs((200, 100), random_state=np.random.default_rng(0))
    assert np.mean([two_humps(samples) is not None for samples in drawn]) < 0.05


@pytest.mark.parametrize("samples", [np.full(50, 7.0), np.array([0.0, 1000.0] * 9), np.array([1.0])])
def test_no_shape_is_read_into_equal_or_few_samples(samples):
    assert two_humps(samples) is None


@given(st.floats(-1e3, 1e3), st.floats(1e-2, 1e2))
def test_humps_do_not_depend_on_the_unit(shift, scale):
    samples = np.concatenate([hump(150, 40), hump(930, 60)])
    found, moved = two_humps(samples), two_humps(samples * scale + shift)
    assert found is not None and moved is not None and found.n_low == moved.n_low


BETTER, WORSE = Verdict("better", "good"), Verdict("worse", "bad")


@pytest.mark.parametrize(
    ("verdict", "seeds", "words", "tone", "note"),
    [
        (BETTER, [hump(900, 100)], "better", "good", ""),
        (BETTER, [hump(900, 100), hump(850, 100)], "better", "good", ""),
        (BETTER, [np.concatenate([hump(100, 40), hump(930, 60)])],
         "better, but bimodal", "even", "40 around 100, 60 around 930"),
        (WORSE, [np.concatenate([hump(100, 40), hump(930, 60)])],
         "worse, but bimodal", "bad", "40 around 100, 60 around 930"),
        (BETTER, [np.concatenate([np.linspace(100, 800, 14), hump(900, 86)])],
         "better, but failures", "even", "7 of 100 below half of the median"),
        (BETTER, [hump(900, 100), np.concatenate([hump(100, 30), hump(930, 70)])],
         "better, but not in every seed", "even", "another seed: 30 around 100, 70 around 930"),
    ],
)  # fmt: skip
def test_a_verdict_says_what_the_median_hides(verdict, seeds, words, tone, note):
    assert qualified(verdict, *seeds) == (words, tone, note)


def test_the_interquartile_mean_is_that_of_the_middle_half():
    random = np.random.default_rng(0)
    samples = random.normal(size=(3, 40))
    expected = np.sort(samples)[:, 10:30].mean(-1)
    np.testing.assert_allclose(interquartile_mean(samples), expected)
    samples[:, samples.argmax(-1)] = 1e9
    assert (interquartile_mean(samples) < 10).all()


def test_the_gap_counts_what_is_missing_and_nothing_beyond():
    assert optimality_gap(np.array([[1000.0, 2000.0], [0.0, 500.0]]), 1000).tolist() == [0, 750]


def test_samples_are_drawn_again_within_their_group():
    """Drawn from both groups together, some would miss one of them, and the mean would vary."""
    groups = [np.zeros(3), np.full(3, 10.0)]
    assert stratified(groups, lambda x: x.mean(-1), 200) == (5, 5, 5)
    value, low, high = stratified([np.array([0.0, 10.0]), np.full(2, 10.0)], lambda x: x.mean(-1), 500)
    assert (value, low, high) == (7.5, 5, 10)
