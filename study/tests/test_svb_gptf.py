"""SVB-GPTF, what it shares with SS-GPTF (the module `gp`), and the contract of both.

The mathematics is checked where it is known: exact GP regression, quadrature, closed forms. Small sizes, and
few different ones: every one compiles anew.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm

pytest.importorskip("jax", reason="the Gaussian-process baselines need the extra: spidertensor[jax]")
pytest.importorskip("optax", reason="the Gaussian-process baselines need the extra: spidertensor[jax]")

import jax
import jax.numpy as jnp

from spidertensor import checkpoint
from spidertensor.evaluation.counts import no_counts
from spidertensor.method import Batch, Method
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT
from spidertensor.spider.posterior import Gaussian
from spidertensor_study.competitors import gp, gp_method, ss_gptf, svb_gptf
from spidertensor_study.competitors.gp import Entries, GPSettings, Hyper, Nodes
from spidertensor_study.competitors.gp_site import Process
from spidertensor_study.competitors.svb_gptf import Away, Params

NODES = (6, 5, 4)
SMALL: dict[str, Any] = {"rank": 2, "inducing": 12, "epochs": 20, "batch_size": 32, "learning_rate": 2e-2}
KNOWN = -60.0  # log variance of a factor that is known
BUILDERS = {"svb": svb_gptf.svb_gptf, "ss": ss_gptf.ss_gptf}


@pytest.fixture
def x64():
    with gp_method.enable_x64(True):
        yield


# --- exact GP regression --------------------------------------------------------------------------


def regression(n: int = 9, seed: int = 0):
    """Values of a function of n known inputs: one mode, a node per input, and a mode's rank is their size."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] + 0.2 * rng.normal(size=n)


def fixed(x: np.ndarray, value: np.ndarray, places: int) -> tuple[Nodes, Entries]:
    """The x as known factors of one node each, in a batch that has empty places too."""
    n = len(value)
    nodes = Nodes(np.zeros((places, x.shape[1])), np.full((places, x.shape[1]), KNOWN))
    nodes.mean[:n] = x
    padded, here = np.zeros((2, places))
    padded[:n], here[:n] = value, 1.0
    return nodes, Entries(np.arange(places)[:, None], padded, here, np.zeros((places, 1)))


HYPER = Hyper(np.log(1.5), np.log([0.9, 1.7]), np.log(0.3 - gp.MIN_NOISE))


def ard(x: np.ndarray, z: np.ndarray, hyper: Hyper = HYPER) -> np.ndarray:
    """The kernel, written out."""
    d = (x[:, None] - z[None]) / np.exp(hyper.log_lengths)
    return np.exp(hyper.log_var) * np.exp(-0.5 * (d**2).sum(axis=2))


def known_state(process: Any, x: np.ndarray) -> gp_method.GPState:
    """A state whose one mode has the nodes x, known."""
    counts = no_counts(1).with_nodes(np.array([len(x)]))
    factors = (Gaussian(x, np.full(x.shape, np.exp(KNOWN))),)
    return gp_method.GPState(factors, process, counts, np.array(0), np.zeros(2), np.array(0))


def exact(x: np.ndarray, value: np.ndarray, new: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Log marginal likelihood, and mean and variance of f at new inputs: the textbook."""
    cov = ard(x, x) + 0.3 * np.eye(len(x))
    link = np.linalg.solve(cov, ard(x, new))
    var = np.exp(HYPER.log_var) - (link * ard(x, new)).sum(axis=0)
    return multivariate_normal(np.zeros(len(x)), cov).logpdf(value), link.T @ value, var


def optimum(x: np.ndarray, value: np.ndarray, jitter: float) -> Process:
    """Inducing inputs = data and q(v) at its optimum for known factors: S^-1 = I + A A^T / noise."""
    L = np.linalg.cholesky(ard(x, x) + jitter * np.exp(HYPER.log_var) * np.eye(len(x)))
    A = np.linalg.solve(L, ard(x, x))
    return Process(x, A @ A.T / 0.3, A @ value / 0.3, HYPER)


def moments(process: Process) -> tuple[np.ndarray, np.ndarray]:
    """Mean and the root of the covariance of q(v)."""
    cov = np.linalg.inv(np.eye(len(process.shift)) + process.precision)
    return cov @ process.shift, np.linalg.cholesky(cov)


def before_any(settings: GPSettings, inputs: np.ndarray, nodes: Nodes, hyper: Hyper = HYPER) -> Any:
    """Nothing is known: `Away` is then q(v) itself."""
    process = svb_gptf.start(settings, inputs)._replace(hyper=hyper)
    return svb_gptf.remember(settings, process, nodes, jnp.arange(len(inputs)))


def test_inducing_inputs_at_the_data_is_exact_gp_regression(x64):
    """The bound is the log marginal likelihood, q(v) cannot be improved, predictions are the textbook's."""
    x, value = regression()
    settings = GPSettings(1, GAUSSIAN, 2, len(x), 1, 12, jitter=1e-13)
    process = optimum(x, value, settings.jitter)
    nodes, entries = fixed(x, value, settings.batch_size)
    before = before_any(settings, x, nodes)
    new = np.random.default_rng(1).normal(size=(20, 2))
    log_marginal, mean, var = exact(x, value, new)

    def bound(mean, root):
        now = Params(x, HYPER, Away(mean, root), nodes)
        return svb_gptf.bound(settings, before, entries, now, jax.random.key(0))

    reached, slopes = jax.jit(jax.value_and_grad(bound, (0, 1)))(*moments(process))
    np.testing.assert_allclose(reached, log_marginal, rtol=1e-9)
    np.testing.assert_allclose(slopes[0], 0, atol=1e-8)
    np.testing.assert_allclose(np.tril(slopes[1]), 0, atol=1e-8)
    carried = gp_method.method_of(settings, 1e-3, svb_gptf.ALGORITHM).predict(
        known_state(process, new), np.arange(20)[:, None]
    )
    np.testing.assert_allclose(carried.mean, mean, atol=1e-8)
    np.testing.assert_allclose(carried.var, var, atol=1e-8)
    np.testing.assert_allclose(carried.noise, 0.3)


def uncertain(places: int, n_modes: int, rank: int, seed: int) -> Nodes:
    rng = np.random.default_rng(seed)
    shape = n_modes * places, rank
    return Nodes(rng.normal(size=shape), np.log(rng.uniform(0.1, 0.5, size=shape)))


@pytest.mark.parametrize("likelihood", [GAUSSIAN, PROBIT])
def test_the_bounds_count_what_moving_the_factors_costs(x64, likelihood):
    """Two bounds that differ in the factors before the batch alone differ by the two KL, and nothing else."""
    settings = GPSettings(2, likelihood, 2, 5, 1, 4)
    rng = np.random.default_rng(0)
    node = np.column_stack([np.arange(4), 4 + np.arange(4)])
    entries = Entries(node, np.array([0.0, 1, 1, 0]), np.array([1.0, 1, 1, 0]), np.zeros((8, 1)))
    inputs = rng.normal(size=(5, 4))
    now, one, two = (uncertain(4, 2, 2, seed) for seed in range(3))
    hyper = gp.start_hyper(settings)

    def kl(before: Nodes) -> float:
        var, var0 = np.exp(now.log_var), np.exp(before.log_var)
        return 0.5 * np.sum(var / var0 + (now.mean - before.mean) ** 2 / var0 - 1 + np.log(var0 / var))

    def svb(before: Nodes):
        carried = Params(inputs, hyper, Away(np.full(5, 0.3), np.eye(5)), now)
        known = before_any(settings, inputs, before, hyper)
        return svb_gptf.bound(settings, known, entries, carried, jax.random.key(1))

    def ss(before: Nodes):
        start = ss_gptf.start(settings, inputs)
        known = ss_gptf.remember(settings, start, before, jnp.arange(5))
        params = ss_gptf.Params(inputs, hyper, now)
        sites = ss_gptf.Sites(*np.full((2, 4), 0.2))
        return ss_gptf.bound(settings, known, entries, params, sites, jax.random.key(1))[0]

    for bound in (svb, ss):
        np.testing.assert_allclose(bound(one) - bound(two), kl(two) - kl(one), rtol=1e-9)


def test_inputs_are_drawn_from_the_posterior_of_the_factors(x64):
    nodes = uncertain(3, 2, 2, 0)
    node = np.tile([[2, 4]], (40_000, 1))
    x = gp.draw_inputs(nodes, Entries(node, None, None, None), jax.random.key(0))
    std = np.exp(0.5 * nodes.log_var[[2, 4]]).ravel()
    np.testing.assert_allclose(x.mean(axis=0), nodes.mean[[2, 4]].ravel(), atol=4 * std.max() / 200)
    np.testing.assert_allclose(x.std(axis=0), std, rtol=0.02)
    assert np.abs(np.corrcoef(x.T) - np.eye(4)).max() < 0.02


def test_a_batch_is_absorbed_in_expectation_over_the_factors(x64):
    """SS-GPTF: what entries of uncertain factors add to the site, against an average over many draws."""
    settings = GPSettings(1, GAUSSIAN, 2, 4, 1, 3)
    rng = np.random.default_rng(0)
    nodes, inputs = uncertain(3, 1, 2, 3), rng.normal(size=(4, 2))
    entries = Entries(np.arange(3)[:, None], rng.normal(size=3), np.array([1.0, 1, 0]), np.zeros((3, 1)))
    start = ss_gptf.start(settings, inputs)._replace(hyper=HYPER)
    before = ss_gptf.remember(settings, start, nodes, jnp.arange(4))
    params = ss_gptf.Params(inputs, HYPER, nodes)
    arrays = jax.tree.map(jnp.asarray, (before, entries, params, ss_gptf.Sites(*np.zeros((2, 3)))))
    carried = ss_gptf.absorb(settings, *arrays)
    L = np.linalg.cholesky(gp.inducing_cov(settings, HYPER, inputs))
    precision, shift = np.zeros((4, 4)), np.zeros(4)
    for n in range(2):
        x = nodes.mean[n] + np.exp(0.5 * nodes.log_var[n]) * rng.normal(size=(200_000, 2))
        a = np.linalg.solve(L, ard(inputs, x))
        precision += a @ a.T / 200_000 / 0.3
        shift += a.mean(axis=1) * entries.value[n] / 0.3
    np.testing.assert_allclose(carried.precision, precision, atol=0.02)
    np.testing.assert_allclose(carried.shift, shift, atol=0.02)


def test_the_jitter_keeps_equal_inputs_apart_and_does_not_show(x64):
    x, value = regression()
    settings = GPSettings(1, GAUSSIAN, 2, len(x), 1, 12)
    assert settings.jitter == gp.JITTER == 1e-6
    equal = np.repeat(x[:3], 3, axis=0)
    for jitter, good in ((gp.JITTER, True), (0.0, False)):
        cov = gp.inducing_cov(settings._replace(jitter=jitter), HYPER, equal)
        np.testing.assert_allclose(np.diag(cov), np.exp(HYPER.log_var) * (1 + jitter), rtol=1e-15)
        assert np.isfinite(np.linalg.slogdet(cov)[1]) == np.isfinite(jnp.linalg.cholesky(cov)).all() == good
    new = np.random.default_rng(1).normal(size=(20, 2))
    _, mean, var = exact(x, value, new)
    carried = gp_method.method_of(settings, 1e-3, svb_gptf.ALGORITHM).predict(
        known_state(optimum(x, value, gp.JITTER), new), np.arange(20)[:, None]
    )
    np.testing.assert_allclose(carried.mean, mean, atol=1e-4)
    np.testing.assert_allclose(carried.var, var, atol=1e-4)


def test_adam_reaches_the_optimum(x64):
    """No closed form helps SVB-GPTF: its ascent of m and R, all else held, comes to the exact posterior."""
    x, value = regression()
    settings = GPSettings(1, GAUSSIAN, 2, len(x), 2000, 12)
    nodes, entries = fixed(x, value, settings.batch_size)
    before = before_any(settings, x, nodes)

    def bound(params, extra, key):
        now = Params(x, HYPER, Away(params[0], jnp.tril(params[1])), nodes)
        return svb_gptf.bound(settings, before, entries, now, key), extra

    ascend = jax.jit(lambda params: gp.ascend(settings, 1e-2, params, (), jax.random.key(0), bound))
    (mean, _), _, bounds = ascend((np.zeros(len(x)), np.eye(len(x))))
    np.testing.assert_allclose(bounds[-1], exact(x, value, x)[0], atol=1e-3)
    np.testing.assert_allclose(mean, moments(optimum(x, value, settings.jitter))[0], atol=1e-2)


def test_what_was_learned_in_one_region_is_not_forgotten_in_another(x64):
    """20 batches here and 5 there: the error here was 0.08 and then 1.09 when moving the inputs was free."""
    settings = GPSettings(1, GAUSSIAN, 2, 16, 100, 32)
    method = gp_method.method_of(settings, 1e-2, svb_gptf.ALGORITHM)
    rng = np.random.default_rng(0)
    process = svb_gptf.start(settings, rng.normal(size=(16, 2)))
    here, there, errors = np.array([-2.0, 0]), np.array([2.0, 0]), []

    def g(x):
        return np.sin(2 * x[:, 0]) + np.cos(2 * x[:, 1])

    for number in range(25):
        x = rng.uniform(-1, 1, size=(32, 2)) + (here if number < 20 else there)
        nodes, entries = fixed(x, g(x) + 0.1 * rng.normal(size=32), 32)
        key = np.array([0, number], np.uint32)
        new = svb_gptf.learn(settings, 1e-2, process, nodes, entries, key)
        process = jax.tree.map(np.array, new.process)
        test = np.random.default_rng(1).uniform(-1, 1, size=(200, 2)) + here
        carried = method.predict(known_state(process, test), np.arange(200)[:, None])
        errors.append(np.sqrt(np.mean((carried.mean - g(test)) ** 2)))
    assert errors[19] < 0.1
    assert errors[24] < 0.15


# --- expectations ---------------------------------------------------------------------------------


class Known(NamedTuple):
    """q(v) = N(mean, root root^T) at inducing inputs, under a kernel."""

    inputs: np.ndarray
    mean: np.ndarray
    root: np.ndarray
    hyper: Hyper


def some_known(seed: int, M: int = 5) -> Known:
    rng = np.random.default_rng(seed)
    root = np.tril(rng.normal(size=(M, M)), -1) / 4 + np.diag(rng.uniform(0.2, 0.8, size=M))
    return Known(rng.normal(size=(M, 2)), rng.normal(size=M), root, HYPER)


def remembered(settings: GPSettings, known: Known) -> Any:
    inverse = np.linalg.inv(known.root @ known.root.T)
    process = Process(known.inputs, inverse - np.eye(len(inverse)), inverse @ known.mean, known.hyper)
    return svb_gptf.remember(settings, process, NO_NODES, jnp.arange(len(inverse)))


NO_NODES = Nodes(np.zeros((1, 2)), np.zeros((1, 2)))
NO_ENTRY = Entries(np.zeros((1, 1), int), np.zeros(1), np.zeros(1), np.zeros((1, 1)))


def kl_of(now: Known, known: Known) -> float:
    """What the bound of a batch without entries takes off."""
    settings = GPSettings(1, GAUSSIAN, 2, len(now.mean), 1, 1)
    before = remembered(settings, known)
    carried = svb_gptf.carry_over(settings, before, now.hyper, now.inputs, now.inputs[:0])
    G = np.array(carried.G)
    cov = G.T @ now.root @ now.root.T @ G
    away = Away(G.T @ now.mean - np.array(carried.centre), np.linalg.cholesky(cov))
    params = Params(now.inputs, now.hyper, away, NO_NODES)
    return -float(svb_gptf.bound(settings, before, NO_ENTRY, params, jax.random.key(0)))


def gaussian_kl(mean, cov, mean0, cov0) -> float:
    away, inverse = mean - mean0, np.linalg.inv(cov0)
    log_ratio = np.linalg.slogdet(cov0)[1] - np.linalg.slogdet(cov)[1]
    return 0.5 * (np.trace(inverse @ cov) + away @ inverse @ away - len(mean) + log_ratio)


def at(process: Known, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of g at the inducing inputs and at others, `inputs` first."""
    jitter = gp.JITTER * np.exp(process.hyper.log_var) * np.eye(len(inputs))
    prior = ard(process.inputs, process.inputs, process.hyper) + jitter
    L = np.linalg.cholesky(prior)
    gain = (ard(inputs, process.inputs, process.hyper) + jitter) @ np.linalg.inv(prior)
    own = L @ process.root @ process.root.T @ L.T
    rest = ard(inputs, inputs, process.hyper) + jitter - gain @ prior @ gain.T
    cov = np.block([[rest + gain @ own @ gain.T, gain @ own], [own @ gain.T, own]])
    return np.concatenate([gain @ L @ process.mean, L @ process.mean]), cov


def test_kl_of_the_process_is_that_of_g_at_old_and_new_inputs(x64):
    """Against the KL of two Gaussians over all of them, written out."""
    now, before = some_known(0), some_known(1)
    mean, cov = at(now, before.inputs)
    mean0, cov0 = at(before, now.inputs)
    order = np.r_[5:10, :5]  # the second has the new inputs first
    wanted = gaussian_kl(mean, cov, mean0[order], cov0[np.ix_(order, order)])
    np.testing.assert_allclose(kl_of(now, before), wanted, rtol=1e-6)


def test_kl_of_the_process_at_unmoved_inputs_is_the_closed_form(x64):
    now, before = some_known(0), some_known(1)
    now = now._replace(inputs=before.inputs)
    wanted = gaussian_kl(now.mean, now.root @ now.root.T, before.mean, before.root @ before.root.T)
    np.testing.assert_allclose(kl_of(now, before), wanted)
    np.testing.assert_allclose(kl_of(now, now), 0, atol=1e-9)


def test_moving_inputs_and_kernel_costs_nothing_but_another_meaning_of_what_is_known_does(x64):
    """The KL of q(v) would be 0 in all of these cases."""
    settings = GPSettings(1, GAUSSIAN, 2, 5, 1, 1)
    other = Hyper(np.log(2.5), np.log([1.3, 0.8]), np.zeros(()))
    unknown = Known(some_known(0).inputs, np.zeros(5), np.eye(5), HYPER)
    moved = unknown._replace(inputs=some_known(1).inputs, hyper=other)
    np.testing.assert_allclose(kl_of(moved, unknown), 0, atol=1e-9)

    known = some_known(0)._replace(root=0.1 * np.eye(5))
    assert kl_of(known._replace(inputs=known.inputs + 0.1), known) > 1
    assert kl_of(known._replace(inputs=known.inputs + 3), known) > 100

    # q(g(Z)) stays and the kernel moves: all there is to pay is that the new prior thinks less of g(Z)
    L, L_new = (np.linalg.cholesky(gp.inducing_cov(settings, h, known.inputs)) for h in (HYPER, other))
    same = np.linalg.solve(L_new, np.column_stack([L @ known.mean, L @ known.root]))
    mean, cov = L @ known.mean, L @ known.root @ known.root.T @ L.T
    priors = [gaussian_kl(mean, cov, np.zeros(5), each @ each.T) for each in (L_new, L)]
    stays = known._replace(mean=same[:, 0], root=same[:, 1:], hyper=other)
    np.testing.assert_allclose(kl_of(stays, known), priors[0] - priors[1], rtol=1e-6)


def test_a_batch_is_absorbed_as_it_was_learned(x64):
    """The site that is kept has the moments of q(v)."""
    settings = GPSettings(1, GAUSSIAN, 2, 5, 1, 1)
    known, now = some_known(0), some_known(1)
    before = remembered(settings, known)
    carried = svb_gptf.carry_over(settings, before, now.hyper, now.inputs, now.inputs[:0])
    params = Params(now.inputs, now.hyper, Away(now.mean, 0.9 * np.eye(5)), NO_NODES)
    mean, cov = svb_gptf.posterior(settings, svb_gptf.absorb(settings, before, params))
    back = np.linalg.inv(np.array(carried.G).T)
    np.testing.assert_allclose(mean, back @ (carried.centre + now.mean), rtol=1e-8)
    np.testing.assert_allclose(cov, 0.81 * back @ back.T, rtol=1e-8, atol=1e-10)


def test_kl_of_the_nodes_is_the_closed_form(x64):
    rng = np.random.default_rng(0)
    q, p = (Nodes(rng.normal(size=(3, 2)), rng.normal(size=(3, 2))) for _ in range(2))
    ratio = np.exp(q.log_var - p.log_var)
    wanted = 0.5 * np.sum(ratio - np.log(ratio) - 1 + (q.mean - p.mean) ** 2 / np.exp(p.log_var))
    np.testing.assert_allclose(gp.kl_nodes(q, p), wanted)
    np.testing.assert_array_equal(gp.kl_nodes(q, q), 0)


def test_expected_kernels_against_quadrature(x64):
    """In every dimension on its own the expectation is an integral over a line."""
    rng = np.random.default_rng(2)
    inputs, mean, var = rng.normal(size=(4, 2)), rng.normal(size=2), np.array([0.7, 0.05])
    first, second = gp.expected_kernels(HYPER, inputs, mean, var)
    points, weights = np.polynomial.hermite_e.hermegauss(120)
    wanted, pairs = np.full(4, np.exp(HYPER.log_var)), np.full((4, 4), np.exp(2 * HYPER.log_var))
    for d in range(2):
        x = mean[d] + np.sqrt(var[d]) * points
        k = np.exp(-0.5 * ((inputs[:, d, None] - x) / np.exp(HYPER.log_lengths[d])) ** 2)
        wanted *= k @ weights / np.sqrt(2 * np.pi)
        pairs *= np.einsum("ix,jx,x->ij", k, k, weights) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(first, wanted, rtol=1e-10)
    np.testing.assert_allclose(second, pairs, rtol=1e-10)
    np.testing.assert_allclose(gp.kernel(HYPER, inputs, inputs + 1), ard(inputs, inputs + 1))


def test_expected_log_likelihood_against_quadrature(x64):
    value, mean, var = np.array([1.0, 0.0, 1.0]), np.array([0.3, 1.5, -2.0]), np.array([0.5, 2.0, 0.01])
    for likelihood, log_density in (
        (PROBIT, lambda y, f: norm.logcdf((2 * y - 1) * f)),
        (GAUSSIAN, lambda y, f: norm.logpdf(y, f, np.sqrt(0.3))),
    ):
        carried = gp.expected_log_likelihood(likelihood, value, mean, var, 0.3)
        for y, m, v, got in zip(value, mean, var, carried, strict=True):
            density = partial(norm.pdf, loc=m, scale=np.sqrt(v))
            edges = m - 10 * np.sqrt(v), m + 10 * np.sqrt(v)
            wanted = quad(lambda f: log_density(y, f) * density(f), *edges, epsabs=1e-12)[0]  # noqa: B023
            np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_predictions_take_the_uncertainty_of_the_factors_in_full(x64):
    """Against quadrature over the one factor there is, of the moments of f given it."""
    x, value = regression()
    process = optimum(x, value, gp.JITTER)
    state = known_state(process, np.array([[0.4, -0.2]]))
    state.factors[0].var[0, 0] = 0.6
    method = gp_method.method_of(GPSettings(1, GAUSSIAN, 2, len(x), 1, 12), 1e-3, svb_gptf.ALGORITHM)
    points, weights = np.polynomial.hermite_e.hermegauss(100)
    weights /= np.sqrt(2 * np.pi)
    line = np.column_stack([0.4 + np.sqrt(0.6) * points, np.full(100, -0.2)])
    at = method.predict(known_state(process, line), np.arange(100)[:, None])
    carried = method.predict(state, np.array([[0]]))
    np.testing.assert_allclose(carried.mean, weights @ at.mean, rtol=1e-8)
    np.testing.assert_allclose(carried.var, weights @ (at.var + at.mean**2) - carried.mean**2, rtol=1e-6)


def test_learning_rates_run_side_by_side():
    """Uses SS-GPTF, which has all that SVB-GPTF has and more; three batches, each with new nodes."""
    settings = GPSettings(3, GAUSSIAN, 2, 12, 20, 32)  # those of the contract below: compiled once
    rates = [1e-3, 1e-2]
    together = gp_method.side_by_side(settings, ss_gptf.ALGORITHM, stream(False, 75), rates, seed=3)
    for rate, update in zip(rates, together, strict=True):
        method = gp_method.method_of(settings, rate, ss_gptf.ALGORITHM)
        _, alone = method.update(method.init(3), stream(False, 75))
        for a, b in zip(update[:7], alone[:7], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)
    assert not np.array_equal(together[0].mean, together[1].mean)


# --- what these two promise beyond the contract of all methods --------------------------------------


@pytest.fixture(params=[(name, likelihood) for name in BUILDERS for likelihood in (GAUSSIAN, PROBIT)])
def case(request) -> tuple[Method, bool]:
    name, likelihood = request.param
    return BUILDERS[name](3, likelihood, **SMALL), likelihood is PROBIT


def stream(binary: bool, n: int = 60, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    index = np.stack([rng.integers(d, size=n) for d in NODES], axis=1)
    value = sum(rng.normal(size=d)[rows] for d, rows in zip(NODES, index.T, strict=True))
    value = value + 0.3 * rng.normal(size=n)
    return Batch(index, (value > 0).astype(float) if binary else value / 2)


def part(batch: Batch, start: int, stop: int | None = None) -> Batch:
    return Batch(batch.index[start:stop], batch.value[start:stop])


def bits(state: gp_method.GPState) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """All a state holds, spare rows aside."""
    factors = tuple(
        Gaussian(*(each[:n] for each in f)) for f, n in zip(state.factors, state.counts.nodes, strict=True)
    )
    named = checkpoint.flatten(state._replace(factors=factors))
    return {name: (leaf.shape, leaf.tobytes()) for name, leaf in named.items()}


def everything() -> np.ndarray:
    return np.stack([rows.ravel() for rows in np.meshgrid(*map(np.arange, NODES), indexing="ij")], axis=1)


def assert_equal(got, wanted) -> None:
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_predict_is_pure_and_answers_each_entry_alone(case):
    method, binary = case
    state, _ = method.update(method.init(0), stream(binary))
    before = bits(state)
    carried = method.predict(state, everything())
    assert_equal(method.predict(state, everything()), carried)
    assert bits(state) == before
    assert [each.shape for each in method.predict(state, everything()[:0])] == [(0,)] * 3
    assert_equal(method.predict(state, everything()[40:41]), [each[40:41] for each in carried])
    assert_equal(method.predict(state, everything().astype(np.int32)[::-1]), [each[::-1] for each in carried])
    assert np.isfinite(carried).all()
    assert (carried.var > 0).all()
    assert (carried.noise == 0).all() if binary else (carried.noise > 0).all()
    many = np.tile(everything(), (10, 1))  # more than one call of the compiled function takes
    assert len(many) > gp_method.PLACES
    np.testing.assert_array_equal(method.predict(state, many), np.tile(carried, 10))


def test_an_update_tells_the_prediction_before_the_batch(case):
    method, binary = case
    state, _ = method.update(method.init(0), stream(binary))
    batch = stream(binary, 20, seed=1)
    kept = copy.deepcopy(batch)
    said = method.predict(state, batch.index)
    state, update = method.update(state, batch)
    assert_equal(update[:3], said)
    if binary:
        wanted = norm.logcdf((2 * batch.value - 1) * said.mean / np.sqrt(1 + said.var))
    else:
        wanted = norm.logpdf(batch.value, said.mean, np.sqrt(said.var + said.noise))
    np.testing.assert_allclose(update.log_evidence, wanted)
    assert_equal(batch, kept)
    assert update.rejected == 0
    assert state.counts.entries == 80
    assert state.batches == 3


def test_only_the_nodes_of_the_batch_move(case):
    method, binary = case
    state, _ = method.update(method.init(0), stream(binary))
    before = copy.deepcopy(state)
    batch = Batch(np.array([[1, 2, 3], [4, 2, 0]]), np.array([1.0, 0.0]))
    state, _ = method.update(state, batch)
    for new, old, rows in zip(state.factors, before.factors, batch.index.T, strict=True):
        moved = np.isin(np.arange(len(old.mean)), rows)
        for a, b in zip(new, old, strict=True):
            np.testing.assert_array_equal(a[~moved], b[~moved])
            assert (a[moved] != b[moved]).all()


def test_unseen_nodes_are_answered_from_the_prior_and_modes_grow(case):
    method, binary = case
    fresh = method.predict(method.init(0), everything())
    assert all(np.ptp(each) == 0 for each in fresh)
    state, _ = method.update(method.init(0), stream(binary))
    for mode, d in enumerate(NODES):
        index = np.tile([1, 2, 3], (4, 1))
        index[:, mode] = [-1, d, d + 7, 10**9]
        for each in method.predict(state, index):
            assert np.ptp(each) == 0
            assert np.isfinite(each).all()
    state, _ = method.update(state, Batch(np.array([[9, 0, 0]]), np.array([1.0])))
    assert state.counts.nodes.tolist() == [10, 5, 4]
    untouched = method.predict(state, np.array([[7, 2, 1], [8, 0, 3]]))
    assert_equal(untouched, method.predict(state, np.array([[-1, 2, 1], [-1, 0, 3]])))


def test_a_batch_that_comes_out_not_finite_is_refused_whole_and_counted(case):
    method, binary = case
    state, _ = method.update(method.init(0), stream(binary))
    before = copy.deepcopy(state)
    batch = stream(binary, 40)
    batch.value[33] = np.nan if binary else 1e200  # in the second of its two batches
    state, update = method.update(state, batch)
    nodes = sum(len(set(rows)) for rows in batch.index[32:].T)
    assert update.refused == 8 == state.counts.refused
    assert update.rejected == SMALL["inducing"] + SMALL["rank"] * nodes == state.counts.rejected
    assert state.counts.entries == 100
    after, _ = method.update(before, part(batch, 0, 32))
    assert_equal(method.predict(state, everything()), method.predict(after, everything()))
    assert np.isfinite(state.counts.log_evidence)
    _, update = method.update(state, stream(binary))
    assert update.rejected == 0


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("binary", [False, True])
def test_it_learns(name, binary):
    """Additive effects of the nodes: predictions after one pass beat the mean; the first bound rises."""
    method = BUILDERS[name](3, PROBIT if binary else GAUSSIAN, **SMALL)
    batch = stream(binary, 900, seed=1)
    state, _ = method.update(method.init(0), part(batch, 0, 32))
    assert state.bound[1] > state.bound[0]
    state, _ = method.update(state, part(batch, 32, 800))
    test = part(batch, 800)
    carried = method.predict(state, test.index)
    if binary:
        assert np.mean((carried.mean > 0) == test.value) > 0.8
    else:
        assert np.sqrt(np.mean((carried.mean - test.value) ** 2)) < 0.6 * test.value.std()


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_errors_are_clear(build):
    with pytest.raises(ValueError, match=r"needs a likelihood object .* got 'poisson'"):
        build(2, "poisson")
    with pytest.raises(ValueError, match="inducing must be at least 1, got 0"):
        build(2, GAUSSIAN, inducing=0)
    with pytest.raises(ValueError, match="learning_rate must be positive"):
        build(2, GAUSSIAN, learning_rate=0.0)
    method = build(3, GAUSSIAN, **SMALL)
    with pytest.raises(ValueError, match="3 modes, but an index of shape \\(2, 2\\)"):
        method.predict(method.init(0), np.zeros((2, 2), int))
    with pytest.raises(ValueError, match="negative row"):
        method.update(method.init(0), Batch(np.array([[0, -1, 0]]), np.zeros(1)))
