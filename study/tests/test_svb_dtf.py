from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, special, stats

pytest.importorskip("jax", reason="svb-dtf needs JAX: pip install 'spidertensor[jax]'")
pytest.importorskip("optax", reason="svb-dtf needs optax: pip install 'spidertensor[jax]'")

import jax
import jax.numpy as jnp

from spidertensor import checkpoint
from spidertensor.method import Batch
from spidertensor.spider import posterior
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian
from spidertensor_study.competitors import svb_dtf as module
from spidertensor_study.competitors import svb_dtf_batch as batches
from spidertensor_study.competitors.svb_dtf import side_by_side, svb_dtf
from spidertensor_study.competitors.svb_dtf_batch import Normal, kl

NODES = (6, 5, 4)
SMALL = {"epochs": 12, "batch_size": 16, "learning_rate": 1e-2}  # one compilation serves nearly all tests
CASES = {
    "gaussian": (Network((2, 3, 4), (5, 4)), GAUSSIAN),
    "probit-hybrid": (Network((3, 2, 2), (5,), "tanh", bias=True, multilinear=2, product=True), PROBIT),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def made(likelihood, n=90, seed=0, nodes=NODES):
    rng = np.random.default_rng(seed)
    index = np.stack([rng.integers(size, size=n) for size in nodes], axis=1)
    effects = [np.random.default_rng((7, k)).normal(size=size) for k, size in enumerate(nodes)]
    value = sum(effect[rows] for effect, rows in zip(effects, index.T, strict=True)) / np.sqrt(3)
    value = value + 0.3 * rng.normal(size=n)
    return Batch(index, value if likelihood is GAUSSIAN else (value > 0).astype(float))


def cut(batch, *at):
    edges = [0, *at, len(batch.value)]
    return [Batch(batch.index[a:b], batch.value[a:b]) for a, b in pairwise(edges)]


def bits(state):
    arrays = checkpoint.flatten(posterior.trim(state))
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in arrays.items()}


def fed(method, batches, seed=0):
    state, updates = method.init(seed), []
    for batch in batches:
        state, update = method.update(state, batch)
        updates.append(update)
    return state, updates


# --- the bound ------------------------------------------------------------------------------------


def test_kl_and_its_gradient_are_the_closed_forms():
    rng = np.random.default_rng(0)
    m, p, log_s, log_r = rng.normal(size=(4, 50))
    s, r = np.exp(log_s), np.exp(log_r)
    want = np.log(r / s) + (s**2 + (m - p) ** 2) / (2 * r**2) - 0.5
    np.testing.assert_allclose(kl(m, log_s, p, log_r), want, rtol=2e-5, atol=2e-6)
    gradient = jax.grad(lambda *q: jnp.sum(kl(*q, p, log_r)), argnums=(0, 1))(m, log_s)
    np.testing.assert_allclose(gradient[0], (m - p) / r**2, rtol=2e-5)
    np.testing.assert_allclose(gradient[1], s**2 / r**2 - 1, rtol=2e-5, atol=1e-6)


def test_kl_is_the_integral():
    q, p = stats.norm(0.7, 0.5), stats.norm(-0.2, 1.3)
    want, _ = integrate.quad(lambda x: q.pdf(x) * (q.logpdf(x) - p.logpdf(x)), -6, 7)
    assert float(kl(0.7, np.log(0.5), -0.2, np.log(1.3))) == pytest.approx(want, rel=1e-5)


def test_at_the_prior_nothing_pulls():
    """Exactly 0: an element without data stays where it is, to the bit."""
    m, log_s = np.random.default_rng(1).normal(size=(2, 50)).astype(np.float32)
    assert not np.any(kl(m, log_s, m, log_s))
    for part in jax.grad(lambda *q: jnp.sum(kl(*q, m, log_s)), argnums=(0, 1))(m, log_s):
        assert not np.any(part)


def exact_posterior(X, y, tau):
    precision = np.eye(X.shape[1]) + tau * X.T @ X
    return np.linalg.solve(precision, tau * X.T @ y), precision


def assert_mean_field_optimum(q, mean, precision):
    """Mean of the exact posterior, variance 1 / diag(precision), as far as the last iterate of Adam can tell.

    In units of its std a mean has curvature 1 and, from the draws, gradients with noise of about 1 (somewhat
    more for correlated inputs): at rate eta Adam fluctuates around the optimum by sqrt(eta / (2 std)), here
    0.05 for eta = 1e-3 and std = 0.25. A log std has curvature 2 and noise sqrt(2): sqrt(eta sqrt(2) / 4) is
    0.02, twice that for a log variance. Allowed is five times as much.
    """
    np.testing.assert_array_less(np.abs(q.mean - mean) * np.sqrt(np.diag(precision)), 0.25)
    np.testing.assert_allclose(np.log(q.var * np.diag(precision)), 0, atol=0.2)


def test_ascent_finds_the_mean_field_optimum_of_linear_regression():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 4)) + 0.8 * rng.normal(size=(20, 1))
    y = X @ rng.normal(size=4) + 1.4 * rng.normal(size=20)
    mean, precision = exact_posterior(X, y, tau := 0.5)
    gap = np.log(np.diag(np.linalg.inv(precision)) * np.diag(precision))
    assert gap.max() > 0.4  # the variances of the exact posterior are not the ones to find
    prior, start = Normal(jnp.zeros(4), jnp.ones(4)), Normal(jnp.zeros(4), jnp.full(4, 0.1))
    run = jax.jit(batches.ascend, static_argnums=(0, 6))
    log_lik = lambda theta: -0.5 * tau * jnp.sum((y - X @ theta) ** 2)  # noqa: E731
    q, bound = run(log_lik, prior, start, jnp.ones(4), 1e-3, jax.random.key(0), 8000)
    assert_mean_field_optimum(q, mean, precision)
    # its bound in closed form against the average over the last draws; 0.02: what those fluctuations cost
    var = 1 / np.diag(precision)
    fit = -0.5 * tau * (np.sum((y - X @ mean) ** 2) + np.sum(var * np.sum(X**2, axis=0)))
    best = fit - np.sum(0.5 * (var + mean**2 - 1) - 0.5 * np.log(var))
    last = np.asarray(bound[-4000:])
    assert last.mean() == pytest.approx(best, abs=4 * last.std() / np.sqrt(len(last)) + 0.02)


def test_linear_network_with_pinned_factors_is_linear_regression():
    """Factors known to 1e-6 and a known noise leave f = W [x; 1] / sqrt(V + 1), linear in W."""
    rng = np.random.default_rng(3)
    network, n = Network((2, 2), ()), 64
    method = svb_dtf(network, GAUSSIAN, learning_rate=1e-3, epochs=8000, batch_size=n)
    index = np.stack([rng.integers(12, size=n), rng.integers(9, size=n)], axis=1)
    u = [rng.normal(0.4, 1, size=(size, 2)).astype(np.float32) for size in (12, 9)]
    X = np.column_stack([u[0][index[:, 0]], u[1][index[:, 1]], np.ones(n)]) / np.sqrt(5)
    y = X @ rng.normal(size=5) + rng.normal(size=n)

    state = posterior.grow(method.init(0), network, module.PRIOR, np.array([12, 9]))
    for factor, means in zip(state.posterior.factors, u, strict=True):
        factor.mean[:], factor.var[:] = means, 1e-12
    state.posterior.noise.shape[()] = state.posterior.noise.rate[()] = 1e9
    state, _ = method.update(state, Batch(index, y))
    for factor, means in zip(state.posterior.factors, u, strict=True):
        np.testing.assert_allclose(factor.mean, means, atol=3e-3)  # a few steps of Adam
    (weights,) = state.posterior.weights
    assert_mean_field_optimum(Normal(weights.mean[0], weights.var[0]), *exact_posterior(X, y, 1.0))


def test_probit_is_finite_in_both_tails():
    t = jnp.array([-1e5, -40.0, -19.0, 0.0, 40.0, 1e5])
    value, slope = jax.jit(jax.vmap(jax.value_and_grad(batches.log_cdf)))(t)
    np.testing.assert_allclose(value, special.log_ndtr(np.asarray(t, float)), rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(slope, [1e5, 40.02494, 19.05231, 0.797885, 0, 0], rtol=1e-5, atol=1e-30)


def test_it_learns(case):
    method = svb_dtf(*case, **SMALL)
    state, _ = fed(method, [made(case[1], 2000, seed=1)])
    test = made(case[1], 300, seed=2)
    prediction = method.predict(state, test.index)
    if case[1] is GAUSSIAN:
        assert np.mean((test.value - prediction.mean) ** 2) < 0.4 * test.value.var()
        assert 0.05 < prediction.noise[0] < 0.6  # 0.09, and what was not explained on the way
    else:
        assert np.mean((prediction.mean > 0) == test.value) > 0.8


# --- the contract ---------------------------------------------------------------------------------


def test_empty_batch_is_a_no_op(case):
    method = svb_dtf(*case, **SMALL)
    for state in (method.init(0), fed(method, [made(case[1])])[0]):
        before = bits(state)
        state, update = method.update(state, Batch(np.empty((0, 3), np.int64), np.empty(0)))
        assert bits(state) == before
        assert [len(part) for part in update[:4]] == [0] * 4
        assert update.rejected == 0


def test_predict_is_pure_and_unseen_nodes_have_the_prior(case):
    method = svb_dtf(*case, **SMALL)
    state, _ = fed(method, [made(case[1])])
    before = bits(state)
    index = np.tile([1, 2, 3], (4, 1))
    for mode, size in enumerate(NODES):
        asked = index.copy()
        asked[:, mode] = [-1, size, size + 7, 10**9]
        answer = method.predict(state, asked)
        assert all(np.ptp(part) == 0 for part in answer)
        for a, b in zip(answer, method.predict(state, asked), strict=True):
            np.testing.assert_array_equal(a, b)
    assert bits(state) == before
    fresh = method.predict(method.init(0), index)
    assert np.array_equal(fresh.mean, np.zeros(4))
    assert (fresh.var > 0).all()
    assert [part.shape for part in method.predict(state, index[:0])] == [(0,)] * 3
    # a row that exists because a later one does is unseen too
    state, _ = method.update(state, Batch(np.array([[9, 0, 0]]), np.array([1.0])))
    answer = method.predict(state, np.array([[7, 2, 1], [-1, 2, 1]]))
    assert all(part[0] == part[1] for part in answer)


def test_variance_is_the_linearised_one(case):
    """The sum of gradient² var over every weight and factor element."""
    network, likelihood = case
    method = svb_dtf(network, likelihood, **SMALL)
    state, _ = fed(method, [made(likelihood)])
    index = np.array([[1, 2, 3]])
    f = batches.function(network)
    weights = tuple(weight.mean for weight in state.posterior.weights)
    longest = max(network.factor_sizes)
    u = np.zeros((3, longest), np.float32)
    var_u = np.zeros((3, longest))
    for k, factor in enumerate(state.posterior.factors):
        u[k, : factor.mean.shape[1]] = factor.mean[index[0, k]]
        var_u[k, : factor.mean.shape[1]] = factor.var[index[0, k]]
    mean, (g, g_u) = jax.jit(jax.value_and_grad(f, argnums=(0, 1)))(weights, u)
    want = np.sum(np.square(g_u) * var_u)
    want += sum(np.sum(np.square(a) * w.var) for a, w in zip(g, state.posterior.weights, strict=True))
    prediction = method.predict(state, index)
    np.testing.assert_allclose(prediction.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(prediction.var, want, rtol=1e-5)


def test_update_reports_what_predict_said_before_the_batch(case):
    network, likelihood = case
    method, batch = svb_dtf(network, likelihood, **SMALL), made(likelihood, 40)
    kept = copy.deepcopy(batch)
    _, update = method.update(method.init(0), batch)
    state = method.init(0)
    for start, part in zip((0, 16, 32), cut(batch, 16, 32), strict=True):
        said = method.predict(state, part.index)
        for a, b in zip(update[:3], said, strict=True):
            np.testing.assert_allclose(a[start : start + 16], b, rtol=1e-5, atol=1e-6)
        state, _ = method.update(state, part)
    assert np.isfinite(np.array(update[:4])).all()
    assert (update.var > 0).all()
    assert float(state.counts.log_evidence) == pytest.approx(update.log_evidence.sum())
    assert all(np.array_equal(a, b) for a, b in zip(batch, kept, strict=True))


def test_calls_of_whole_batches_change_nothing(case):
    """Also where a call is longer than one compiled call."""
    method = svb_dtf(*case, **SMALL)
    n = module.AT_ONCE * 16 + 40
    batch = made(case[1], n)
    one, (update,) = fed(method, [batch])
    many, updates = fed(method, cut(batch, 16, 64, 256))
    assert bits(one) == bits(many)
    for a, *parts in zip(update[:4], *updates, strict=False):
        np.testing.assert_array_equal(a, np.concatenate(parts))


def test_save_and_continue_is_never_to_stop(case, tmp_path):
    method = svb_dtf(*case, **SMALL)
    first, second = cut(made(case[1]), 48)
    state, _ = fed(method, [first])
    checkpoint.save(tmp_path / "model", checkpoint.flatten(posterior.trim(state), "model"), {"model": {}})
    restored = checkpoint.restore(method.init(0), checkpoint.load(tmp_path / "model").arrays, "model")
    assert bits(restored) == bits(state)
    assert bits(svb_dtf(*case, **SMALL).update(restored, second)[0]) == bits(method.update(state, second)[0])


def test_seeds(case):
    method, batch = svb_dtf(*case, **SMALL), made(case[1])
    states = [fed(method, [batch], seed)[0] for seed in (3, 3, 4, 2**40 + 3)]
    assert bits(states[0]) == bits(states[1])
    mean = [state.posterior.weights[0].mean.tobytes() for state in states]
    assert len(set(mean)) == 3


def test_two_states_of_one_method_do_not_touch(case):
    method, batch = svb_dtf(*case, **SMALL), made(case[1])
    alone = bits(fed(method, [batch])[0])
    a, b = method.init(0), method.init(2)
    b, _ = method.update(b, made(case[1], 33, seed=8))
    a, _ = method.update(a, batch)
    method.update(b, batch)
    assert bits(a) == alone


def test_only_the_nodes_of_the_batch_move(case):
    method = svb_dtf(*case, **SMALL)
    state, _ = fed(method, [made(case[1])])
    before = copy.deepcopy(state.posterior.factors)
    batch = Batch(np.array([[1, 2, 3], [4, 2, 0]]), np.array([1.0, 0.0]))
    state, _ = method.update(state, batch)
    for mode, (new, old) in enumerate(zip(state.posterior.factors, before, strict=True)):
        moved = np.zeros(len(new.mean), bool)
        moved[batch.index[:, mode]] = True
        for a, b in zip(new, old, strict=True):
            np.testing.assert_array_equal(a[~moved], b[~moved])
            assert (a[moved] != b[moved]).all()


def test_renaming_nodes_commutes(case):
    method, batch = svb_dtf(*case, **SMALL), made(case[1])
    names = [np.random.default_rng(k).permutation(size) for k, size in enumerate(NODES)]
    renamed = np.stack([name[rows] for name, rows in zip(names, batch.index.T, strict=True)], axis=1)
    state, (update,) = fed(method, [batch])
    other, (other_update,) = fed(method, [Batch(renamed, batch.value)])
    for a, b in zip(update, other_update, strict=True):
        np.testing.assert_array_equal(a, b)
    for name, a, b in zip(names, state.posterior.factors, other.posterior.factors, strict=True):
        np.testing.assert_array_equal(a.mean, b.mean[name])


def test_nothing_recompiles(case):
    """Neither for another number of entries or batches, nor for new nodes, nor for another learning rate."""
    method = svb_dtf(*case, **SMALL)
    state, _ = fed(method, [made(case[1])])
    method.predict(state, np.array([[0, 0, 0]]))
    before = batches.learn_compiled._cache_size(), batches.moments_compiled._cache_size()
    for n in (1, 7, 16, 200):
        state, _ = method.update(state, made(case[1], n, seed=n, nodes=(50, 40, 30)))
        method.predict(state, np.zeros((n, 3), int))
    svb_dtf(*case, **{**SMALL, "learning_rate": 1e-4}).update(state, made(case[1]))
    assert (batches.learn_compiled._cache_size(), batches.moments_compiled._cache_size()) == before
    assert state.counts.nodes.tolist() == [50, 40, 30]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300, -1e30, 1e19, 2e6])
def test_a_batch_that_ends_in_no_number_is_refused_as_a_whole(bad):
    method, batch = svb_dtf(*CASES["gaussian"], **SMALL), made(GAUSSIAN, 48)
    first, _, last = cut(batch, 16, 32)
    batch.value[20] = bad
    state, (update,) = fed(method, [batch])
    network, nodes = CASES["gaussian"][0], [len(set(rows)) for rows in batch.index[16:32].T]
    elements = network.n_weights + np.dot(nodes, network.factor_sizes)
    assert update.refused == 16
    assert update.rejected == int(state.counts.rejected) == elements
    assert int(state.counts.entries) == 48
    assert np.isfinite(np.array(update[:3])).all()
    assert all(np.isfinite(array).all() for array in checkpoint.flatten(state).values())
    # the others were learned, as if only the count of entries knew of the bad one
    assert float(state.posterior.noise.shape) == 1 + 32 / 2
    want, _ = fed(method, [first])
    want.counts.entries[()] += 16
    want, _ = method.update(want, last)
    np.testing.assert_array_equal(state.posterior.weights[0].mean, want.posterior.weights[0].mean)


def test_a_step_too_long_is_refused_and_not_nan():
    method = svb_dtf(*CASES["gaussian"], **{**SMALL, "learning_rate": 1e30})
    state, (update,) = fed(method, [made(GAUSSIAN, 16)])
    assert update.refused == 16
    assert bits(state)["posterior/weights/0/mean"] == bits(method.init(0))["posterior/weights/0/mean"]


def test_noise_counts_the_errors_that_are_left_and_how_sure_they_are():
    """a grows by n/2, b by half of the expected squares, sum_n (y - mean)² + var, known after the batch."""
    method, batch = svb_dtf(*CASES["gaussian"], **SMALL), made(GAUSSIAN, 16)
    start = method.init(0).posterior.noise
    state, _ = fed(method, [batch])
    after = method.predict(state, batch.index)
    squares = np.sum((batch.value - after.mean) ** 2 + after.var)
    assert float(state.posterior.noise.shape) == float(start.shape) + 8
    np.testing.assert_allclose(
        float(state.posterior.noise.rate), float(start.rate) + 0.5 * squares, rtol=1e-5
    )
    assert np.sum(after.var) > 0.01 * squares  # it matters


def test_side_by_side_is_each_of_them_alone(case):
    """But for the rounding of other matrix products. The bound rises over a batch, averaged over batches."""
    network, likelihood = case
    batch, rates, seeds = made(likelihood, 160), (1e-3, 1e-2), (0, 5)
    update, bound = side_by_side(
        network, likelihood, batch, learning_rates=rates, seeds=seeds, epochs=12, batch_size=16
    )
    assert bound.shape == (2, 2, 10, 12)
    rise = bound[..., -4:].mean(axis=3) - bound[..., :4].mean(axis=3)
    assert (rise[1].mean(axis=1) > 0).all()  # in twelve steps of 1e-3 the draws drown it
    assert update.mean.shape == (2, 2, 160)
    for i, rate in enumerate(rates):
        for j, seed in enumerate(seeds):
            method = svb_dtf(network, likelihood, **{**SMALL, "learning_rate": rate})
            _, (alone,) = fed(method, [batch], seed)
            for a, b in zip(update[:4], alone[:4], strict=True):
                np.testing.assert_allclose(a[i, j], b, rtol=1e-2, atol=1e-2)


def test_errors():
    network = Network((2, 2))
    with pytest.raises(ValueError, match=r"needs a likelihood object .* got 'poisson'"):
        svb_dtf(network, "poisson")
    for rate in (0, -1e-3, np.nan, np.inf):
        with pytest.raises(ValueError, match="learning rate"):
            svb_dtf(network, GAUSSIAN, learning_rate=rate)
    for name in ("epochs", "batch_size"):
        with pytest.raises(ValueError, match=name):
            svb_dtf(network, GAUSSIAN, **{name: 0})
    with pytest.raises(ValueError, match="without entries"):
        side_by_side(network, GAUSSIAN, Batch(np.empty((0, 2), int), np.empty(0)))
    method = svb_dtf(network, GAUSSIAN)
    with pytest.raises(ValueError, match="2 modes"):
        method.update(method.init(0), Batch(np.zeros((1, 3), int), np.zeros(1)))
    with pytest.raises(ValueError, match="negative row"):
        method.update(method.init(0), Batch(np.array([[0, -1]]), np.zeros(1)))
    with pytest.raises(ValueError, match="2 modes"):
        method.predict(method.init(0), np.zeros((1, 3), int))


def test_state_is_arrays_that_grow_in_place(case):
    method = svb_dtf(*case, **SMALL)
    state, _ = fed(method, [made(case[1])])
    for factor, size in zip(state.posterior.factors, case[0].factor_sizes, strict=True):
        assert isinstance(factor, Gaussian)
        assert factor.mean.shape[1] == size
    for array in checkpoint.flatten(state).values():
        assert isinstance(array, np.ndarray)
        assert array.flags.writeable
