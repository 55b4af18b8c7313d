"""SS-GPTF: its bound against the one of the paper, and the cases where it is the ordinary sparse GP.

The contract and all that it shares with SVB-GPTF are checked in test_svb_gptf.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="the Gaussian-process baselines need the extra: spidertensor[jax]")
pytest.importorskip("optax", reason="the Gaussian-process baselines need the extra: spidertensor[jax]")

import jax
import jax.numpy as jnp

from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT, Likelihood
from spidertensor_study.competitors import gp, gp_method, ss_gptf, svb_gptf
from spidertensor_study.competitors.gp import Entries, GPLearned, GPSettings, Hyper, Nodes
from spidertensor_study.competitors.ss_gptf import Params, Process, Sites

KNOWN = -60.0  # log variance of a factor that is known
NOISE = 0.3
HYPER = Hyper(np.log(1.5), np.log([0.9, 1.7]), np.log(NOISE - gp.MIN_NOISE))
KEY = np.array([0, 1], np.uint32)
M = 6


@pytest.fixture(autouse=True)
def x64():
    with gp_method.enable_x64(True):
        yield


def data(n: int, seed: int = 0, binary: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    value = np.sin(2 * x[:, 0]) + x[:, 1] + 0.2 * rng.normal(size=n)
    return x, (value > 0).astype(float) if binary else value


def fixed(x: np.ndarray, value: np.ndarray, places: int) -> tuple[Nodes, Entries]:
    """The x as known factors, a node each, in a batch that has empty places too: one mode of rank 2."""
    n = len(value)
    nodes = Nodes(np.zeros((places, 2)), np.full((places, 2), KNOWN))
    nodes.mean[:n] = x
    padded, here = np.zeros((2, places))
    padded[:n], here[:n] = value, 1.0
    return nodes, Entries(np.arange(places)[:, None], padded, here, np.zeros((places, 1)))


def ard(x: np.ndarray, z: np.ndarray, hyper: Hyper = HYPER) -> np.ndarray:
    d = (x[:, None] - z[None]) / np.exp(hyper.log_lengths)
    return np.exp(hyper.log_var) * np.exp(-0.5 * (d**2).sum(axis=2))


def settings(likelihood: Likelihood = GAUSSIAN, epochs: int = 1) -> GPSettings:
    return GPSettings(1, likelihood, 2, M, epochs, 20)


def at_start(inputs: np.ndarray) -> Process:
    return ss_gptf.start(settings(), inputs)._replace(hyper=HYPER)


def batch_at_same_inputs(process: Process, x, value, likelihood=GAUSSIAN, epochs=1) -> GPLearned:
    """One batch with everything but q(b) held where it is: hyper-parameters, inducing inputs, factors."""
    return held(settings(likelihood, epochs), process, *fixed(x, value, 20))


@partial(jax.jit, static_argnums=0)
def held(settings: GPSettings, process: Process, nodes: Nodes, entries: Entries) -> GPLearned:
    before = ss_gptf.remember(settings, process, nodes, jnp.arange(len(process.inputs)))
    params = Params(process.inputs, process.hyper, nodes)
    return ss_gptf.climb(settings, 0.0, before, entries, params, KEY)


def titsias(inputs, x, value) -> tuple[float, np.ndarray, np.ndarray]:
    """The ordinary sparse GP (Titsias 2009): collapsed bound, and the optimal q(u) = N(mean, cov)."""
    K = ard(inputs, inputs) + gp.JITTER * np.exp(HYPER.log_var) * np.eye(M)
    link = ard(inputs, x)
    Q = link.T @ np.linalg.solve(K, link)
    cov = Q + NOISE * np.eye(len(x))
    bound = -0.5 * (len(x) * np.log(2 * np.pi) + np.linalg.slogdet(cov)[1])
    bound -= 0.5 * value @ np.linalg.solve(cov, value)
    bound -= (len(x) * np.exp(HYPER.log_var) - np.trace(Q)) / (2 * NOISE)
    inner = np.linalg.inv(K + link @ link.T / NOISE)
    return bound, K @ inner @ link @ value / NOISE, K @ inner @ K


def test_one_batch_is_the_ordinary_sparse_gp():
    """Bound, posterior of the inducing outputs, and its predictions."""
    inputs = np.random.default_rng(5).normal(size=(M, 2))
    x, value = data(17)
    learned = batch_at_same_inputs(at_start(inputs), x, value)
    bound, mean, cov = titsias(inputs, x, value)
    np.testing.assert_allclose(learned.bound[-1], bound, rtol=1e-9)
    m, S = ss_gptf.posterior(settings(), learned.process)
    L = np.linalg.cholesky(gp.inducing_cov(settings(), HYPER, inputs))
    np.testing.assert_allclose(L @ m, mean, atol=1e-8)
    np.testing.assert_allclose(L @ S @ L.T, cov, atol=1e-8)


def test_two_batches_are_one_batch_of_both():
    """With hyper-parameters and inducing inputs unchanged: the same site, and the bounds add up."""
    inputs = np.random.default_rng(5).normal(size=(M, 2))
    x, value = data(20)
    first = batch_at_same_inputs(at_start(inputs), x[:8], value[:8])
    second = batch_at_same_inputs(first.process, x[8:], value[8:])
    both = batch_at_same_inputs(at_start(inputs), x, value)
    for a, b in zip(jax.tree.leaves(second.process), jax.tree.leaves(both.process), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(first.bound + second.bound, both.bound, rtol=1e-9)


def test_many_batches_forget_nothing():
    """The jitter of a kept input is kept with it: a thousand empty batches leave the posterior as it is."""
    inputs = np.random.default_rng(5).normal(size=(M, 2)) / 10  # an ill-conditioned kernel matrix
    x, value = data(20)
    process = first = batch_at_same_inputs(at_start(inputs), x, value).process
    for _ in range(1000):
        process = batch_at_same_inputs(process, x[:0], value[:0]).process
    scale = float(np.abs(first.precision).max())
    np.testing.assert_allclose(process.precision, first.precision, atol=1e-5 * scale)
    np.testing.assert_allclose(process.shift, first.shift, rtol=1e-4, atol=1e-5 * scale)


def test_a_site_keeps_its_sign_on_a_long_stream():
    """Many sure entries at close inducing inputs: the precision grows, and stays that of a Gaussian."""
    many = GPSettings(1, GAUSSIAN, 2, 64, 1, 256)
    rng = np.random.default_rng(0)
    process = ss_gptf.start(many, rng.normal(size=(64, 2)))
    process = process._replace(hyper=Hyper(np.zeros(()), np.full(2, np.log(3.0)), np.array(np.log(1e-4))))
    for _ in range(80):
        x = rng.normal(size=(256, 2))
        learned = held(many, process, *fixed(x, np.sin(x[:, 0]), 256))
        process = jax.tree.map(np.array, learned.process)
        assert np.isfinite(learned.bound).all()
    assert np.linalg.eigvalsh(np.eye(64) + process.precision)[0] > 0.99
    m, _ = ss_gptf.posterior(many, process)
    L = np.linalg.cholesky(gp.inducing_cov(many, process.hyper, process.inputs))
    np.testing.assert_allclose(L @ m, np.sin(process.inputs[:, 0]), atol=0.02)


def gaussian_kl(mean, cov, mean0, cov0) -> float:
    inverse = np.linalg.inv(cov0)
    away = mean - mean0
    log_ratio = np.linalg.slogdet(cov0)[1] - np.linalg.slogdet(cov)[1]
    return 0.5 * (np.trace(inverse @ cov) + away @ inverse @ away - len(mean) + log_ratio)


def test_the_bound_is_the_one_of_the_paper():
    """New hyper-parameters, new inducing inputs: with every Kullback-Leibler term as the paper writes it."""
    rng = np.random.default_rng(0)
    x, value = data(30)
    old_inputs = rng.normal(size=(M, 2))
    process = batch_at_same_inputs(at_start(old_inputs), x[:15], value[:15]).process
    hyper = Hyper(np.log(2.1), np.log([1.1, 1.4]), np.log(0.5 - gp.MIN_NOISE))
    nodes, entries = fixed(x[15:], value[15:], 20)
    chosen = jnp.array([0, 1, 2, M + 1, M + 4, M + 5])
    inputs = np.concatenate([old_inputs[:3], x[[16, 19, 20]]])
    before = ss_gptf.remember(settings(), process, nodes, chosen)
    params = Params(inputs, hyper, nodes)
    learned = jax.jit(ss_gptf.climb, static_argnums=0)(settings(), 0.0, before, entries, params, KEY)

    def prior(inputs, hyper):
        return np.array(gp.inducing_cov(settings(), hyper, inputs))

    def unwhitened(process):
        m, S = ss_gptf.posterior(settings(), process)
        L = np.linalg.cholesky(prior(process.inputs, process.hyper))
        return L @ m, L @ S @ L.T

    mean_b, cov_b = unwhitened(learned.process)
    mean_old, cov_old = unwhitened(process)
    K_b, K_a = prior(inputs, hyper), prior(old_inputs, hyper)
    K_ab = ard(old_inputs, inputs, hyper) + gp.JITTER * np.exp(hyper.log_var) * np.array(before.kept).T
    G = K_ab @ np.linalg.inv(K_b)
    mean_a, cov_a = G @ mean_b, K_a - G @ K_ab.T + G @ cov_b @ G.T
    F = ard(x[15:], inputs, hyper) @ np.linalg.inv(K_b)
    mean_f = F @ mean_b
    var_f = np.exp(hyper.log_var) - np.sum(F * ard(x[15:], inputs, hyper), 1) + np.sum((F @ cov_b) * F, 1)
    wanted = np.sum(gp.expected_log_likelihood(GAUSSIAN, value[15:], mean_f, var_f, 0.5))
    wanted -= gaussian_kl(mean_b, cov_b, np.zeros(M), K_b)
    wanted -= gaussian_kl(mean_a, cov_a, mean_old, cov_old)
    wanted += gaussian_kl(mean_a, cov_a, np.zeros(M), prior(old_inputs, HYPER))
    np.testing.assert_allclose(learned.bound[0], wanted, rtol=1e-6)


def test_the_gradient_at_the_optimal_q_is_the_gradient_of_the_best_bound():
    """q(b) is held fixed in the gradient. Against finite differences of the bound, which has it follow."""
    rng = np.random.default_rng(0)
    x, value = data(35)
    process = batch_at_same_inputs(at_start(rng.normal(size=(M, 2))), x[:15], value[:15]).process
    nodes, entries = fixed(x[15:], value[15:], 20)
    before = ss_gptf.remember(settings(), process, nodes, jnp.arange(M))
    params = Params(process.inputs + 0.1, jax.tree.map(lambda each: each + 0.1, HYPER), nodes)
    none = Sites(*np.zeros((2, 20)))

    @jax.jit
    def bound(params):
        return ss_gptf.bound(settings(), before, entries, params, none, KEY)[0]

    # factors aside: they are known so well that nothing moves them
    direction = jax.tree.map(lambda each: rng.normal(size=np.shape(each)), params)
    direction = direction._replace(nodes=jax.tree.map(np.zeros_like, nodes))
    gradient = jax.tree.leaves(jax.jit(jax.grad(bound))(params))
    slope = sum(np.sum(a * b) for a, b in zip(gradient, jax.tree.leaves(direction), strict=True))
    up, down = (
        bound(jax.tree.map(lambda at, move: at + h * move, params, direction))  # noqa: B023
        for h in (1e-5, -1e-5)
    )
    np.testing.assert_allclose(slope, (up - down) / 2e-5, rtol=1e-5)


def test_q_of_the_probit_is_the_best_there_is():
    """Its fixed point: the bound of SVB-GPTF, over all Gaussians, is flat at the q(v) of one batch."""
    likelihood = PROBIT
    inputs = np.random.default_rng(5).normal(size=(M, 2))
    x, value = data(18, binary=True)
    learned = batch_at_same_inputs(at_start(inputs), x, value, likelihood, epochs=100)
    mean, cov = jax.jit(ss_gptf.posterior, static_argnums=0)(settings(), learned.process)
    nodes, entries = fixed(x, value, 20)
    start = svb_gptf.start(settings(), inputs)._replace(hyper=HYPER)
    before = svb_gptf.remember(settings(), start, nodes, jnp.arange(M))

    def bound(mean, root):
        now = svb_gptf.Params(inputs, HYPER, svb_gptf.Away(mean, root), nodes)
        return svb_gptf.bound(settings(likelihood), before, entries, now, KEY)

    reached, slopes = jax.jit(jax.value_and_grad(bound, (0, 1)))(mean, np.linalg.cholesky(cov))
    np.testing.assert_allclose(slopes[0], 0, atol=1e-6)
    np.testing.assert_allclose(np.tril(slopes[1]), 0, atol=1e-6)
    np.testing.assert_allclose(learned.bound[-1], reached, rtol=1e-8)


def test_new_inducing_inputs_are_the_least_known():
    """Against the definition: every pick has the largest variance given the ones before it."""
    x, _ = data(20)
    process = at_start(np.random.default_rng(5).normal(size=(M, 2)))
    here = np.ones(20)
    here[4:9] = 0.0
    chosen = np.array(ss_gptf.choose(settings(), process, x, here))
    candidates = np.concatenate([process.inputs, x])
    usable = np.append(np.ones(M), here) > 0
    for i in range(1, M):
        kept = chosen[:i]
        link = ard(candidates, candidates[kept])
        left = np.exp(HYPER.log_var) - np.sum(
            link @ np.linalg.inv(ard(candidates[kept], candidates[kept])) * link, 1
        )
        assert usable[chosen[i]]
        np.testing.assert_allclose(left[chosen[i]], left[usable].max(), rtol=1e-8)
    assert len(set(chosen)) == M


def test_equal_inputs_are_taken_once_while_there_is_another():
    """Entries of unseen nodes have nearly one input, and a first batch may have fewer inputs than places."""
    process = at_start(np.random.default_rng(5).normal(size=(M, 2)))
    same: Any = np.tile([[3.0, 3.0]], (20, 1))
    chosen = np.array(ss_gptf.choose(settings(), process, same, np.ones(20)))
    assert len(set(chosen)) == M
    assert np.sum(chosen >= M) == 1
    far = process._replace(inputs=np.zeros((M, 2)))
    chosen = np.array(ss_gptf.choose(settings(), far, same, np.zeros(20)))
    assert sorted(chosen) == list(range(M))  # nothing but equal old inputs: each of them, none twice


def begin_at(settings: GPSettings, process: Process, x, value) -> GPLearned:
    """A batch in which nothing but q(b) moves: its bound is the one of the inputs that it began with."""
    return ss_gptf.learn(settings, 0.0, process, *fixed(x, value, 20), KEY)


@pytest.mark.parametrize("likelihood", [GAUSSIAN, PROBIT])
def test_random_inputs_give_way_to_those_of_the_first_batch(likelihood):
    """Far from all entries: nothing is known there, and new inputs tell more."""
    x, value = data(20, binary=likelihood is PROBIT)
    far = at_start(np.random.default_rng(5).normal(size=(M, 2)) + 30)
    inputs = np.array(begin_at(settings(likelihood), far, x, value).process.inputs)
    assert (inputs[:, None] == x).all(axis=2).any()


@pytest.mark.parametrize("likelihood", [GAUSSIAN, PROBIT])
def test_inputs_that_know_much_are_kept(likelihood):
    """A batch beside them is less known, but to pick its inputs would cost what the old ones know."""
    x, value = data(20, binary=likelihood is PROBIT)
    process = at_start(x[:M])
    for _ in range(20):
        process = batch_at_same_inputs(process, x, value, likelihood, epochs=20).process
    picked = np.array(ss_gptf.choose(settings(), process, x + 0.5, np.ones(20)))
    assert (picked >= M).any()
    learned = begin_at(settings(likelihood), process, x + 0.5, value)
    np.testing.assert_array_equal(learned.process.inputs, process.inputs)


def test_the_variance_of_the_kernel_does_not_inflate_on_a_long_stream():
    """As it did when inputs were picked anew in every batch, to 329 here: what they dropped was lost."""
    many = GPSettings(1, GAUSSIAN, 4, 16, 20, 32)
    rng = np.random.default_rng(0)
    process = ss_gptf.start(many, rng.normal(size=(16, 4)))
    for number in range(100):
        x = rng.normal(size=(32, 4))
        value = np.sin(2 * x[:, 0]) + np.cos(2 * x[:, 1]) + x[:, 2] + x[:, 3] + 0.1 * rng.normal(size=32)
        nodes = Nodes(x, np.full(x.shape, KNOWN))
        entries = Entries(np.arange(32)[:, None], value, np.ones(32), np.zeros((32, 1)))
        key = np.array([0, number], np.uint32)
        process = jax.tree.map(np.array, ss_gptf.learn(many, 1e-2, process, nodes, entries, key).process)
    assert np.exp(process.hyper.log_var) < 30
