"""Intervals that cover what they say: the histogram of residuals against the oracle and exact cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import t as student

import naive
from spidertensor import SpiderClassifier, SpiderRegressor
from spidertensor.spider import calibration
from spidertensor.spider.calibration import (
    EDGES,
    INNER,
    MEMORY_ENTRIES,
    N_BINS,
    OUTER,
    START_ENTRIES,
    Histogram,
    note,
    quantile,
)

PROBABILITIES = (0.005, 0.05, 0.25, 0.5, 0.75, 0.95, 0.995)


def noted(histogram: Histogram, residual: np.ndarray, good: np.ndarray | None = None) -> np.ndarray:
    below = np.empty(len(residual))
    note(
        histogram.mass,
        MEMORY_ENTRIES,
        residual,
        np.ones(len(residual), bool) if good is None else good,
        below,
    )
    return below


def test_starts_as_the_normal_distribution():
    start = calibration.start()
    assert start.mass.sum() == pytest.approx(START_ENTRIES)
    for probability in PROBABILITIES:
        assert quantile(start, probability) == pytest.approx(ndtri(probability), abs=0.01)


def test_bins_leave_no_gap():
    """Equally wide up to INNER, then each wider than the one before by the same factor, on both sides."""
    right = EDGES[EDGES >= 0]
    inner, outer = right[right <= INNER], right[right >= INNER]
    assert (right[0], inner[-1], outer[0], outer[-1]) == (0, INNER, INNER, OUTER)
    np.testing.assert_allclose(np.diff(inner), inner[1])
    np.testing.assert_allclose(outer[1:] / outer[:-1], outer[1] / outer[0])
    np.testing.assert_array_equal(EDGES, -EDGES[::-1])
    assert len(EDGES) == N_BINS + 1 == 2 * len(right) - 1


def test_histogram_is_the_oracle():
    residuals = 3 * np.random.default_rng(0).standard_t(2, 300)
    residuals[[5, 50, 100, 150]] = 1e9, -1e9, OUTER, -OUTER
    histogram = calibration.start()
    noted(histogram, residuals)
    np.testing.assert_allclose(histogram.mass, naive.residual_histogram(EDGES, residuals), rtol=1e-12)


def test_below_is_the_share_before_each_residual():
    """That of `quantile` turned round, with all residuals before it and none after it."""
    residuals = np.random.default_rng(1).normal(0.5, 2, 50)
    below = noted(calibration.start(), residuals)
    histogram = calibration.start()
    for z, share in zip(residuals, below, strict=True):
        assert quantile(histogram, share) == pytest.approx(z, abs=1e-9)
        noted(histogram, np.array([z]))


def test_calls_may_be_cut_anywhere_and_entries_that_were_not_learned_are_ignored():
    rng = np.random.default_rng(2)
    residual, good = rng.normal(size=400), rng.random(400) < 0.9
    residual[~good] = np.nan
    whole, cut, without = (calibration.start() for _ in range(3))
    below = noted(whole, residual, good)
    at = [1, 7, 300]
    parts = [noted(cut, *part) for part in zip(np.split(residual, at), np.split(good, at), strict=True)]
    np.testing.assert_array_equal(np.concatenate(parts), below)
    np.testing.assert_array_equal(cut.mass, whole.mass)
    np.testing.assert_array_equal(noted(without, residual[good]), below[good])
    np.testing.assert_array_equal(without.mass, whole.mass)
    assert np.isnan(below[~good]).all()


def test_forgets():
    """What was noted 10 memories ago counts e^-10."""
    histogram = calibration.start()
    noted(histogram, np.full(5000, 50.0))
    assert quantile(histogram, 0.5) > 40
    noted(histogram, np.random.default_rng(3).normal(size=10 * MEMORY_ENTRIES))
    assert abs(quantile(histogram, 0.5)) < 0.2
    assert quantile(histogram, 0.999) < 5


def test_extreme_residuals_stay_in_the_last_bins():
    histogram = calibration.start()
    below = noted(histogram, np.array([np.inf, -np.inf, 1e300, -1e300, OUTER]))
    assert ((below >= 0) & (below <= 1)).all()
    assert histogram.mass[0] > 1.9
    assert histogram.mass[N_BINS - 1] > 2.9
    assert quantile(histogram, 1.0) == OUTER


@pytest.mark.parametrize("degrees", [2, 3, 30])
def test_coverage_of_any_distribution(degrees):
    """Heavy-tailed and shifted: central intervals cover what they say at every level."""
    residuals = 0.7 * np.random.default_rng(4).standard_t(degrees, 60_000) + 0.4
    below = noted(calibration.start(), residuals)[2000:]
    for coverage, near in ((0.5, 0.01), (0.8, 0.01), (0.9, 0.01), (0.95, 0.01), (0.99, 0.005)):
        assert np.mean(np.abs(below - 0.5) <= coverage / 2) == pytest.approx(coverage, abs=near)
    assert student.ppf(0.995, 2) * 0.7 + 0.4 > 7  # so the tail was not what a normal distribution has


# --- through the estimators ---


def skewed(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Additive effects and exponential noise with rare large values: nothing about it is Gaussian."""
    rng = np.random.default_rng(seed)
    X = rng.integers((60, 40), size=(n, 2))
    noise = rng.exponential(1.0, n) + 8 * (rng.random(n) < 0.02)
    return X, np.sin(X[:, 0]) + np.cos(X[:, 1]) + noise


def test_intervals_of_a_skewed_stream():
    X, y = skewed(40_000)
    model = SpiderRegressor()
    update = model.learn(X[:30_000], y[:30_000])
    assert update.below is not None
    below = update.below[3000:]
    z = (y[3000:30_000] - update.mean[3000:]) / np.sqrt(update.var + update.noise)[3000:]
    plain = np.mean(np.abs(z) <= ndtri(0.75))
    assert plain > 0.6  # the Gaussian's 50 % interval
    for coverage, near in ((0.5, 0.01), (0.8, 0.01), (0.9, 0.01), (0.95, 0.01), (0.99, 0.005)):
        assert np.mean(np.abs(below - 0.5) <= coverage / 2) == pytest.approx(coverage, abs=near)
        low, high = model.predict_interval(X[30_000:], coverage)
        inside = (y[30_000:] >= low) & (y[30_000:] <= high)
        assert inside.mean() == pytest.approx(coverage, abs=0.04)  # by the last thousand entries
    mean = model.predict(X[30_000:])
    low, high = model.predict_interval(X[30_000:])
    assert np.median(high - mean) > 1.5 * np.median(mean - low)


@pytest.mark.filterwarnings("ignore:.*too far from their predictions")  # the noise is skewed
def test_intervals_are_in_the_units_of_the_values():
    X, y = skewed(2000)
    one, other = (
        SpiderRegressor(committee=2).fit(X, scale * y + shift) for scale, shift in ((1, 0), (50, -7))
    )
    for a, b in zip(one.predict_interval(X[:9], 0.8), other.predict_interval(X[:9], 0.8), strict=True):
        np.testing.assert_allclose(50 * a - 7, b, rtol=1e-3)


def test_bad_coverage_and_binary_values():
    X, y = skewed(300)
    model = SpiderRegressor(committee=1).fit(X, y)
    for coverage in (0, 1, 1.5, -0.1, np.nan, "0.9", None, True):
        with pytest.raises(ValueError, match="coverage is a probability between 0 and 1"):
            model.predict_interval(X, coverage)
    labels = SpiderClassifier(committee=1)
    assert labels.learn(X, y > 1).below is None
    assert not hasattr(labels, "predict_interval")
    with pytest.raises(ValueError, match="predicts a probability, which has no interval"):
        labels.recommend({0: 1}, over=1, coverage=0.9)
