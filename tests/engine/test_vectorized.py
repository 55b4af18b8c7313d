"""The vectorised engine equals the oracle where it must, is exact where it can be, and keeps the contract.

JAX computes in the dtype of the state: under `x64` a state in float64 shows the algorithm without rounding.
"""

from __future__ import annotations

import copy
import subprocess
import sys
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import erfcx, log_ndtr, logit
from threadpoolctl import threadpool_limits

jax = pytest.importorskip("jax", reason="needs the extra: pip install spidertensor[jax]")
import jax.numpy as jnp  # noqa: E402

import naive  # noqa: E402
from cases import (  # noqa: E402
    CASES,
    PRIOR,
    Case,
    assert_healthy,
    assert_same_state,
    fixed_noise,
    learn_in_pieces,
    name,
    nodes_of,
    oracle_start,
    questions,
    start,
    stream,
)
from exact import algorithm, linear, regression  # noqa: E402
from naive import as_float64  # noqa: E402
from spidertensor.method import Batch  # noqa: E402
from spidertensor.spider import likelihoods, posterior, vectorized_linear  # noqa: E402
from spidertensor.spider.custom_network import CustomNetwork, CustomSizes  # noqa: E402
from spidertensor.spider.likelihoods import GAUSSIAN, likelihood_by_name  # noqa: E402
from spidertensor.spider.likelihoods.probit import jax_mills  # noqa: E402
from spidertensor.spider.network import Network  # noqa: E402
from spidertensor.spider.posterior import Gaussian, Prior, Site  # noqa: E402
from spidertensor.spider.sequential import sequential  # noqa: E402
from spidertensor.spider.spike_slab import jax_refine, refine_layer  # noqa: E402
from spidertensor.spider.vectorized import vectorized  # noqa: E402
from spidertensor.spider.vectorized_calls import _cuts  # noqa: E402
from spidertensor.spider.vectorized_linear import contracted, halves, linearise, three_terms  # noqa: E402
from spidertensor.spider.vectorized_networks import Normal, parts  # noqa: E402
from spidertensor.spider.vectorized_noise import Pair, add  # noqa: E402
from spidertensor.spider.vectorized_updates import Sites, learn  # noqa: E402
from spidertensor.testing import Case as Checked  # noqa: E402
from spidertensor.testing import Traits, checks_of  # noqa: E402
from spidertensor.testing.case import everything, part  # noqa: E402
from spidertensor.testing.case import stream as entries  # noqa: E402
from spidertensor.testing.states import bits, leaves  # noqa: E402

# The widths of CASES beyond this are for the words of the compiled kernel: to JAX an array is an array.
WIDEST = 50
NARROW = [case for case in CASES if max(case.ranks + case.hidden) <= WIDEST]
FLAT = [case for case in NARROW if not case.curvature]
CURVED = [case for case in NARROW if case.curvature]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """JAX factorises with OpenBLAS, whose threads wait by spinning: on a busy machine, for ever."""
    with threadpool_limits(1):
        yield


def build(case: Case, refine_every: int = 16, **settings):
    return vectorized(
        case.network,
        case.its_likelihood,
        PRIOR,
        curvature=case.curvature,
        noise_memory=case.noise_memory,
        refine_every=refine_every,
        clip=case.clip,
        node_noise=case.node_noise,
        memory=case.memory,
        **settings,
    )


# --- equality: tests/naive.py = sequential = batches of one entry ---------------------------------


def compare(case: Case, cuts, **settings) -> None:
    """Everything the engine returns against the oracle, five refinements on the way."""
    model, batch = case.oracle(16), stream(case, 80)
    with algorithm():
        method, state = build(case, **settings), start(case)
        wanted, wanted_update = naive.learn(model, oracle_start(case, state), batch.index, batch.value)
        state, got, rejected = learn_in_pieces(method, state, batch, cuts)
        prediction = np.array(method.predict(state, questions(case)))
    close = {"rtol": 1e-9, "atol": 1e-10}
    np.testing.assert_allclose(got, wanted_update, **close)
    assert_same_state(case, state, wanted, **close)
    np.testing.assert_allclose(
        prediction, naive.predict(model, wanted, questions(case), nodes_of(case)), **close
    )
    assert rejected == int(state.counts.rejected) == wanted["rejected"]


@pytest.mark.slow
@pytest.mark.parametrize("case", [*FLAT[::4], *CURVED], ids=name)
def test_entry_by_entry_equals_the_oracle(case):
    """Eight entries at once; in the first of each kind single ones too, another program to compile."""
    cuts = (0, 7, 8, 40) if case in (FLAT[0], CURVED[0]) else (0, 8, 16, 40)
    compare(case, cuts=cuts, batch_size=1)


@pytest.mark.slow
@pytest.mark.parametrize("case", FLAT, ids=name)
def test_calls_of_single_entries_equal_the_oracle(case):
    compare(case, cuts=range(80))


@pytest.mark.slow
@pytest.mark.parametrize(("case", "batch_size"), [(FLAT[0], 256), (FLAT[1], 256), (FLAT[0], 1)])
def test_float32_equals_the_sequential_engine(case, batch_size):
    batch = stream(case, 60)
    wanted, wanted_update, _ = learn_in_pieces(case.method(16), start(case, np.float32), batch, range(60))
    method = build(case, batch_size=batch_size)
    state, got, _ = learn_in_pieces(method, start(case, np.float32), batch, range(60))
    np.testing.assert_allclose(got, wanted_update, rtol=2e-3, atol=2e-4)
    for a, b in zip(leaves(state.posterior), leaves(wanted.posterior), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


# --- exact special cases --------------------------------------------------------------------------


@pytest.mark.parametrize("free", ["weights", "factors"])
def test_joint_is_bayesian_linear_regression(free):
    """Marginals for the whole batch, nodes shared by many entries; and the innovations, entry by entry."""
    with algorithm():
        state, batch, G, mean, var = linear(free)
        offset = state.posterior.weights[0].mean[0, 8] / 3 if free == "factors" else 0.0
        y = batch.value - offset
        wanted_mean, wanted_cov = regression(mean, np.diag(var), G, y, 0.3)
        method = vectorized(Network((3, 5), ()), GAUSSIAN, PRIOR, noise_memory=50.0, refine_every=64)
        state, update = method.update(state, batch)
    if free == "weights":
        got = state.posterior.weights[0].mean[0], state.posterior.weights[0].var[0]
    else:
        got = (
            np.concatenate([part.ravel() for part in each])
            for each in zip(*state.posterior.factors, strict=True)
        )
    got_mean, got_var = got
    np.testing.assert_allclose(got_mean, wanted_mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(got_var, np.diag(wanted_cov), rtol=1e-9)

    cov = np.diag(var)
    for g, value, said_mean, said_var, said_log in zip(G, y, *update[:2], update.log_evidence, strict=True):
        alpha, beta = g @ mean, g @ cov @ g
        np.testing.assert_allclose([said_mean - offset, said_var], [alpha, beta], rtol=1e-8, atol=1e-10)
        s = beta + 0.3
        np.testing.assert_allclose(said_log, -0.5 * (np.log(2 * np.pi * s) + (value - alpha) ** 2 / s))
        mean, cov = regression(mean, cov, g[None], np.array([value]), 0.3)


@pytest.mark.parametrize("memory", [None, 20.0])
def test_noise_of_a_joint_batch(memory):
    """The paper: errors and variances before the batch. Else: as f is known after it."""
    with algorithm():
        state, batch, G, mean, var = linear("weights")
        state.posterior.noise.shape[()], state.posterior.noise.rate[()] = 2.0, 0.6
        method = vectorized(Network((3, 5), ()), GAUSSIAN, PRIOR, noise_memory=memory, refine_every=64)
        state, _ = method.update(state, batch)
    cov = np.diag(var)
    if memory is not None:
        mean, cov = regression(mean, cov, G, batch.value, 0.3)
    misfit = (batch.value - G @ mean) ** 2 + np.diag(G @ cov @ G.T)
    lam = 1 if memory is None else 1 - 1 / memory
    fading = lam ** np.arange(39, -1, -1)
    np.testing.assert_allclose(state.posterior.noise.shape, lam**40 * 2.0 + fading.sum() / 2, rtol=1e-10)
    np.testing.assert_allclose(state.posterior.noise.rate, lam**40 * 0.6 + fading @ misfit / 2, rtol=1e-9)


def test_probit_predictions_are_those_before_the_batch():
    case = FLAT[1]
    assert case.likelihood == "probit"
    batch = stream(case, 16)
    with algorithm():
        method = build(case)
        state = posterior.grow(start(case), case.network, PRIOR, nodes_of(case))
        said = method.predict(state, batch.index)
        _, update = method.update(as_float64(state), batch)
    np.testing.assert_allclose(np.array(update[:3]), np.array(said), rtol=1e-12)
    t = (2 * batch.value - 1) * said.mean / np.sqrt(1 + said.var)
    np.testing.assert_allclose(update.log_evidence, log_ndtr(t), rtol=1e-9)


@pytest.mark.parametrize("case", [FLAT[0]._replace(noise_memory=None), FLAT[1]], ids=name)
def test_order_inside_a_joint_batch_does_not_matter(case):
    batch, order = stream(case, 16), np.random.default_rng(0).permutation(16)
    states = []
    with algorithm():
        for entries in (batch, Batch(batch.index[order], batch.value[order])):
            state, update = build(case).update(start(case), entries)
            states.append((*state.posterior, update.log_evidence.sum()))
    for a, b in zip(*map(leaves, states), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


# --- the parts ------------------------------------------------------------------------------------


def ratio(t):  # phi / Phi
    return np.sqrt(2 / np.pi) / erfcx(-t / np.sqrt(2))


@pytest.mark.parametrize(("x64", "rtol"), [(False, 2e-5), (True, 1e-9)])
def test_mills_in_both_tails(x64, rtol):
    t = np.concatenate([-np.logspace(0.31, 8, 60), np.linspace(-2, 2, 41), np.linspace(2, 12, 11)])
    with jax.enable_x64(x64):
        log_cdf, R, R_t = jax.jit(jax_mills)(jnp.asarray(t if x64 else t.astype(np.float32)))
        t = np.asarray(jnp.asarray(t)).astype(float)
    np.testing.assert_allclose(log_cdf, log_ndtr(t), rtol=rtol)
    np.testing.assert_allclose(R, ratio(t), rtol=rtol)
    near = t > -10  # beyond, the reference itself cancels
    np.testing.assert_allclose(np.asarray(R_t)[near], (ratio(t) + t)[near], rtol=10 * rtol)
    far = -t[t < -1e3]
    np.testing.assert_allclose(np.asarray(R_t)[t < -1e3], 1 / far, rtol=1e-5)


PROBIT = jax.jit(likelihoods.PROBIT.jax_evidence)
numbers = st.floats(-(2.0**50), 2.0**50, width=32)


@given(alpha=numbers, beta=st.floats(0, 2.0**40, width=32), y=st.sampled_from([0.0, 1.0]))
def test_probit_sites_are_proper(alpha, beta, y):
    """noise_n = 1/precision is positive (1 at least), and nothing overflows, for any t in float32."""
    said = PROBIT(*map(np.float32, (y, alpha, beta, 0.0, 0.0)))
    assert 0 <= said.precision <= 1
    assert np.isfinite(np.array(said)).all()
    assert said.c >= 0
    assert said.root * (2 * y - 1) >= 0


@pytest.mark.slow
@given(scale=st.floats(1e-6, 1e6), seed=st.integers(0, 100), flip=st.booleans())
def test_joint_probit_stays_healthy_on_any_data(scale, seed, flip):
    """Factors of any size make t of any size; values that contradict all that is known, and new nodes."""
    case = Case((2, 3, 4), (7, 5), "relu", "probit", bias=True)
    state = start(case, np.float32, seed)
    for mean, _ in state.posterior.factors:
        mean *= np.float32(scale)
    method, batch = build(case), stream(case, 16, seed)
    if flip:
        said = method.predict(state, batch.index).mean
        batch = Batch(batch.index, (said < 0).astype(float))
    state, update = method.update(state, batch)
    assert_healthy(state)
    assert np.isfinite(np.array(update[:4])).all()


@pytest.mark.parametrize(("x64", "rtol"), [(False, 2e-3), (True, 1e-6)])
@pytest.mark.parametrize("rho0", [0.5, 0.9, 1.0])
def test_refine_equals_spike_slab(x64, rtol, rho0):
    """Weights that have seen much, little or nothing (improper cavities), pruned ones and strong ones."""
    rng, dtype, n = np.random.default_rng(5), np.float64 if x64 else np.float32, 400
    precision = rng.choice([0.5, 4 / 3, 30.0], n)
    var = 1 / (precision + rng.choice([-0.2, 1e-9, 0.5, 10.0, 1e4], n))
    mean = np.sqrt(var) * rng.normal(size=n) * rng.choice([0.1, 1, 5], n)
    weights = Gaussian(*(part.astype(dtype)[None] for part in (mean, var)))
    site = Site(*(part.astype(dtype)[None] for part in (precision, 0.1 * rng.normal(size=n), np.zeros(n))))
    with jax.enable_x64(x64):
        refined = jax.jit(partial(jax_refine, slab_var=0.75, log_odds=logit(rho0)))
        got = refined(Normal(*map(jnp.asarray, weights)), Sites(*map(jnp.asarray, site)))
        got = jax.tree.map(np.asarray, got)
    rejected = refine_layer(weights, site, 0.75, rho0)
    assert got[2] == rejected
    for new, wanted in zip(got[:2], (weights, site), strict=True):
        for a, b in zip(new, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * 0.1)


def test_running_sums_do_not_stall():
    """A million halves on top of 2^24, where one half is lost in float32."""
    many = jax.jit(lambda pair: jax.lax.fori_loop(0, 10**6, lambda _, p: add(p, 0.5), pair))
    high, low = many(Pair(jnp.float32(2**24), jnp.float32(0)))
    assert float(high) + float(low) == 2**24 + 5e5


@pytest.mark.parametrize("block", [1, 5])
def test_products_in_blocks_equal_the_explicit_ones(block):
    network = Network((3, 4), (6, 5), "tanh", bias=True, multilinear=2)
    rng = np.random.default_rng(2)
    with algorithm():
        weights = Normal(rng.normal(size=network.n_weights), rng.uniform(0.1, 1, network.n_weights))
        given = [rng.normal(size=shape) for shape in ((16, 2, 7), (16,), (16, 16))]

        def products(limit, u, r, M):
            linear = linearise(network, weights, u, limit)
            return *linear[:4], *linear.back(r, M, M.T @ M)

        explicit, in_blocks = partial(products, 10**9), partial(products, block * network.n_weights)
        assert "scan" not in str(jax.make_jaxpr(explicit)(*given))
        assert "scan" in str(jax.make_jaxpr(in_blocks)(*given))
        for a, b in zip(jax.jit(explicit)(*given), jax.jit(in_blocks)(*given), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n", [1, 15, 16])
@pytest.mark.parametrize("chunks", [1, 3])
def test_pairs_equal_the_explicit_products(monkeypatch, n, chunks):
    network = Network((3, 4), (6, 5), "tanh", bias=True, multilinear=2)
    rng = np.random.default_rng(2)
    narrow = network.n_weights - 6 * 7 - 5 * 6  # the last weights of the two layers stay in the matrix
    with algorithm():
        weights = Normal(rng.normal(size=network.n_weights), rng.uniform(0.1, 1, network.n_weights))
        given = [rng.normal(size=shape) for shape in ((n, 2, 7), (n,), (n, n))]

        def products(wide, limit, u, r, M):
            monkeypatch.setattr(vectorized_linear, "WIDE", wide)
            linear = linearise(network, weights, u, limit)
            return *linear[:4], *linear.back(r, M, M.T @ M)

        explicit = partial(products, 100, 10**9)
        pairs = partial(products, 5, max(n * narrow, n * 13 * (n // 2 + 1) // chunks))
        assert "scan" in str(jax.make_jaxpr(pairs)(*given))
        assert "scan" not in str(jax.make_jaxpr(explicit)(*given))
        for a, b in zip(jax.jit(explicit)(*given), jax.jit(pairs)(*given), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("axis", [0, 1])
def test_three_terms_keep_sixteen_bits(axis):
    """One term keeps eight."""
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(300, 300)).astype(np.float32) for _ in range(2))
    exact = (a.T if axis == 0 else a).astype(float) @ b.astype(float)

    def error(found):
        return np.linalg.norm(found - exact) / np.linalg.norm(exact)

    one = contracted(*(halves(x)[0] for x in (a, b)), axis, preferred_element_type=jnp.float32)
    assert error(three_terms(jnp.asarray(a), jnp.asarray(b), axis)) < 2**-16 < 2**-10 < error(one)


def test_batches_are_cut_by_what_was_seen():
    cuts = _cuts(seen=250, n=600, places=100, refine_every=256)
    assert cuts.start.tolist() == [0, 6, 106, 206, 262, 362, 462, 518]
    assert cuts.taken.tolist() == [6, 100, 100, 56, 100, 100, 56, 82]
    assert cuts.due.tolist() == [True, False, False, True, False, False, True, False]


# --- networks of one's own ------------------------------------------------------------------------


def convolution(weights, x):
    """A small CoSTCo: the factors stacked, a convolution over the rank, one over the modes, a dense layer."""
    over_rank, over_modes, out = weights
    h = jax.nn.silu(jnp.einsum("ckw,krw->cr", over_rank, windows(jnp.stack(x), 3)) / 3)
    h = jax.nn.silu(over_modes @ h / jnp.sqrt(h.shape[0]))
    return jnp.sum(out * h) / jnp.sqrt(out.size)


def windows(x, width):
    return jnp.stack([x[:, i : x.shape[1] - width + 1 + i] for i in range(width)], axis=-1)


CUSTOM = CustomNetwork(convolution, ((4, 3, 3), (5, 4), (5, 4)))
CONV = CustomSizes((6, 6, 6), custom=CUSTOM, bias=True)


@pytest.mark.slow
def test_custom_network():
    """Calls of one entry = batches of one. That it learns, and its files: test_engines.py."""
    case = Case((6, 6, 6), (), "relu", "gaussian", bias=True)
    batch = stream(case, 80)
    methods = [vectorized(CONV, GAUSSIAN, batch_size=size, refine_every=16) for size in (256, 1)]
    states = []
    with algorithm():
        for method, cuts in zip(methods, (range(80), (0,)), strict=True):
            states.append(learn_in_pieces(method, as_float64(method.init(0)), batch, cuts)[0])
    for a, b in zip(*(leaves(posterior.trim(state)) for state in states), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)
    assert [weight.mean.shape for weight in states[0].posterior.weights] == [(4, 3, 3), (5, 4), (5, 4)]


@pytest.mark.slow
def test_built_in_network_as_a_custom_one():
    def mlp(weights, x):
        h = jnp.tanh(weights[0] @ jnp.append(jnp.concatenate(x), 1) / jnp.sqrt(6))
        return (weights[1] @ jnp.append(h, 1))[0] / jnp.sqrt(5)

    own = CustomSizes((2, 3), custom=CustomNetwork(mlp, ((4, 6), (1, 5))), multilinear=2)
    built_in = Network((2, 3), (4,), "tanh", multilinear=2)
    batch = stream(Case((2, 3), (4,), "tanh", "gaussian"), 60)
    states = []
    with algorithm():
        for network in (own, built_in):
            method = vectorized(network, GAUSSIAN, refine_every=16)
            states.append(method.update(method.init(0), batch)[0])
    for a, b in zip(*map(leaves, states), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_custom_network_must_return_a_number():
    vector = CustomNetwork(lambda weights, x: weights[0] @ x[0], ((3, 2),))
    with pytest.raises(ValueError, match="one number"):
        vectorized(CustomSizes((2, 2), custom=vector), GAUSSIAN)
    with pytest.raises(ValueError, match=r"'<lambda>' fails on weights of shapes \(\(3, 2\),\) and .* ranks"):
        vectorized(CustomSizes((3, 2), custom=vector), GAUSSIAN)


def test_parts_are_the_weights_in_their_shapes():
    vector = jnp.arange(CONV.n_weights)
    first, second, third = parts(CONV, vector)
    assert (first.shape, second.shape, third.shape) == ((4, 3, 3), (5, 4), (5, 4))
    assert third[-1, -1] == CONV.n_weights - 1


# --- sizes, guards, contract ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch_size", "settings"), [(256, {}), (1, {}), (256, {"clip": 4.0, "node_noise": True})]
)
def test_few_compilations(batch_size, settings):
    """Calls of any size, ragged batches, new nodes, growing modes: the compiled functions stay few."""
    method = vectorized(Network((2, 3), ()), GAUSSIAN, batch_size=batch_size, refine_every=32, **settings)
    rng = np.random.default_rng(0)
    state = method.init(0)

    def feed(state, n, nodes):
        index = np.stack([rng.integers(nodes, size=n), rng.integers(nodes // 2 + 1, size=n)], axis=1)
        return method.update(state, Batch(index, rng.normal(size=n)))[0]

    before = learn._cache_size()
    for n, nodes in ((1, 1), (1, 2), (1, 4), (1, 8), (1, 16), (40, 32), (300, 60), (32 * 70, 60)):
        state = feed(state, n, nodes)
    sizes = 4 if batch_size > 1 else 3  # 64, 8 or 1 batches, and one with few places
    assert learn._cache_size() - before <= sizes
    for n in (2, 3, 7, 16, 17, 33, 90, 255, 256, 300, 1000, 2500):
        state = feed(state, n, 60)
    for nodes in range(60, 160, 7):
        state = feed(state, 20, nodes)
    assert learn._cache_size() - before <= sizes
    for nodes in range(180, 240, 6):  # more than 255 nodes in all: a larger table, once
        state = feed(state, 5, nodes)
    assert learn._cache_size() - before <= sizes + 1


@pytest.mark.slow
def test_joint_calls_cut_between_batches():
    """Cut where a batch ends, a stream is the same stream; elsewhere a batch is two smaller ones."""
    case = Case((2, 3), (5,), "relu", "gaussian", noise_memory=50.0)
    batch = stream(case, 200)
    with algorithm():
        method = build(case, batch_size=8)
        runs = [learn_in_pieces(method, start(case), batch, cuts) for cuts in ((0,), (0, 8, 64, 72, 160))]
    for a, b in zip(*(leaves((run[0], run[1])) for run in runs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
@pytest.mark.parametrize("batch_size", [256, 1])
def test_entry_without_finite_evidence_is_refused(bad, batch_size):
    case = Case((2, 3, 4), (7, 16), "relu", "gaussian", noise_memory=50.0)
    method, batch = build(case, 32, batch_size=batch_size), stream(case, 20)
    good, _ = method.update(start(case, np.float32), batch)
    index, value = np.insert(batch.index, 9, batch.index[0], axis=0), np.insert(batch.value, 9, bad)
    state, said = method.update(start(case, np.float32), Batch(index, value))
    elements = case.network.n_weights + sum(case.network.factor_sizes)
    assert (said.rejected, said.refused) == (int(good.counts.rejected) + elements, 1)
    assert (int(state.counts.entries), int(state.counts.refused)) == (21, 1)
    assert not np.isfinite(said.log_evidence[9])
    assert np.isfinite(np.delete(said.log_evidence, 9)).all()
    for a, b in zip(leaves(state.posterior), leaves(good.posterior), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [1e-25, 1e-6, 1e10])
def test_joint_with_hardly_any_noise_or_nothing_else(noise):
    """Forty entries about the same nodes, far beyond what float32 can tell apart."""
    case = Case((2, 3, 4), (7, 16), "relu", "gaussian", bias=True)
    state = fixed_noise(start(case, np.float32), noise)
    batch = Batch(np.zeros((40, 3), np.int64), np.linspace(-1, 1, 40))
    state, update = build(case, 64).update(state, batch)
    assert_healthy(state)
    assert np.isfinite(np.array(update[:4])).all()
    assert (update.var > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["gaussian", "probit"])
def test_long_stream(likelihood):
    """Values that never change: everything becomes certain, nothing stalls into 0, inf or NaN."""
    case = Case((2, 3, 4), (7, 5), "relu", likelihood, bias=True, multilinear=2, noise_memory=1000.0)
    batch = stream(case, 14 * 64 * 64)  # whole pieces of 64 batches: one function to compile
    batch = Batch(batch.index, np.ones(len(batch.value)))
    state, update = build(case, 64).update(start(case, np.float32), batch)
    assert_healthy(state)
    assert np.isfinite(np.array(update[:4])).all()
    assert (update.var > 0).all()
    assert update.log_evidence[-1000:].mean() > update.log_evidence[:1000].mean()


PLAIN = Network((2, 3, 4), (7, 5))
HYBRID = Network((2, 3, 4), (7, 5), "tanh", bias=True, multilinear=3)


def cases() -> dict[str, Checked]:
    found = {}
    for unit, likelihood, network, settings in (
        ("batch", "gaussian", HYBRID, {}),
        ("batch", "probit", PLAIN, {}),
        ("entry", "gaussian", PLAIN, {}),
        ("batch", "gaussian", HYBRID, {"clip": 2.0, "node_noise": True, "memory": 100.0}),
    ):
        settings = {"batch_size": 256 if unit == "batch" else 1, "refine_every": 16} | settings
        found[f"{unit}-{likelihood}{'-robust' if 'clip' in settings else ''}"] = Checked(
            partial(vectorized, network, likelihood_by_name(likelihood), **settings),
            likelihood_by_name(likelihood),
            unit=unit,
            traits=Traits(equal_starts=network is PLAIN),
        )
    return found


NOT_HERE = {
    # the same bits from functions compiled for other numbers of entries: see below for all, but for rounding
    "entry_by_entry_is_one_call",
    "how_calls_are_cut_does_not_matter",
    "predict_takes_any_number_of_entries",
    "cuts_between_two_batches_change_nothing",
    "a_second_batch_does_not_recompile",  # counts what numba compiles: see test_few_compilations
    "memory_is_constant_on_a_long_stream",  # once is enough, see below
}
CHECKS = {
    f"{promise}-{name}": check
    for name, case in cases().items()
    for promise, check in checks_of(case).items()
    if promise not in NOT_HERE
}


@pytest.mark.parametrize("name", CHECKS)
def test_contract(name):
    CHECKS[name]()


@pytest.mark.slow
def test_memory_is_constant_on_a_long_stream():
    checks_of(cases()["batch-gaussian"])["memory_is_constant_on_a_long_stream"]()


def test_predict_takes_any_number_of_entries():
    method, state = cases()["batch-probit"].learned()
    index = everything()
    whole = np.array(method.predict(state, np.tile(index, (12, 1))))  # more than one block
    close = {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(whole[:, 1320:], np.array(method.predict(state, index)), **close)
    np.testing.assert_allclose(whole[:, 40:41], np.array(method.predict(state, index[40:41])), **close)
    assert np.array(method.predict(state, index[:0].astype(np.int32))).shape == (3, 0)


@pytest.mark.parametrize(
    ("likelihood", "settings"),
    [("gaussian", {}), ("probit", {}), ("gaussian", {"clip": 1.0, "node_noise": True})],
)
def test_how_calls_are_cut_does_not_matter_to_batches_of_one(likelihood, settings):
    """Bit for bit; and each update says what predict said just before, but for rounding."""
    method = vectorized(PLAIN, likelihood_by_name(likelihood), batch_size=1, refine_every=16, **settings)
    batch = entries(likelihood_by_name(likelihood))
    whole, update = method.update(method.init(0), batch)
    for edges in ([0, 1, 2, 16, 17, 40, 60], [0, 33, 33, 60]):
        state, said = method.init(0), []
        for first, last in pairwise(edges):
            piece = part(batch, slice(first, last))
            before = np.array(method.predict(state, piece.index[:1]))[:, : last - first]
            state, update_again = method.update(state, piece)
            said.append(update_again[:4])
            np.testing.assert_allclose(np.array(update_again[:3])[:, :1], before, rtol=1e-4, atol=1e-5)
        assert bits(state) == bits(whole)
        np.testing.assert_array_equal(np.concatenate(said, axis=1), np.array(update[:4]))


def test_state_is_shared_with_the_sequential_engine():
    """One engine continues what the other began."""
    batch = entries(GAUSSIAN)
    first, second = part(batch, slice(0, 33)), part(batch, slice(33, 60))
    engines = [
        sequential(HYBRID, GAUSSIAN, refine_every=16),
        vectorized(HYBRID, GAUSSIAN, batch_size=1, refine_every=16),
    ]
    wanted, _ = engines[0].update(engines[0].update(engines[0].init(0), first)[0], second)
    for a, b in (engines, engines[::-1]):
        state, _ = b.update(a.update(a.init(0), first)[0], second)
        for got, leaf in zip(leaves(state), leaves(wanted), strict=True):
            assert got.dtype == leaf.dtype
            np.testing.assert_allclose(got, leaf, rtol=1e-3, atol=1e-4)


def test_settings_that_make_no_sense():
    network = Network((2, 2))
    for settings, message in (
        ({"refine_every": 0}, "refine_every"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 10**9, "refine_every": 10**9}, "at most 16384 entries"),
        ({"noise_memory": 1.0}, "noise_memory"),
        ({"clip": 0.0}, "clip"),
        ({"memory": 0.5}, "memory must be"),
        ({"node_noise": True, "noise_memory": None}, "node_noise"),
    ):
        with pytest.raises(ValueError, match=message):
            vectorized(network, GAUSSIAN, **settings)
    with pytest.raises(ValueError, match="likelihood"):
        vectorized(network, "poisson")
    method = vectorized(network, GAUSSIAN)
    with pytest.raises(ValueError, match="negative"):
        method.update(method.init(0), Batch(np.array([[0, -1]]), np.array([1.0])))
    with pytest.raises(ValueError, match="shape"):
        method.update(method.init(0), Batch(np.array([[0, 1, 2]]), np.array([1.0])))
    with pytest.raises(ValueError, match="modes"):
        method.predict(method.init(0), np.array([[0, 1, 2]]))


def test_nothing_imports_jax_unless_asked():
    code = "import sys, spidertensor, spidertensor.spider.sequential; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_prior_is_the_default_of_the_state():
    """The engines start from the same state."""
    seq, vec = (
        sequential(PLAIN, likelihoods.PROBIT, Prior()),
        vectorized(PLAIN, likelihoods.PROBIT, Prior()),
    )
    assert bits(seq.init(3)) == bits(vec.init(3))
    assert copy.deepcopy(vec.init(3)).seed == 3
