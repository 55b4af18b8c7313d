"""PBP: moments against quadrature and draws, gradients against automatic ones, and an exact special case."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm
from scipy.integrate import quad
from scipy.stats import norm as normal

from spidertensor.evaluation import protocols
from spidertensor.method import Batch
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian
from spidertensor_study import datasets
from spidertensor_study.competitors import pbp as module
from spidertensor_study.competitors.pbp import pbp
from spidertensor_study.registry import METHODS

NETWORK = Network((2, 3), (5, 4))
ENTRY = np.array([[1, 0]])


def drawn(network: Network, likelihood, seed=0):
    """A method and a state in the middle of its life: every mean and variance is something else."""
    rng = np.random.default_rng(seed)
    method = pbp(network, likelihood)
    index = np.array([[2] * network.n_modes])
    state, _ = method.update(method.init(seed), Batch(index, np.array([1.0])))
    for gaussian in (*state.posterior.factors, *state.posterior.weights):
        gaussian.mean[:] = rng.normal(size=gaussian.mean.shape)
        gaussian.var[:] = rng.uniform(0.05, 0.6, gaussian.var.shape)
    return method, state


def of_entry(state) -> list[Gaussian]:
    """The factors of the entry's nodes."""
    nodes = zip(state.posterior.factors, ENTRY[0], strict=True)
    return [Gaussian(factor.mean[row], factor.var[row]) for factor, row in nodes]


def elements(state) -> list[Gaussian]:
    """Copies of the entry's factors, then of the weights."""
    return [
        Gaussian(*(part.copy() for part in each)) for each in (*of_entry(state), *state.posterior.weights)
    ]


def moments(parts, n_modes: int):
    """Mean and variance of f, the text of the module in JAX."""
    factors, weights = parts[:n_modes], parts[n_modes:]
    m = jnp.concatenate([each.mean for each in factors])
    v = jnp.concatenate([each.var for each in factors])
    for layer, (M, V) in enumerate(weights):
        m, v = jnp.append(m, 1.0), jnp.append(v, 0.0)
        m, v = M @ m / jnp.sqrt(len(m)), (M**2 @ v + V @ (m**2 + v)) / len(m)
        if layer < len(weights) - 1:
            t = m / jnp.sqrt(v)
            mean = m * norm.cdf(t) + jnp.sqrt(v) * norm.pdf(t)
            m, v = mean, (m**2 + v) * norm.cdf(t) + m * jnp.sqrt(v) * norm.pdf(t) - mean**2
    return m[0], v[0]


@pytest.mark.parametrize("t", [-40.0, -9.0, -2.5, -0.3, 0.0, 0.7, 3.0, 12.0, 1000.0])
@pytest.mark.parametrize("sigma", [0.01, 1.3])
def test_moments_of_a_rectified_gaussian(t, sigma):
    """Against quadrature of (x - E) and its square over the part above 0, and the mass at 0."""
    mean, var, cdf, pdf = module.rectified.py_func(t * sigma, sigma**2)
    low, high = max(0.0, (t - 12) * sigma), max((t + 12) * sigma, 12 * sigma)

    def integral(f):
        return quad(lambda x: f(x) * normal.pdf(x, t * sigma, sigma), low, high, epsabs=0, limit=200)[0]

    assert mean == pytest.approx(integral(lambda x: x), rel=1e-6, abs=1e-30)
    wanted = integral(lambda x: (x - mean) ** 2) + mean**2 * normal.cdf(-t)
    assert var == pytest.approx(wanted, rel=1e-6, abs=1e-30)
    assert cdf == pytest.approx(normal.cdf(t), rel=1e-9, abs=1e-30)
    assert pdf * sigma == pytest.approx(normal.pdf(t), rel=1e-9, abs=1e-30)


@pytest.mark.parametrize("likelihood", [GAUSSIAN, PROBIT])
def test_an_entry_moves_everything_by_the_gradients_of_its_evidence(likelihood):
    """By automatic differentiation of log Z, through all layers, of every mean and every variance."""
    method, state = drawn(NETWORK, likelihood)
    before, y = elements(state), 1.0
    noise = method.predict(state, ENTRY).noise[0]

    def log_z(parts):
        mean, var = moments(parts, 2)
        if likelihood is PROBIT:
            return norm.logcdf(mean / jnp.sqrt(1 + var)), (mean, var)
        return norm.logpdf(y, mean, jnp.sqrt(var + noise)), (mean, var)

    with jax.enable_x64(True):
        (told, wanted), gradients = jax.jit(jax.value_and_grad(log_z, has_aux=True))(before)
        gradients = jax.tree.map(np.asarray, gradients)
    state, update = method.update(state, Batch(ENTRY, np.array([y])))
    np.testing.assert_allclose([update.mean[0], update.var[0]], wanted, rtol=1e-10)
    assert update.log_evidence[0] == pytest.approx(float(told), rel=1e-10)
    assert update.rejected == 0
    for was, now, gradient in zip(before, elements(state), gradients, strict=True):
        np.testing.assert_allclose(now.mean, was.mean + was.var * gradient.mean, rtol=1e-9, atol=1e-12)
        narrower = was.var - was.var**2 * (gradient.mean**2 - 2 * gradient.var)
        np.testing.assert_allclose(now.var, narrower, rtol=1e-9, atol=1e-12)


def test_one_layer_of_known_inputs_is_bayesian_linear_regression():
    """Where f is linear in what is unknown, one entry gives the exact posterior, but for its covariances."""
    network = Network((2, 3), ())
    method, state = drawn(network, GAUSSIAN)
    for factor in state.posterior.factors:
        factor.var[:] = 1e-20
    x = np.concatenate([*(each.mean for each in of_entry(state)), [1]])
    x /= np.sqrt(len(x))
    prior = Gaussian(*(part[0].copy() for part in state.posterior.weights[0]))
    noise = method.predict(state, ENTRY).noise[0]
    state, _ = method.update(state, Batch(ENTRY, np.array([0.7])))
    cov = np.linalg.inv(np.diag(1 / prior.var) + np.outer(x, x) / noise)
    mean = cov @ (prior.mean / prior.var + x * 0.7 / noise)
    np.testing.assert_allclose(state.posterior.weights[0].mean[0], mean, rtol=1e-9)
    np.testing.assert_allclose(state.posterior.weights[0].var[0], np.diag(cov), rtol=1e-9)


def test_moments_are_close_to_those_of_draws():
    """The moments of f itself are exact with one hidden layer and known factors."""
    method, state = drawn(Network((2, 3), (5,)), GAUSSIAN)
    for factor in state.posterior.factors:
        factor.var[:] = 1e-20
    rng, told = np.random.default_rng(1), method.predict(state, ENTRY)
    h = np.concatenate([each.mean for each in of_entry(state)])
    h = np.broadcast_to(h, (200_000, len(h)))
    for layer, (M, V) in enumerate(state.posterior.weights):
        h = np.hstack([h, np.ones((len(h), 1))]) / np.sqrt(M.shape[1])
        # rows of W are independent, and so are the sums over their elements, given h
        h = h @ M.T + np.sqrt(h**2 @ V.T) * rng.normal(size=(len(h), len(M)))
        h = np.maximum(h, 0) if layer == 0 else h
    assert told.mean[0] == pytest.approx(h.mean(), abs=4 * h.std() / np.sqrt(len(h)))
    assert told.var[0] == pytest.approx(h.var(), rel=0.015)


def test_it_learns_what_the_linearised_network_learns():
    data = datasets.synthetic((30, 20), 4000, seed=3)
    train, test = data.split(0)

    def score(name: str) -> float:
        method = METHODS[name].build(3, 2, GAUSSIAN, 256)
        how = {"likelihood": GAUSSIAN, "batch_size": 256, "scaled": METHODS[name].scaled}
        return next(protocols.held_out(method, train, {"test": test}, **how))["score"]

    ours, linearised, mean = score("pbp"), score("spider-plain"), score("mean")
    assert ours < 0.8 * mean
    assert ours < 1.1 * linearised


def test_what_it_has_no_moments_for_is_refused():
    for network in (Network((2, 2), activation="tanh"), Network((2, 2), bias=True)):
        with pytest.raises(ValueError, match="relu only"):
            pbp(network, GAUSSIAN)
    with pytest.raises(ValueError, match="refine_every"):
        pbp(NETWORK, GAUSSIAN, refine_every=0)
