"""The generic quadrature against closed forms and scipy; the formulas of the negative binomial."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import gamma, nbinom, norm

from spidertensor.method import Prediction
from spidertensor.spider.keyed import uniforms
from spidertensor.spider.likelihoods import COUNT, LIKELIHOODS, density, negative_binomial
from spidertensor.spider.likelihoods.density import constants, log_density
from spidertensor.spider.likelihoods.kernel import GAUSSIAN, PROBIT, evidence
from spidertensor.spider.likelihoods.quadrature import by_quadrature

COUNTS = [
    (y, alpha, beta, noise)
    for y in (0.0, 1.0, 7.0, 3000.0)
    for alpha in (-4.0, 0.5, 6.0)
    for beta in (1e-6, 0.05, 1.0, 4.0)
    for noise in (1e-4, 0.3, 20.0)
]


def by_scipy(y, alpha, beta, noise):
    """log Z, and mean and variance of f: the density is cut where it has fallen by e^-600."""
    r, grid = 1 / noise, alpha + np.sqrt(beta) * np.linspace(-40, 40, 80_001)

    def level(f):
        return nbinom.logpmf(y, r, 1 / (1 + noise * np.exp(f))) + norm.logpdf(f, alpha, math.sqrt(beta))

    levels = level(grid)
    top, near = levels.max(), grid[levels > levels.max() - 600]
    points = np.linspace(*np.quantile(grid[levels > top - 40], (0, 1)), 9)

    def moment(of):
        inside = lambda f: of(f) * math.exp(level(f) - top)  # noqa: E731
        return quad(inside, near[0], near[-1], points=points, epsabs=0, epsrel=1e-10, limit=400)[0]

    Z = moment(lambda f: 1.0)
    mean = moment(lambda f: f) / Z
    return math.log(Z) + top, mean, moment(lambda f: (f - mean) ** 2) / Z


@pytest.mark.parametrize("ratio", [1e-8, 1e-2, 1.0, 100.0, 1e6])
def test_the_gaussian_in_closed_form(ratio):
    """However much narrower, or wider, the likelihood is than the prediction."""
    for y, alpha, noise in ((1.3, 0.2, 0.5), (-4.0, 3.0, 1e-3), (0.0, 0.0, 20.0)):
        got = by_quadrature(GAUSSIAN, y, alpha, ratio * noise, noise)
        wanted = evidence(GAUSSIAN, y, alpha, ratio * noise, noise)
        np.testing.assert_allclose(got[:4], wanted, rtol=1e-9, atol=1e-11 / noise)
        s = (1 + ratio) * noise
        score = (
            0.5 * noise * ((y - alpha) ** 2 / s**2 - 1 / s)
        )  # d log N(y | alpha, beta + noise) / dlog noise
        assert got[4] == pytest.approx(score, rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("y", [0.0, 1.0])
@pytest.mark.parametrize("alpha", [-9.0, -2.0, 0.0, 0.7, 4.0])
def test_the_probit_in_closed_form(y, alpha):
    for beta, rtol in ((1e-8, 1e-6), (1e-3, 1e-6), (0.1, 1e-6), (1.0, 2e-4), (4.0, 2e-2)):
        got, wanted = by_quadrature(PROBIT, y, alpha, beta, 0.0), evidence(PROBIT, y, alpha, beta, 0.0)
        np.testing.assert_allclose(got[:4], wanted, rtol=rtol, atol=rtol * 0.01)


@pytest.mark.parametrize("entry", COUNTS[::5])
def test_counts_by_scipy(entry):
    _y, alpha, beta, _noise = entry
    log_z, mean, var = by_scipy(*entry)
    got_log_z, da, db, c, _ = by_quadrature(COUNT.code, *entry)
    assert got_log_z == pytest.approx(log_z, abs=1e-4)
    assert alpha + beta * da == pytest.approx(mean, abs=2e-4 * math.sqrt(var))
    assert beta - beta**2 * c == pytest.approx(var, rel=5e-3 if beta == 4 else 1e-4)
    assert db == pytest.approx(0.5 * (da * da - c))


@pytest.mark.parametrize("entry", COUNTS)
def test_the_score_of_the_noise_is_a_derivative(entry):
    *given, noise = entry
    step = 1e-4
    up, down = (by_quadrature(COUNT.code, *given, noise * math.exp(s))[0] for s in (step, -step))
    score = by_quadrature(COUNT.code, *entry)[4]
    assert score == pytest.approx((up - down) / (2 * step), rel=2e-3, abs=2e-5)


def test_an_entry_narrows_and_never_inverts():
    for y in (0.0, 1.0, 1e6, 1e15):
        for alpha in (-1e3, -30.0, 0.0, 30.0, 1e3):
            for beta in (1e-10, 1e-3, 1.0, 50.0, 1e4):
                for noise in (negative_binomial.LEAST_NOISE, 1.0, negative_binomial.LARGEST_NOISE):
                    told = by_quadrature(COUNT.code, y, alpha, beta, noise)
                    assert np.isfinite(told).all(), (y, alpha, beta, noise)
                    assert 0 <= told[3] <= 1 / beta


@pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=str)
def test_densities_and_their_derivatives(likelihood):
    step = 1e-5
    for y in (0.0, 1.0) if likelihood.code == PROBIT else (0.0, 3.0, 40.0):
        for f in (-3.0, 0.2, 2.5):
            _level, slope, bend, of_noise = log_density(likelihood.code, y, f, 0.4)
            up, down = (log_density(likelihood.code, y, f + s, 0.4) for s in (step, -step))
            assert slope == pytest.approx((up[0] - down[0]) / (2 * step), rel=1e-6, abs=1e-8)
            assert bend == pytest.approx((up[1] - down[1]) / (2 * step), rel=1e-6, abs=1e-8)
            whole = [
                log_density(likelihood.code, y, f, noise)[0] + constants(likelihood.code, y, noise)[0]
                for noise in (0.4 * math.exp(step), 0.4 * math.exp(-step))
            ]
            of_noise += constants(likelihood.code, y, 0.4)[1]
            assert of_noise == pytest.approx((whole[0] - whole[1]) / (2 * step), rel=1e-5, abs=1e-7)
    with pytest.raises(ValueError, match="without a branch"):
        density.log_density(77, 1.0, 0.0, 1.0)


def test_the_negative_binomial_is_that_of_scipy():
    mean, size = np.array([0.2, 3.0, 500.0, 4.0]), np.array([0.4, 9000.0, 2.8, 0.04])
    for k in (-1.0, 0.0, 1.0, 17.0, 400.0):
        wanted = nbinom.cdf(k, size, size / (size + mean))
        np.testing.assert_allclose(
            negative_binomial.tail(np.full(4, k), mean, size, False), wanted, rtol=1e-9
        )
        wanted = nbinom.sf(k, size, size / (size + mean))
        found = negative_binomial.tail(np.full(4, k), mean, size, True)
        np.testing.assert_allclose(found, wanted, rtol=1e-9)
    for p in (1e-6, 0.05, 0.5, 0.95, 1 - 1e-9):
        wanted = nbinom.ppf(p, size, size / (size + mean))
        np.testing.assert_array_equal(negative_binomial.quantile(p, mean, size, False), wanted)
        wanted = nbinom.isf(p, size, size / (size + mean))
        np.testing.assert_array_equal(negative_binomial.quantile(p, mean, size, True), wanted)
    f = np.log(3.0)
    level = log_density(COUNT.code, 5.0, f, 0.25)[0] + constants(COUNT.code, 5.0, 0.25)[0]
    assert level == pytest.approx(nbinom.logpmf(5, 4, 4 / 7), rel=1e-12)


@pytest.mark.parametrize("noise", [1e-4, 0.3, 1.0, 100.0])
def test_log_probabilities_of_huge_counts_keep_their_digits(noise):
    """Far from 0 a negative binomial is a Gamma distribution, up to terms of 1/y. The difference of two log
    Gammas would be off by 0.004 at 1e12 and by 4 at 1e15."""
    for y in (1e12, 1e15):
        for ratio in (0.9, 1.0, 1.2):
            f = math.log(y * ratio)
            level = log_density(COUNT.code, y, f, noise)[0] + constants(COUNT.code, y, noise)[0]
            wanted = gamma.logpdf(y, 1 / noise, scale=noise * y * ratio)
            assert level == pytest.approx(wanted, abs=2e-4 if noise < 1e-3 else 1e-7)
    for y in (998.0, 999.0, 1000.0, 1500.0, 1e5):  # where the one form follows the other
        level = log_density(COUNT.code, y, math.log(y), noise)[0] + constants(COUNT.code, y, noise)[0]
        assert level == pytest.approx(nbinom.logpmf(y, 1 / noise, 1 / (1 + noise * y)), abs=1e-7)


def test_moments_of_an_observation():
    """By a large sample of f and of counts."""
    rng = np.random.default_rng(0)
    mean, var, noise = 0.7, 0.2, 0.4
    rate = np.exp(rng.normal(mean, math.sqrt(var), 2_000_000))
    drawn = rng.negative_binomial(1 / noise, 1 / (1 + noise * rate))
    assert float(COUNT.expected(mean, var)) == pytest.approx(drawn.mean(), rel=0.01)
    assert float(COUNT.std(mean, var, noise)) == pytest.approx(drawn.std(), rel=0.02)
    assert np.isfinite(COUNT.expected(1e9, 1e9))
    assert np.isfinite(COUNT.std(1e9, 1e9, 100.0))


def test_residuals_of_right_predictions_are_normal():
    rng = np.random.default_rng(2)
    n = 20_000
    mean, noise = rng.normal(0.5, 1, n), np.full(n, 0.3)
    value = rng.negative_binomial(1 / 0.3, 1 / (1 + 0.3 * np.exp(mean))).astype(float)
    prediction = Prediction(mean, np.full(n, 1e-9), noise)
    residual = COUNT.residual(value, prediction)
    shares = [(residual < norm.ppf(p)).mean() for p in (0.05, 0.25, 0.5, 0.75, 0.95)]
    np.testing.assert_allclose(shares, (0.05, 0.25, 0.5, 0.75, 0.95), atol=0.015)
    later = COUNT.residual(value[7:], Prediction(*(part[7:] for part in prediction)), first=7)
    np.testing.assert_array_equal(later, residual[7:])  # by the number of the entry alone
    low, high = (COUNT.at_residual(z, prediction) for z in (-1.0, 1.0))
    inside = (residual > -1) & (residual < 1)
    assert ((value >= low) & (value <= high))[inside].all()


def test_uniforms_without_a_state():
    many = np.empty(100_000)
    uniforms(3, 0, many)
    one = np.empty(1)
    uniforms(3, 99, one)
    assert one[0] == many[99]
    assert many.min() >= 0
    assert many.max() < 1
    np.testing.assert_allclose(np.histogram(many, 20, (0, 1))[0], 5000, rtol=0.06)
    assert abs(np.corrcoef(many[1:], many[:-1])[0, 1]) < 0.02
    other = np.empty(100_000)
    uniforms(4, 0, other)
    assert abs(np.corrcoef(many, other)[0, 1]) < 0.02
