"""benchmarks/approximations.py: the first-order variant is the method, and the others are what they say."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import approximations as module

from spidertensor.method import Batch
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Prior
from spidertensor.spider.sequential import sequential
from spidertensor_study.rows import identity

NODES = (6, 5, 4)
NETWORK = Network((2, 2, 2), (4, 3), "tanh")
PRIOR = Prior(rho0=0.5)


def stream(binary: bool, n: int = 80) -> Batch:
    rng = np.random.default_rng(0)
    index = np.stack([rng.integers(size, size=n) for size in NODES], axis=1)
    value = rng.normal(size=6)[index[:, 0]] * rng.normal(size=5)[index[:, 1]] + 0.3 * rng.normal(size=n)
    return Batch(index, (value > 0).astype(float) if binary else value)


@pytest.mark.parametrize("likelihood", [GAUSSIAN, PROBIT])
def test_first_order_is_the_engine(likelihood):
    """In float64: all that an update and a prediction say, five refinements on the way."""
    batch = stream(likelihood is PROBIT)
    slow = module.approximate("first-order", NETWORK, likelihood, PRIOR, refine_every=16)
    fast = sequential(NETWORK, likelihood, PRIOR, curvature=True, noise_memory=None, refine_every=16)
    wanted, wanted_update = fast.update(slow.init(3), batch)  # a start in float64
    state, update = slow.update(slow.init(3), batch)
    close = {"rtol": 1e-6, "atol": 1e-9}
    np.testing.assert_allclose(np.array(update[:4]), np.array(wanted_update[:4]), **close)
    assert update.rejected == wanted_update.rejected
    index = np.vstack([batch.index, [[-1, 0, 0], [2, 99, 3]]])  # unseen nodes too
    np.testing.assert_allclose(slow.predict(state, index), fast.predict(wanted, index), **close)
    np.testing.assert_allclose(state.counts.log_evidence, wanted.counts.log_evidence, **close)
    assert state.counts.entries == wanted.counts.entries


def test_second_order_moments_of_a_quadratic_are_exact():
    """f = c + g^T x + ½ x^T A x under x ~ N(mean, diag(var)), against its moments by Gauss-Hermite."""
    rng = np.random.default_rng(1)
    A, g, mean, var = rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=3), rng.uniform(0.2, 1, 3)
    A = A + A.T
    points, weights = np.polynomial.hermite_e.hermegauss(5)
    x = mean + np.sqrt(var) * np.stack(np.meshgrid(*[points] * 3), axis=-1).reshape(-1, 3)
    share = np.prod(np.stack(np.meshgrid(*[weights] * 3), axis=-1).reshape(-1, 3), axis=1)
    share /= share.sum()
    f = 0.7 + x @ g + 0.5 * np.sum(x @ A * x, axis=1)
    with jax.enable_x64(True):
        alpha, beta = module.second_order(lambda x: 0.7 + x @ g + 0.5 * x @ A @ x, jnp.array(mean), var)
    np.testing.assert_allclose(alpha, share @ f, rtol=1e-12)
    np.testing.assert_allclose(beta, share @ (f - share @ f) ** 2, rtol=1e-12)


def test_second_order_learns():
    method = module.approximate("second-order", Network((1, 1, 1), (3,)), GAUSSIAN, PRIOR, refine_every=16)
    batch = stream(binary=False)
    state, update = method.update(method.init(3), batch)
    assert np.isfinite(np.array(update[:4])).all()
    assert update.rejected == 0
    error = {
        name: np.mean((said.mean - batch.value) ** 2)
        for name, said in (
            ("before", method.predict(method.init(3), batch.index)),
            ("after", method.predict(state, batch.index)),
        )
    }
    assert error["after"] < error["before"]


@pytest.mark.parametrize(
    ("a", "b", "error", "beta"),
    [
        (1.0, 1.0, 0.0, 1.0),
        (1.0, 1.0, 30.0, 0.1),
        (1.0, 1.0, 2.0, 50.0),
        (0.6, 9.0, -1.0, 0.0),
        (40.0, 25.0, 3.0, 0.5),
        (5000.0, 3000.0, 6.0, 0.2),
        (3.0, 1e-4, 0.1, 1e-3),
    ],
)
def test_noise_by_quadrature_has_the_moments_of_the_posterior(a, b, error, beta):
    """Mean and variance of the Gamma against adaptive integration over log tau."""
    unit = (a + 0.5) / (b + 0.5 * (error**2 + beta))  # of tau: the closed form's mean, near the peak

    def log_density(log_tau: float) -> float:
        s = beta + np.exp(-log_tau)
        return a * log_tau - b * np.exp(log_tau) - 0.5 * np.log(s) - 0.5 * error**2 / s

    def moment(power: int) -> float:
        def integrand(x: float) -> float:
            return np.exp(log_density(np.log(unit) + x) - log_density(np.log(unit)) + power * x)

        pieces = np.linspace(-8, 8, 33)
        found, _ = quad(integrand, -40, 40, points=pieces, limit=500, epsabs=0, epsrel=1e-11)
        return found * unit**power

    total, first, second = map(moment, range(3))
    mean, var = first / total, second / total - (first / total) ** 2
    with jax.enable_x64(True):
        shape, rate = (float(each) for each in module.quadrature(*map(jnp.float64, (a, b, error, 0.0, beta))))
    np.testing.assert_allclose(shape / rate, mean, rtol=1e-8)
    np.testing.assert_allclose(shape / rate**2, var, rtol=1e-5)  # the reference subtracts


def test_noise_by_quadrature_is_the_closed_form_where_f_is_known():
    with jax.enable_x64(True):
        given = tuple(map(jnp.float64, (7.0, 4.0, 1.3, 0.4, 0.0)))
        np.testing.assert_allclose(module.quadrature(*given), module.closed_form(*given), rtol=1e-9)


def test_every_run_of_the_plan_is_there_once():
    plans = [settings for activation in module.EXPERIMENTS.values() for settings in module.plan(activation)]
    names = {identity(settings) for settings in plans}
    assert len(names) == len(plans)
    assert {settings["method"] for settings in plans} == set(module.VARIANTS)
