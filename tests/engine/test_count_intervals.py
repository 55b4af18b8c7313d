"""Intervals of counts: of a committee whose members disagree, and far out in the upper tail."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import nbinom, norm

from spidertensor import SpiderRegressor
from spidertensor.method import Prediction
from spidertensor.spider.keyed import uniforms
from spidertensor.spider.likelihoods import COUNT

AT, AREA = np.polynomial.hermite_e.hermegauss(80)


def chance_up_to(k, weights, parts):
    """(n,) P(Y <= k) of the mixture of M members, each N(mean, var) of f and a noise: as a plain sum of
    negative binomials, at many places of f. parts (M, 3, n)"""
    total = 0.0
    for weight, (mean, var, noise) in zip(weights, parts, strict=True):
        for at, area in zip(AT, AREA / AREA.sum(), strict=True):
            rate = np.exp(mean + np.sqrt(var) * at)
            total = total + weight * area * nbinom.cdf(k, 1 / noise, 1 / (1 + noise * rate))
    return total


def mixture(seed: int = 4, n: int = 40, least_noise: float | None = None):
    """Four members whose f are about 0.1 apart, and their noises 10 % or, with a `least_noise`, anything from
    there to 1; and what the committee makes of them."""
    rng = np.random.default_rng(seed)
    weights = np.array([[0.42], [0.004], [0.089], [0.487]])
    f = rng.uniform(-1, 5, n) + 0.1 * rng.normal(size=(4, n))
    var = rng.uniform(0.005, 0.4, n) * np.exp(0.1 * rng.normal(size=(4, n)))
    noise = rng.uniform(0.01, 1, n) * np.exp(0.1 * rng.normal(size=(4, n)))
    if least_noise is not None:
        noise = rng.uniform(least_noise, 1, (4, n))
    parts = np.stack([f, var, noise], axis=1)
    return weights, parts, COUNT.mixture(weights, parts)


def gap(weights, parts, mixed) -> float:
    """How far, at most, quantiles of the committee are from those of the brute-force mixture, as a chance."""
    worst = 0.0
    for z in (-2.0, -0.7, 0.0, 0.7, 2.0):
        k = COUNT.at_residual(z, mixed)
        short = norm.cdf(z) - chance_up_to(k, weights[:, 0], parts)
        over = chance_up_to(k - 1, weights[:, 0], parts) - norm.cdf(z)
        worst = max(worst, short.max(), over.max())
    return worst


@pytest.mark.parametrize("seed", range(3))
def test_quantiles_are_nearly_those_of_the_mixture(seed):
    """Not exactly. A Gamma stands for a log normal times a Gamma, which costs up to 0.04, and one noise for
    those of the members, which costs more where these are many times each other."""
    assert gap(*mixture(seed)) < 0.04
    assert gap(*mixture(seed, least_noise=0.01)) < 0.08


def test_one_member_far_off_does_not_spoil_the_mixture():
    """It has 9 % of the weight and a rate of e^4 times that of the others, hardly known: with the mean and
    variance of such a mixture, a negative binomial would be 0 with a chance of nearly 1."""
    weights, parts, _ = mixture()
    parts[2, 0] += 4
    parts[2, 1] = 5
    mixed = COUNT.mixture(weights, parts)
    low, high = (COUNT.at_residual(z, mixed) for z in (norm.ppf(0.05), norm.ppf(0.95)))
    usual = np.array([0.46, 0.54]), parts[[0, 3]]
    assert (chance_up_to(high, *usual) - chance_up_to(low - 1, *usual) > 0.85).all()
    held = chance_up_to(high, weights[:, 0], parts) - chance_up_to(low - 1, weights[:, 0], parts)
    assert (held > 0.85).all()


@pytest.mark.parametrize("n", [300, 1000])
def test_after_a_wild_count_intervals_still_cover_the_usual_ones(n):
    rng = np.random.default_rng(0)
    X = rng.integers((20, 15), size=(n + 2000, 2))
    y = rng.poisson(20.0, len(X)).astype(float)
    model = SpiderRegressor(likelihood="count").fit(X[:n], y[:n])
    a, b = X[0].tolist()
    model.learn([(a, b)], [1e6])
    of_its_nodes = [(a, other) for other in range(15)] + [(other, b) for other in range(20)]
    low, high = model.predict_interval(of_its_nodes)
    usual = rng.poisson(20.0, (500, len(low)))
    assert ((usual >= low) & (usual <= high)).mean(axis=0).min() > 0.85
    below = model.learn(X[n:], y[n:]).below
    assert 0.87 < np.mean(np.abs(below - 0.5) < 0.45) < 0.93


def test_residuals_do_not_end_where_a_chance_is_1():
    """1 - 2^-53 would be a residual of 8.2."""
    mean, size = 20.0, 50.0
    prediction = Prediction(np.full(3, np.log(mean)), np.full(3, 1e-9), np.full(3, 1 / size))
    value = np.array([90.0, 130.0, 200.0])
    draw = np.empty(3)
    uniforms(0, 0, draw)
    above, at = (nbinom.sf(k, size, size / (size + mean)) for k in (value, value - 1))
    residual = COUNT.residual(value, prediction)
    np.testing.assert_allclose(residual, norm.isf(at + draw * (above - at)), rtol=1e-6)
    assert residual[-1] > 12
    for z in residual:
        high = COUNT.at_residual(z, prediction)
        assert nbinom.sf(high[0], size, size / (size + mean)) <= norm.sf(z) * (1 + 1e-5)
        assert nbinom.sf(high[0] - 2, size, size / (size + mean)) > norm.sf(z)
    assert np.isfinite(COUNT.residual(np.full(3, 1e15), prediction)).all()
