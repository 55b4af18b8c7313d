"""What a slice that was held back says about a committee: weights, noise and calibration."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_ndtr, logsumexp, softmax
from scipy.stats import norm

from spidertensor.method import Prediction
from spidertensor.spider import calibration
from spidertensor.spider.judge import LARGEST_SQUARE, calibrated, judged, judged_events, stacked
from spidertensor.spider.likelihoods import GAUSSIAN, likelihood_by_name
from spidertensor.spider.likelihoods.probit import PROBIT
from spidertensor.spider.stacking import LEAST_WEIGHT


def prediction(mean, var: float, noise: float) -> Prediction:
    mean = np.asarray(mean, float)
    return Prediction(mean, np.full_like(mean, var), np.full_like(mean, noise))


def slice_of(n: int = 2000, seed: int = 0) -> tuple[np.ndarray, list[Prediction]]:
    """Values, and three members: two see something of them, each another part; the last sees nothing."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, n))
    value = a + 0.7 * b + 0.3 * rng.normal(size=n)
    zero = np.zeros(n)
    return value, [prediction(a, 0.2, 0.3), prediction(0.7 * b, 0.5, 0.7), prediction(zero, 1.0, 9.0)]


def log_scores(value, predictions, factors) -> np.ndarray:
    """(M, n), by SciPy."""
    return np.array(
        [
            norm.logpdf(value, each.mean, np.sqrt(each.var + each.noise * factor))
            for each, factor in zip(predictions, factors, strict=True)
        ]
    )


def test_weights_maximise_the_log_score():
    value, predictions = slice_of()
    verdict = judged(GAUSSIAN, predictions, value)
    log_p = log_scores(value, predictions, verdict.noise)

    def loss(x):
        return -np.log(softmax(x) @ np.exp(log_p)).mean()

    best = minimize(loss, np.zeros(3), tol=1e-12)
    assert verdict.weights.sum() == pytest.approx(1)
    assert (verdict.weights >= LEAST_WEIGHT / 2).all()
    np.testing.assert_allclose(verdict.weights, softmax(best.x), atol=2 * LEAST_WEIGHT)
    assert verdict.log_score == pytest.approx(np.log(verdict.weights @ np.exp(log_p)).mean(), rel=1e-9)
    assert -best.fun - LEAST_WEIGHT < verdict.log_score <= -best.fun + 1e-12


def test_weights_of_members_that_hardly_differ():
    """Where expectation maximisation is slow: 100 rounds from equal weights leave 5e-4 to be gained."""
    value = np.random.default_rng(4).normal(size=20_000)
    log_p = norm.logpdf(value, [[0.0], [0.1]])
    _, score = stacked(log_p)
    best = minimize(lambda x: -np.log(softmax(x) @ np.exp(log_p)).mean(), np.zeros(2), tol=1e-12)
    assert 0 <= -best.fun - score < 5e-5


def test_labels_are_judged_too():
    """A member that knows has nearly all weight, one that knows nothing nearly none; no noise to change."""
    rng = np.random.default_rng(1)
    f = 2 * rng.normal(size=3000)
    value = (rng.random(3000) < norm.cdf(f)).astype(float)
    verdict = judged(PROBIT, [prediction(f, 0.01, 0.0), prediction(0 * f, 0.01, 0.0)], value)
    assert verdict.weights[0] > 0.95
    np.testing.assert_array_equal(verdict.noise, 1)
    expected = norm.cdf(np.where(value > 0, f, -f) / np.sqrt(1.01))
    assert verdict.log_score == pytest.approx(np.log(expected).mean(), rel=0.02)


@pytest.mark.parametrize("too_small", [0.1, 1.0, 5.0])
def test_noise_is_multiplied_by_how_far_off_values_are(too_small):
    """Hardly any variance beside the noise, so that it is the noise that the factor corrects."""
    rng = np.random.default_rng(2)
    mean = rng.normal(size=20_000)
    value = mean + np.sqrt(2.0) * rng.normal(size=20_000)
    verdict = judged(GAUSSIAN, [prediction(mean, 1e-9, 2.0 / too_small)], value)
    wanted = np.minimum(too_small * rng.chisquare(1, size=200_000), LARGEST_SQUARE).mean()
    assert verdict.noise[0] == pytest.approx(wanted, rel=0.05)
    np.testing.assert_allclose(verdict.mixture.noise, 2.0 / too_small * verdict.noise[0])


def test_outliers_do_not_set_the_noise():
    rng = np.random.default_rng(3)
    value = rng.normal(size=1000)
    clean = judged(GAUSSIAN, [prediction(0 * value, 1e-9, 1.0)], value).noise[0]
    value[:5] = 1e6
    dirty = judged(GAUSSIAN, [prediction(0 * value, 1e-9, 1.0)], value)
    assert dirty.noise[0] < clean + 5 * LARGEST_SQUARE / 1000
    assert np.isfinite(dirty.log_score)


def test_one_member_has_all_the_weight():
    value, predictions = slice_of(200)
    verdict = judged(GAUSSIAN, predictions[:1], value)
    np.testing.assert_array_equal(verdict.weights, [1.0])
    np.testing.assert_array_equal(verdict.mixture.mean, predictions[0].mean)


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_calibrated_quantiles_are_those_of_the_residuals(factor):
    """As many residuals as the histogram holds, so that what it starts with hardly counts."""
    rng = np.random.default_rng(4)
    value = factor * rng.standard_t(5, size=50_000)
    histogram = calibrated(GAUSSIAN, prediction(0 * value, 0.5, 0.5), value)
    for probability in (0.05, 0.25, 0.5, 0.75, 0.95):
        wanted = np.quantile(value, probability)
        assert calibration.quantile(histogram, probability) == pytest.approx(wanted, abs=0.03 * factor)


def test_a_calibrated_histogram_can_go_on():
    """It weighs at most what the forgetting one does in the long run, and a small slice as many entries."""
    value = np.random.default_rng(5).normal(size=300)
    small = calibrated(GAUSSIAN, prediction(0 * value, 0.5, 0.5), value)
    assert small.mass.sum() == pytest.approx(calibration.START_ENTRIES + 300)
    value = np.concatenate([np.tile(value, 20), [1e9, -1e9]])
    large = calibrated(GAUSSIAN, prediction(0 * value, 0.5, 0.5), value)
    assert large.mass.sum() == pytest.approx(calibration.MEMORY_ENTRIES)
    assert large.mass[0] > 0
    assert large.mass[-1] > 0
    assert (large.mass >= 0).all()


def test_counts_have_a_verdict():
    count = likelihood_by_name("count")
    rng = np.random.default_rng(6)
    f = rng.normal(size=500)
    value = rng.poisson(np.exp(f)).astype(float)
    verdict = judged(count, [prediction(f, 0.01, 0.01), prediction(0 * f, 0.01, 0.01)], value)
    assert verdict.weights[0] > 0.9
    assert np.isfinite(verdict.log_score)
    assert np.isfinite(calibrated(count, verdict.mixture, value).mass).all()


def test_values_that_are_absurd_to_all_members_leave_equal_weights():
    predictions = [Prediction(np.zeros(3), np.ones(3), np.ones(3))] * 2
    verdict = judged(GAUSSIAN, predictions, np.full(3, np.inf))
    assert verdict.weights.tolist() == [0.5, 0.5]
    assert verdict.log_score == -np.inf


def test_events_are_judged_by_their_place_among_their_negatives():
    """One member ranks well, the other at random."""
    rng = np.random.default_rng(0)
    n, negatives = 400, 4
    value = np.tile([1.0, *[0.0] * negatives], n)
    good = value + 0.5 * rng.normal(size=len(value))
    log_odds = log_ndtr(good) - log_ndtr(-good)
    random = rng.normal(size=len(value))
    members = [Prediction(mean, np.zeros_like(mean), np.ones_like(mean)) for mean in (good, random)]
    verdict = judged_events(PROBIT, members, value)
    assert verdict.weights[0] > 0.95
    groups = log_odds.reshape(n, -1)
    wanted = (groups[:, 0] - logsumexp(groups, axis=1)).mean()
    alone = judged_events(PROBIT, members[:1], value)
    assert alone.log_score == pytest.approx(wanted)
    assert verdict.log_score >= alone.log_score - 1e-3
    nobody = judged_events(PROBIT, members[1:], value)
    assert nobody.log_score < -np.log(1 + negatives)
