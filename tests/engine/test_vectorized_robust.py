"""Clipping, noise per node, memory and a scale that is followed, in the vectorised engine.

That batches of one equal the oracle with all of it: test_vectorized.py, whose cases have it. Here: following
the level and the scale, and what a larger batch makes of the rest.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

jax = pytest.importorskip("jax", reason="needs the extra: pip install spidertensor[jax]")
import jax.numpy as jnp  # noqa: E402

import following  # noqa: E402
import naive  # noqa: E402
from cases import PRIOR, assert_healthy, assert_same_state, learn_in_pieces, nodes_of, stream  # noqa: E402
from exact import algorithm, linear, regression  # noqa: E402
from naive import as_float64  # noqa: E402
from spidertensor.evaluation import metrics  # noqa: E402
from spidertensor.method import Batch  # noqa: E402
from spidertensor.spider import posterior  # noqa: E402
from spidertensor.spider.custom_network import CustomNetwork, CustomSizes  # noqa: E402
from spidertensor.spider.follow import RUNNING_ENTRIES, WILD, WINDOW_ENTRIES  # noqa: E402
from spidertensor.spider.likelihoods import GAUSSIAN  # noqa: E402
from spidertensor.spider.network import Network  # noqa: E402
from spidertensor.spider.posterior import node_noise_var  # noqa: E402
from spidertensor.spider.robust import SQUARES_RUNNING  # noqa: E402
from spidertensor.spider.sequential import sequential  # noqa: E402
from spidertensor.spider.vectorized import vectorized  # noqa: E402
from spidertensor.spider.vectorized_noise import Pair, Settings, sums_after  # noqa: E402
from spidertensor.testing.states import bits, leaves  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As in test_vectorized.py."""
    with threadpool_limits(1):
        yield


def build(case, **settings):
    settings = {
        "refine_every": WINDOW_ENTRIES,
        "noise_memory": case.noise_memory,
        "clip": case.clip,
    } | settings
    noise = {"node_noise": case.node_noise, "memory": case.memory}
    return vectorized(case.network, GAUSSIAN, following.PRIOR, **noise, **settings)


# --- following the level and the scale -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(("hybrid", change) for change in following.CHANGES),
        ("product", "scale"),
        ("three modes", "level"),
        ("memory", "scale"),
    ],
)
def test_follows_as_the_oracle_does(name, change):
    """In one call, where a decision falls in the midst of what is learned at once, and in several."""
    case = following.case_of(name, change)
    batch = following.changed(case, change)
    with algorithm():
        method = build(case, batch_size=1)
        state = following.grown(case, following.begin(case, change))
        wanted, said = following.by_the_oracle(name, change)
        for cuts in ((0,), (0, 300, 511, 512, 513, 800)):
            got, update, _ = learn_in_pieces(method, copy.deepcopy(state), batch, cuts)
            assert got.stream.followed.sum() == 1
            np.testing.assert_allclose(update, said, rtol=1e-6, atol=1e-7)
            assert_same_state(case, got, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [32, 1])
@pytest.mark.parametrize("change", following.CHANGES)
def test_cuts_change_nothing_while_the_scale_is_followed(change, batch_size):
    """In one call the change falls within 64 batches that are learned at once. Larger batches are cut
    where they end; then rounding is all that may differ, so they are compared in float64."""
    case = following.case_of("hybrid", change)
    batch = following.changed(case, change, n=4000, at=1000)
    start = posterior.init(case.network, following.PRIOR, 3, node_noise=True)
    noise = 1e-6 if change == "first equal" else 0.1
    start.posterior.noise.shape[()], start.posterior.noise.rate[()] = 5000.0, 5000.0 * noise
    edges = range(0, 4000, 32 * 4) if batch_size > 1 else (0, 1, 255, 1280, 1400, 1536, 1537, 3999)
    with algorithm(x64=batch_size > 1):
        start = as_float64(start) if batch_size > 1 else start
        method = build(case, batch_size=batch_size)
        whole, said, _ = learn_in_pieces(method, copy.deepcopy(start), batch, (0,))
        cut, cut_said, _ = learn_in_pieces(method, copy.deepcopy(start), batch, edges)
    assert whole.stream.followed.any()
    if batch_size == 1:
        assert bits(whole) == bits(cut)
        np.testing.assert_array_equal(said, cut_said)
    else:
        np.testing.assert_allclose(said, cut_said, rtol=1e-5, atol=1e-6)
        for a, b in zip(*(leaves(posterior.trim(each)) for each in (whole, cut)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_network_of_ones_own_follows_too():
    """Units change, not weights: nothing needs to be known of the function."""

    def own(weights, x):
        return weights[0] @ jnp.tanh(jnp.concatenate(x)) / 2

    network = CustomSizes((2, 2), custom=CustomNetwork(own, ((4,),)), bias=True)
    batch = following.changed(following.CASE, "scale", n=6000, at=3000)
    method = vectorized(network, GAUSSIAN, clip=4.0, node_noise=True, batch_size=64)
    state, update = method.update(method.init(5), batch)
    assert state.stream.followed.sum() == 1
    assert 300 < float(state.stream.scale) < 3000
    late = slice(5000, 6000)
    assert metrics.rmse(batch.value[late], update.mean[late]) < 0.9 * batch.value[late].std()


@pytest.mark.slow
def test_moments_of_values_are_those_of_one_after_the_other():
    """A batch at once, refused entries left out, before and after the number of entries they run over."""
    rng = np.random.default_rng(0)
    settings = Settings(Network((1, 1)), GAUSSIAN, False, True, robust=True, clips=True, node_noise=False)
    with algorithm():
        for n in (0, 3, RUNNING_ENTRIES - 20, RUNNING_ENTRIES):
            values = {"n": n, "mean": 0.5, "var": 2.0}
            state = {"values": values, "clipped": 0, "window": [], "watching": False}
            y, good = 3 + rng.normal(size=50), rng.random(50) < 0.8
            y[~good] = np.nan
            sums = Pair(jnp.array([1.0, 1.0, n, 0.5, 2.0, *[0.0] * 20]), jnp.zeros(25))
            entries = jnp.asarray(good), jnp.asarray(y), jnp.ones(50), jnp.zeros(20)
            after = sums_after(settings, np.log(0.9), sums, *entries, None)
            for each in y[good]:
                naive.note_value(state, each, each, 0.0, 1.0, 4.0)
            wanted = [state["values"][name] for name in ("n", "mean", "var")]
            np.testing.assert_allclose(after.high[2:5], wanted, rtol=1e-10)


# --- what a joint batch makes of it ---------------------------------------------------------------


def test_each_entry_has_its_own_noise():
    """f linear in the weights: a batch is Bayesian regression with a noise for each entry, and b learns by
    misfits without the entries' own parts. Nodes learn relative to the mean square after the batch."""
    with algorithm():
        state, batch, G, mean, var = linear("weights")
        batch.value[5] += 8  # a square beyond the largest that counts
        rng = np.random.default_rng(1)
        noise = [posterior.Gaussian(rng.normal(size=n), np.full(n, 0.05)) for n in state.counts.nodes]
        state.stream.squares[:] = (SQUARES_RUNNING - 10, 1.5)
        state = state._replace(posterior=state.posterior._replace(log_noise=tuple(noise)))
        state.posterior.noise.shape[()], state.posterior.noise.rate[()] = 2.0, 0.6
        before = [posterior.Gaussian(*map(np.copy, each)) for each in noise]
        method = vectorized(
            Network((3, 5), ()), GAUSSIAN, noise_memory=20.0, refine_every=64, node_noise=True
        )
        state, update = method.update(state, batch)
    own = np.exp(sum(each.mean[rows] for each, rows in zip(before, batch.index.T, strict=True)))
    np.testing.assert_allclose(update.noise, 0.3 * own, rtol=1e-10)
    # rows scaled so that all have noise 0.3
    root = np.sqrt(own)
    after, cov = regression(mean, np.diag(var), G / root[:, None], batch.value / root, 0.3)
    np.testing.assert_allclose(state.posterior.weights[0].mean[0], after, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(state.posterior.weights[0].var[0], np.diag(cov), rtol=1e-9)
    misfit = (batch.value - G @ after) ** 2 + np.diag(G @ cov @ G.T)
    fading = 0.95 ** np.arange(39, -1, -1)
    rate = 0.95**40 * 0.6 + fading @ (misfit / own) / 2

    S_inv = np.linalg.inv(G @ np.diag(var) @ G.T + np.diag(0.3 * own))
    share = 0.3 * own * np.diag(S_inv)  # of one entry: noise / (beta + noise)
    # of one entry: the squared residual over beta + noise
    square = (S_inv @ (batch.value - G @ mean)) ** 2 / np.diag(S_inv)
    assert square.max() > 16 * 1.5
    square, mean_square = np.minimum(square, 16 * 1.5), 1.5
    for i, each in enumerate(square):
        mean_square += share[i] * (each - mean_square) / min(SQUARES_RUNNING - 9 + i, SQUARES_RUNNING)
    np.testing.assert_allclose(state.stream.squares, (SQUARES_RUNNING, mean_square), rtol=1e-10)
    score = share * (square / mean_square - 1) / 2
    for k, (old, new) in enumerate(zip(before, state.posterior.log_noise, strict=True)):
        for node in range(len(old.mean)):
            here = batch.index[:, k] == node
            v = 1 / (1 / old.var[node] + (share[here] ** 2).sum() / 2)
            step = np.clip(v * score[here].sum(), -1, 1)
            np.testing.assert_allclose(new.mean[node], old.mean[node] + step, rtol=1e-8)
            np.testing.assert_allclose(new.var[node], v, rtol=1e-10)
    w = np.array([[naive.hats(alpha).get(knot, 0.0) for knot in range(9)] for alpha in G @ mean])
    v = 1 / (1 / 0.1 + share**2 / 2 @ w**2)
    level = np.clip(v * (score @ w), -1, 1)
    np.testing.assert_allclose(state.stream.level_noise, level, rtol=1e-8)
    np.testing.assert_allclose(state.posterior.noise.rate, rate, rtol=1e-9)
    np.testing.assert_allclose(state.stream.level_noise_var, v, rtol=1e-10)


def test_what_other_nodes_learn_moves_the_noise_of_a_node_only_as_the_noise_of_all():
    """As of the other engine (test_robust.py), in joint batches."""
    rng = np.random.default_rng(0)
    method = vectorized(Network((2, 2), (4,), bias=True), GAUSSIAN, node_noise=True, batch_size=64)
    first, index = rng.integers(5, size=(512, 2)), rng.integers(5, 10, size=(2048, 2))
    state, _ = method.update(method.init(0), Batch(first, np.exp(first[:, 0] / 4) * rng.normal(size=512)))
    before = [each.mean[:5].copy() for each in state.posterior.log_noise]
    assert np.ptp(before[0]) > 0.3
    for sd in (0.1, 3.0, rng.exponential(size=2048) ** 2):
        state, _ = method.update(state, Batch(index, sd * rng.normal(size=2048)))
        for now, then in zip(state.posterior.log_noise, before, strict=True):
            np.testing.assert_array_equal(now.mean[:5], then)
    asked = np.repeat(np.arange(5)[:, None], 2, axis=1)
    mean, _, noise = method.predict(state, asked)
    shared = float(state.posterior.noise.rate / state.posterior.noise.shape)
    by_level = [sum(w * state.stream.level_noise[j] for j, w in naive.hats(each).items()) for each in mean]
    np.testing.assert_allclose(noise, shared * np.exp(np.sum(before, axis=0) + by_level), rtol=1e-5)


def test_the_order_of_a_stream_does_not_decide_who_has_much_noise():
    """All nodes alike, sorted by one mode, in joint batches: the first have about the noise of the last."""
    rng = np.random.default_rng(0)
    index = rng.integers(40, size=(16_384, 2))
    index = index[np.argsort(index[:, 0], kind="stable")]
    effects = rng.normal(size=(40, 2))
    value = np.take_along_axis(effects, index, axis=0).sum(axis=1) + 0.5 * rng.normal(size=len(index))
    method = vectorized(Network((2, 2), (4,), bias=True), GAUSSIAN, node_noise=True, batch_size=64)
    state, _ = method.update(method.init(0), Batch(index, value))
    noise = np.sqrt(method.predict(state, np.repeat(np.arange(40)[:, None], 2, axis=1)).noise)
    assert noise.max() / noise.min() < 3
    assert 1 / 1.6 < noise[:5].mean() / noise[-5:].mean() < 1.6


def test_a_node_moves_its_noise_by_at_most_1_in_a_batch():
    with algorithm():
        state, batch, *_ = linear("weights")
        method = vectorized(Network((3, 5), ()), GAUSSIAN, refine_every=64, node_noise=True)
        state = state._replace(
            posterior=state.posterior._replace(
                log_noise=tuple(
                    posterior.Gaussian(np.zeros(n), np.full(n, node_noise_var(2))) for n in state.counts.nodes
                )
            )
        )
        state.stream.squares[:] = (1000, 1)
        state, _ = method.update(state, Batch(batch.index, 100 * batch.value))
    moved = np.concatenate([each.mean for each in state.posterior.log_noise])
    assert moved.max() == 1.0
    assert np.count_nonzero(moved == 1.0) > 5


def test_a_joint_batch_clips_by_the_variance_before_it():
    """The clipped batch is the batch with the values clipped by hand; its evidence is that of true values."""
    with algorithm():
        state, batch, G, mean, var = linear("weights")
        value = batch.value.copy()
        value[[3, 17]] += (50, -70)
        bound = 2 * np.sqrt(np.einsum("np,p,np->n", G, var, G) + 0.3)
        by_hand = np.clip(value, G @ mean - bound, G @ mean + bound)
        network, settings = Network((3, 5), ()), {"noise_memory": 50.0, "refine_every": 64}
        got, said = vectorized(network, GAUSSIAN, clip=2.0, **settings).update(
            copy.deepcopy(state), Batch(batch.index, value)
        )
        plain, other = vectorized(network, GAUSSIAN, **settings).update(state, Batch(batch.index, by_hand))
    assert said.clipped == int(got.counts.clipped) == np.count_nonzero(by_hand != value) >= 2
    for a, b in zip(leaves(got.posterior[:2]), leaves(plain.posterior[:2]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(np.array(said[:3]), np.array(other[:3]), rtol=1e-8, atol=1e-10)
    # the noise learns from true values, unless they are wild
    assert got.posterior.noise.rate > plain.posterior.noise.rate
    by_hand = np.clip(value, -WILD, WILD)
    wanted = GAUSSIAN.log_evidence(value, said.mean, said.var, said.noise)
    np.testing.assert_allclose(said.log_evidence, wanted, rtol=1e-9)
    np.testing.assert_allclose(got.stream.mean, by_hand.mean(), rtol=1e-9)
    np.testing.assert_allclose(got.stream.var, by_hand.var(), rtol=1e-9)


def test_a_joint_batch_widens_a_node_for_each_of_its_entries():
    """(1 + 1/M)^n before the batch, up to the prior; a node of which all entries are refused stays."""
    with algorithm():
        state, batch, G, mean, var = linear("factors")
        value = batch.value.copy()
        alone = batch.index[:, 0] == 0
        value[alone] = np.nan
        wide, at = var.copy(), 0
        for k, factor in enumerate(state.posterior.factors):
            rows = batch.index[~alone, k]
            n = np.repeat(np.bincount(rows, minlength=len(factor.var)), factor.var.shape[1])
            part = var[at : at + n.size]
            wide[at : at + n.size] = np.maximum(part, np.minimum(0.875, part * 1.25**n))
            at += n.size
        offset = state.posterior.weights[0].mean[0, 8] / 3
        after, cov = regression(mean, np.diag(wide), G[~alone], value[~alone] - offset, 0.3)
        method = vectorized(Network((3, 5), ()), GAUSSIAN, PRIOR, refine_every=64, memory=4.0)
        old = copy.deepcopy(state.posterior.factors[0])
        state, update = method.update(state, Batch(batch.index, value))
    assert update.refused == np.count_nonzero(alone) > 0
    got = [np.concatenate([p.ravel() for p in each]) for each in zip(*state.posterior.factors, strict=True)]
    np.testing.assert_allclose(got[0], after, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(got[1], np.diag(cov), rtol=1e-9)
    for part, before in zip(state.posterior.factors[0], old, strict=True):
        np.testing.assert_array_equal(part[0], before[0])


@pytest.mark.slow
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200, 1e25])
@pytest.mark.parametrize("batch_size", [256, 1])
def test_a_refused_entry_changes_nothing(bad, batch_size):
    case = following.CASES["memory"]
    batch = stream(case, 20)
    states = []
    for value in (batch.value, np.insert(batch.value, 9, bad)):
        index = batch.index if len(value) == 20 else np.insert(batch.index, 9, (89, 79), axis=0)
        state = posterior.init(case.network, following.PRIOR, 3, node_noise=True)
        state = posterior.grow(state, case.network, following.PRIOR, nodes_of(case))
        for factor in state.posterior.factors:
            factor.var[:] *= 0.5  # or nothing could be widened
        states.append(build(case, batch_size=batch_size).update(state, Batch(index, value))[0])
    assert [int(state.counts.refused) for state in states] == [0, 1]
    good, other = states
    for a, b in zip(leaves(good.posterior), leaves(other.posterior), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert other.posterior.log_noise[0].var[89] == node_noise_var(2)
    np.testing.assert_allclose(good.stream.var, other.stream.var, rtol=1e-4)


@pytest.mark.slow
def test_an_outlier_is_harmless_and_constant_values_stay_healthy():
    case = following.CASE
    batch = stream(case, 8192)
    value = batch.value.copy()
    value[4000] = 1e6
    method = build(case, batch_size=128)
    start = posterior.init(case.network, following.PRIOR, 3, node_noise=True)
    clean, _ = method.update(copy.deepcopy(start), batch)
    state, update = method.update(copy.deepcopy(start), Batch(batch.index, value))
    assert update.clipped >= 1
    index = stream(case, 300, seed=4).index
    wanted, got = (method.predict(each, index).mean for each in (clean, state))
    assert metrics.rmse(wanted, got) < 0.05
    constant, update = method.update(copy.deepcopy(start), Batch(batch.index, np.ones(8192)))
    assert_healthy(constant)
    assert np.isfinite(np.array(update[:4])).all()


@pytest.mark.slow
def test_movielens_100k_as_the_sequential_engine(data_folder):
    """RMSE and log density held out: what the two differ by is a tenth of what noise per node gains."""
    path = data_folder / "movielens-100k.npz"
    if not path.is_file():
        pytest.skip(f"no movielens-100k: {path} is not there")
    data = np.load(path)
    index, value = data["indices"].astype(np.int64), data["values"].astype(float)
    order = np.random.default_rng(0).permutation(len(value))
    index, value = index[order], (value[order] - 3.5) / 1.1
    train, test = Batch(index[:90_000], value[:90_000]), Batch(index[90_000:], value[90_000:])
    network, scores = Network((8, 8), bias=True, multilinear=32), []
    for method in (
        sequential(network, GAUSSIAN, clip=4.0, node_noise=True),
        vectorized(network, GAUSSIAN, batch_size=64, clip=4.0, node_noise=True),
        sequential(network, GAUSSIAN),
    ):
        state, update = method.update(method.init(0), train)
        said = method.predict(state, test.index)
        density = GAUSSIAN.log_evidence(test.value, *said).mean()
        scores.append((metrics.rmse(test.value, said.mean), density, update.clipped))
    wanted, got, one_noise = np.array(scores)
    assert abs(got[0] - wanted[0]) < 0.004
    assert abs(got[1] - wanted[1]) < 0.004
    assert got[1] > one_noise[1] + 0.02
    assert 0 < got[2] < 100
