"""Refinement of one weight is a one-dimensional problem: it is checked against brute force."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit, logit
from scipy.stats import norm

import naive
from spidertensor.spider.posterior import Gaussian, Site
from spidertensor.spider.spike_slab import inclusion, refine_layer


class Layer(NamedTuple):
    mean: np.ndarray
    var: np.ndarray
    precision: np.ndarray
    precision_mean: np.ndarray
    log_odds: np.ndarray

    def copy(self) -> Layer:
        return Layer(*(array.copy() for array in self))

    def reshape(self, *shape: int) -> Layer:
        return Layer(*(array.reshape(shape).copy() for array in self))


def layer(cavity_mean, cavity_var, precision=1.0, precision_mean=0.0, dtype=np.float64) -> Layer:
    """A layer whose cavities are the given ones: posterior = cavity * site."""
    cavity_mean, cavity_var = np.broadcast_arrays(np.atleast_2d(cavity_mean), np.atleast_2d(cavity_var))
    var = 1 / (1 / cavity_var + precision)
    mean = var * (cavity_mean / cavity_var + precision_mean)
    full = np.full(mean.shape, 1.0)
    parts = (mean, var, precision * full, precision_mean * full, 0 * full)
    return Layer(*(np.array(part, dtype) for part in parts))


def random_layer(dtype=np.float64, shape=(13, 11), seed=0) -> Layer:
    rng = np.random.default_rng(seed)
    cavity_var = np.exp(rng.uniform(-9, 5, shape))
    return layer(
        rng.normal(size=shape) * np.sqrt(cavity_var + 0.3), cavity_var, rng.uniform(0.1, 3), 0.2, dtype
    )


def refine(parts: Layer, slab_var=1.0, rho0=0.9) -> int:
    return refine_layer(Gaussian(*parts[:2]), Site(*parts[2:]), slab_var, rho0)


def brute_force(cavity_mean, cavity_var, slab_var, rho0):
    """rho, inclusion, mean and variance of cavity * (rho0 slab + (1 - rho0) spike), by quadrature."""
    sd = math.sqrt(cavity_var)

    def slab(power):
        # relative to the height of the spike's term, which keeps everything of ordinary size
        density = lambda w: (  # noqa: E731
            w**power
            * norm.pdf(w, 0, math.sqrt(slab_var))
            * np.exp(norm.logpdf(cavity_mean, w, sd) - norm.logpdf(cavity_mean, 0, sd))
        )
        centre = cavity_mean * slab_var / (slab_var + cavity_var)
        width = math.sqrt(slab_var * cavity_var / (slab_var + cavity_var))
        return quad(density, centre - 12 * width, centre + 12 * width, epsabs=1e-13, epsrel=1e-11)[0]

    evidence_ratio = slab(0)
    total = rho0 * evidence_ratio + (1 - rho0)
    mean, square = rho0 * slab(1) / total, rho0 * slab(2) / total
    return math.log(evidence_ratio), rho0 * evidence_ratio / total, mean, square - mean**2


@pytest.mark.parametrize("rho0", [0.5, 0.9])
@pytest.mark.parametrize("slab_var", [1.0, 0.3])
@pytest.mark.parametrize(
    ("cavity_mean", "cavity_var"),
    [(0.0, 1.0), (0.05, 0.01), (0.8, 0.04), (-2.0, 0.5), (1.0, 30.0), (-0.3, 0.002), (0.01, 1e-4)],
)
def test_moments_by_brute_force(cavity_mean, cavity_var, slab_var, rho0):
    parts = layer(cavity_mean, cavity_var, precision=1 / slab_var)
    assert refine(parts, slab_var, rho0) == 0
    rho, included, mean, var = brute_force(cavity_mean, cavity_var, slab_var, rho0)
    assert parts.log_odds.item() == pytest.approx(rho, rel=1e-6, abs=1e-6)
    assert parts.mean.item() == pytest.approx(mean, rel=1e-5, abs=1e-9)
    assert parts.var.item() == pytest.approx(var, rel=1e-5)
    site = Site(parts.precision, parts.precision_mean, parts.log_odds)
    assert inclusion(site, rho0).item() == pytest.approx(included, rel=1e-6)


@pytest.mark.parametrize("rho0", [0.3, 0.9, 1.0])
def test_equals_the_oracle(rho0):
    parts, before = random_layer(), random_layer()
    assert refine(parts, 0.75, rho0) == 0
    for ij in np.ndindex(parts.mean.shape):
        wanted = naive.refine_element(*(array[ij] for array in before[:4]), 0.75, rho0)
        np.testing.assert_allclose([array[ij] for array in parts], wanted, rtol=3e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_site_is_posterior_over_cavity(dtype):
    parts, before = random_layer(dtype), random_layer(dtype)
    refine(parts)
    new, old = (Layer(*(array.astype(float) for array in each)) for each in (parts, before))
    rtol = 1e-9 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(
        1 / new.var - new.precision, 1 / old.var - old.precision, rtol=rtol, atol=rtol * (1 / old.var).max()
    )
    np.testing.assert_allclose(
        new.mean / new.var - new.precision_mean,
        old.mean / old.var - old.precision_mean,
        rtol=rtol,
        atol=rtol * np.abs(old.mean / old.var).max(),
    )


def test_cavities_that_are_improper_or_too_wide_are_skipped():
    """No data yet is normal: nothing moves, nothing is counted."""
    precision = np.array([[1.0, 1.0, 2.0, 1.0, 1.0]])
    cavity_precision = np.array([[0.0, -0.2, -1.0, 0.9e-6, 1.1e-6]])
    parts = Layer(
        np.full((1, 5), 0.4),
        1 / (precision + cavity_precision),
        precision,
        np.zeros((1, 5)),
        np.zeros((1, 5)),
    )
    before = parts.copy()
    assert refine(parts) == 0
    for new, old in zip(parts, before, strict=True):
        np.testing.assert_array_equal(new[:, :4], old[:, :4])
    assert parts.mean[0, 4] != before.mean[0, 4]  # a cavity just narrow enough is refined


def test_the_start_of_a_weight_is_left_alone():
    """A weight no entry has touched keeps its random mean (trap 1), whatever the slab."""
    rng = np.random.default_rng(0)
    for slab_var in (1.0, 0.5, 0.25):
        full = np.ones((4, 5), np.float32)
        mean = rng.normal(size=(4, 5)).astype(np.float32)
        parts = Layer(mean, full * slab_var, full / np.float32(slab_var), 0 * full, 0 * full)
        before = parts.copy()
        assert refine(parts, slab_var) == 0
        for new, old in zip(parts, before, strict=True):
            np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(
    ("mean", "var"), [(np.nan, 0.01), (np.inf, 0.01), (0.0, 1e-31), (0.0, 0.0), (1e35, 0.01)]
)
def test_rejected_elements_are_kept_and_counted(mean, var):
    parts, alone = random_layer(np.float32), random_layer(np.float32)
    parts.mean[3, 4], parts.var[3, 4] = mean, var
    before = parts.copy()
    assert refine(parts) == 1
    refine(alone)
    for new, old, other in zip(parts, before, alone, strict=True):
        np.testing.assert_array_equal(new[3, 4], old[3, 4])
        rest = np.ones(new.shape, bool)
        rest[3, 4] = False
        np.testing.assert_array_equal(new[rest], other[rest])  # the neighbours do not notice


def test_nan_variance_is_not_refined():
    parts = random_layer(np.float32)
    parts.var[0, 0] = np.nan
    before = parts.copy()
    refine(parts)
    for new, old in zip(parts, before, strict=True):
        np.testing.assert_array_equal(new[0, 0], old[0, 0])


def test_elementwise():
    """The shape of a layer and the order of its elements do not matter."""
    square, flat = random_layer(), random_layer().reshape(1, -1)
    order = np.random.default_rng(1).permutation(flat.mean.size)
    shuffled = Layer(*(array[:, order].copy() for array in flat))
    for parts in (square, flat, shuffled):
        refine(parts)
    for a, b, c in zip(square, flat, shuffled, strict=True):
        # But for rounding, which may differ between a vector lane and the remainder of a loop; a site is a
        # difference of natural parameters up to 8,000.
        np.testing.assert_allclose(a.ravel(), b.ravel(), rtol=1e-12, atol=1e-11)
        np.testing.assert_allclose(b[:, order], c, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-6), (np.float32, 2e-3)])
def test_refining_twice_is_refining_once(dtype, rtol):
    """Without data in between the cavity is the same, so the answer is: a fixed point of EP."""
    once = random_layer(dtype)
    refine(once)
    twice = once.copy()
    assert refine(twice) == 0
    np.testing.assert_allclose(twice.mean, once.mean, rtol=rtol, atol=rtol * 1e-2)
    np.testing.assert_allclose(twice.var, once.var, rtol=rtol)
    np.testing.assert_allclose(twice.log_odds, once.log_odds, rtol=rtol, atol=rtol)


def test_slab_only_is_a_gaussian_prior():
    """rho0 = 1: the tilted distribution is Gaussian, cavity times slab, with inclusion 1."""
    parts, before = random_layer(), random_layer()
    refine(parts, slab_var=0.5, rho0=1.0)
    cavity_precision = 1 / before.var - before.precision
    cavity_precision_mean = before.mean / before.var - before.precision_mean
    np.testing.assert_allclose(parts.var, 1 / (cavity_precision + 2), rtol=1e-12)
    np.testing.assert_allclose(parts.mean, cavity_precision_mean / (cavity_precision + 2), rtol=1e-12)
    np.testing.assert_allclose(parts.precision, 2, rtol=1e-9)
    site = Site(parts.precision, parts.precision_mean, parts.log_odds)
    assert (inclusion(site, 1.0) == 1).all()


def test_inclusion():
    log_odds = np.array([[-50.0, -1.0, 0.0, 2.0, 700.0]], np.float32)
    site = Site(np.ones_like(log_odds), np.zeros_like(log_odds), log_odds)
    got = inclusion(site, 0.9)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, expit(log_odds.astype(float) + logit(0.9)), rtol=1e-12)
    assert got[0, 2] == pytest.approx(0.9)  # no evidence either way: the prior


def test_less_data_prunes_nothing_and_certain_zeros_are_pruned():
    """What the numbers mean: a weight known to be far from 0 stays, one known to be 0 goes."""
    parts = layer([[3.0, 0.0]], [[0.01, 0.0001]])
    refine(parts)
    site = Site(parts.precision, parts.precision_mean, parts.log_odds)
    stays, goes = inclusion(site, 0.9)[0]
    assert stays > 0.999
    assert goes < 0.15
