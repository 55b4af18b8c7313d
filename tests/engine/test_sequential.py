"""The compiled kernel equals the oracle, is exact where exactness is possible, and never breaks its state.

The kernel computes in the dtype of the state, so a state in float64 shows the algorithm without rounding.
Log and exp inside the refinement are float32 by design: streams with refinement agree to that.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import norm

import naive
from cases import (
    CASES,
    NEVER,
    Case,
    assert_healthy,
    assert_same_state,
    fix,
    fixed_noise,
    learn_in_pieces,
    name,
    nodes_of,
    oracle_start,
    questions,
    start,
    stream,
    to_oracle,
)
from naive import as_float64
from spidertensor.method import Batch
from spidertensor.spider import posterior
from spidertensor.spider.likelihoods import GAUSSIAN
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Prior
from spidertensor.spider.sequential import sequential
from spidertensor.spider.spike_slab import inclusion


def compare(case: Case, dtype, refine_every: int, rtol: float, atol: float, n: int = 80) -> dict:
    """Everything the kernel returns against the oracle; the oracle's last state for further questions."""
    method, model = case.method(refine_every), case.oracle(refine_every)
    state, batch = start(case, dtype), stream(case, n)
    wanted, wanted_update = naive.learn(model, oracle_start(case, state), batch.index, batch.value)
    state, update, rejected = learn_in_pieces(method, state, batch)
    np.testing.assert_allclose(update, wanted_update, rtol=rtol, atol=atol, err_msg="update")
    assert_same_state(case, state, wanted, rtol, atol)
    np.testing.assert_allclose(
        np.array(method.predict(state, questions(case))),
        naive.predict(model, wanted, questions(case), nodes_of(case)),
        rtol=rtol,
        atol=atol,
        err_msg="prediction",
    )
    assert rejected == int(state.counts.rejected)
    return wanted | {"got_rejected": rejected}


# --- equality -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=name)
def test_equals_the_oracle(case):
    result = compare(case, np.float64, NEVER, rtol=1e-9, atol=1e-11)
    assert result["got_rejected"] == result["rejected"]


@pytest.mark.parametrize("case", CASES, ids=name)
def test_equals_the_oracle_with_refinement(case):
    """Five refinements in 80 entries; what is left is the float32 logarithm (6e-8) of each of them."""
    result = compare(case, np.float64, 16, rtol=1e-6, atol=1e-6)
    assert result["got_rejected"] == result["rejected"]


@pytest.mark.parametrize("case", [CASES[i] for i in (0, 1, 2, 3, 5, 7, 9, 10)], ids=name)
def test_float32_as_shipped(case):
    compare(case, np.float32, 16, rtol=1e-3, atol=1e-4)


# --- exact special cases --------------------------------------------------------------------------


def linear_regression(mean, var, g, y, offset, noise):
    """Exact posterior of y = offset + g w + noise, w ~ N(mean, diag var): marginal means and variances."""
    precision = np.diag(1 / var) + np.outer(g, g) / noise
    cov = np.linalg.inv(precision)
    return cov @ (mean / var + g * (y - offset) / noise), np.diag(cov)


@pytest.mark.parametrize("curvature", [False, True])
def test_linear_network_is_bayesian_linear_regression(curvature):
    """Factors known, no hidden layer: f is linear in the weights, nothing is approximate."""
    case = Case((3, 5), (), "tanh", "gaussian", curvature)
    state = fixed_noise(start(case), 0.3)
    for factor in state.posterior.factors:
        fix(factor)
    x = np.concatenate([state.posterior.factors[0].mean[1], state.posterior.factors[1].mean[0]])
    g = np.append(x, 1) / 3  # sqrt(3 + 5 + 1)
    weights = state.posterior.weights[0]
    mean, var = linear_regression(weights.mean[0], weights.var[0], g, 1.7, 0.0, 0.3)

    state, _ = case.method().update(state, Batch(np.array([[1, 0]]), np.array([1.7])))
    np.testing.assert_allclose(state.posterior.weights[0].mean[0], mean, rtol=1e-9)
    np.testing.assert_allclose(state.posterior.weights[0].var[0], var, rtol=1e-9)


@pytest.mark.parametrize("curvature", [False, True])
def test_one_free_node_is_bayesian_linear_regression(curvature):
    """All but one node known: f is linear in that node's bias, multilinear and deep part."""
    case = Case((3, 5), (), "tanh", "gaussian", curvature, bias=True, multilinear=2)
    state = fixed_noise(start(case), 0.3)
    (free, known), weights = state.posterior.factors, state.posterior.weights[0]
    fix(known)
    fix(weights)
    W = weights.mean[0] / 3
    bias, m, deep = known.mean[0, 0], known.mean[0, 1:3], known.mean[0, 3:]
    g = np.concatenate([[1.0], m, W[:3]])
    offset = bias + W[3:8] @ deep + W[8]
    mean, var = linear_regression(free.mean[1], free.var[1], g, -1.1, offset, 0.3)

    state, _ = case.method().update(state, Batch(np.array([[1, 0]]), np.array([-1.1])))
    np.testing.assert_allclose(state.posterior.factors[0].mean[1], mean, rtol=1e-9)
    np.testing.assert_allclose(state.posterior.factors[0].var[1], var, rtol=1e-9)


@pytest.mark.parametrize("y", [0.0, 1.0])
def test_linear_probit_has_exact_moments(y):
    """Means and variances of the weights under Phi(z f) N(w), by quadrature over f."""
    case = Case((3, 5), (), "tanh", "probit")
    state = start(case)
    for factor in state.posterior.factors:
        fix(factor)
    x = np.concatenate([state.posterior.factors[0].mean[1], state.posterior.factors[1].mean[0]])
    g = np.append(x, 1) / 3
    mean, var = (np.copy(part[0]) for part in state.posterior.weights[0])
    alpha, beta = g @ mean, g**2 @ var
    sd, z = np.sqrt(beta), 2 * y - 1

    def moment(power):
        tilted = lambda f: f**power * ndtr(z * f) * norm.pdf(f, alpha, sd)  # noqa: E731
        return quad(tilted, alpha - 12 * sd, alpha + 12 * sd, epsabs=1e-13, epsrel=1e-12)[0]

    z0, z1, z2 = moment(0), moment(1) / moment(0), moment(2) / moment(0)
    cov = var * g  # of each weight with f
    wanted_mean = mean + cov / beta * (z1 - alpha)
    wanted_var = var - (cov / beta) ** 2 * (beta - (z2 - z1**2))

    state, update = case.method().update(state, Batch(np.array([[1, 0]]), np.array([y])))
    np.testing.assert_allclose(update.log_evidence, np.log(z0), rtol=1e-9)
    np.testing.assert_allclose(state.posterior.weights[0].mean[0], wanted_mean, rtol=1e-8)
    np.testing.assert_allclose(state.posterior.weights[0].var[0], wanted_var, rtol=1e-8)


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=name)
def test_slab_only_makes_refinement_the_identity(case):
    """rho0 = 1 is a Gaussian prior and the site already is that prior: refining changes nothing."""
    slab = Prior(slab_var=0.5, rho0=1.0)  # 1/slab_var is exact in float32: the site is the prior
    batch = stream(case, 80)
    states = []
    for refine_every in (1, NEVER):
        state = as_float64(posterior.init(case.network, slab, 3))
        state, _ = case.method(refine_every, slab).update(state, batch)
        states.append(state)
    refined, untouched = states
    for a, b in zip(refined.posterior.weights, untouched.posterior.weights, strict=True):
        np.testing.assert_allclose(a.mean, b.mean, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(a.var, b.var, rtol=1e-8)
    for site in refined.sites:
        np.testing.assert_allclose(site.precision, 2, rtol=1e-7)
        np.testing.assert_allclose(site.precision_mean, 0, atol=1e-7)
        assert (inclusion(site, 1.0) == 1).all()


def test_noise_forgets():
    """lam = 1 - 1/memory: b/a becomes the exponential average of E[(y - f)²], f once y is known."""
    case = Case((2, 3, 4), (7, 16), "relu", "gaussian", noise_memory=4.0)
    batch = stream(case, 30)
    state, update = case.method().update(start(case), batch)
    share = update.noise / (update.var + update.noise)
    loss = (share * (batch.value - update.mean)) ** 2 + share * update.var
    fading = 0.75 ** np.arange(29, -1, -1)
    np.testing.assert_allclose(state.posterior.noise.shape, 0.75**30 + fading.sum() / 2, rtol=1e-12)
    np.testing.assert_allclose(state.posterior.noise.rate, 0.75**30 + fading @ loss / 2, rtol=1e-12)


# --- guards ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("curvature", [False, True])
@pytest.mark.parametrize("hidden", [(), (7, 16)])
def test_no_variance_turns_negative_without_noise(hidden, curvature):
    """Noise far below the rounding of float32, and all of beta in one element: exact arithmetic leaves it a
    variance of almost 0, rounding sometimes less than that, and then that element's update is rejected."""
    case = Case((3, 5) if not hidden else (2, 3, 4), hidden, "relu", "gaussian", curvature, bias=True)
    batch = Batch(np.zeros((20, len(case.ranks)), np.int64), np.linspace(-1, 1, 20))
    rejected = 0
    for column in range(-1, case.network.layers[-1][1]):
        state = fixed_noise(start(case, np.float32), 1e-25)
        for gaussian in state.posterior.factors + state.posterior.weights:
            fix(gaussian)
        uncertain = state.posterior.factors[0] if column < 0 else state.posterior.weights[-1]
        uncertain.var[0, max(column, 0)] = 1.0
        state, update = case.method().update(state, batch)
        assert_healthy(state)
        assert np.isfinite(update.mean).all()
        assert (update.var >= 0).all()
        assert update.rejected == int(state.counts.rejected)
        rejected += update.rejected
    assert rejected > 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("curvature", [False, True])
def test_outlier_narrows_as_any_entry_does(curvature, dtype):
    """var -= var² c g² has no y in it (gaussian: c = 1/s), so an outlier must leave the variances that any
    other entry leaves: no da² - 2 db, nor dmu² - da² g², as a difference of numbers of the size of y².
    With curvature this holds where f is linear, in the biases of the nodes and of the output."""
    case = Case((2, 3, 4), (7, 16), "tanh", "gaussian", curvature, bias=True, multilinear=2)
    states = []
    for y in (0.5, 1e5):
        state, update = case.method().update(start(case, dtype), Batch(np.array([[1, 0, 0]]), np.array([y])))
        assert curvature or update.rejected == 0
        states.append(state.posterior)
    usual, outlier = states
    close = {"rtol": 1e-5, "atol": 0}
    for a, b in zip(usual.factors, outlier.factors, strict=True):
        np.testing.assert_allclose(b.var[:, 0], a.var[:, 0], **close)
    np.testing.assert_allclose(outlier.weights[-1].var[0, -1], usual.weights[-1].var[0, -1], **close)
    if not curvature:
        for a, b in zip(usual.factors + usual.weights, outlier.factors + outlier.weights, strict=True):
            np.testing.assert_allclose(b.var, a.var, **close)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
@pytest.mark.parametrize("curvature", [False, True])
def test_entry_without_finite_evidence_is_refused(bad, curvature):
    """Counted as refused, seen as an entry, and otherwise as if it had never come."""
    case = Case((2, 3, 4), (7, 16), "relu", "gaussian", curvature, noise_memory=50.0)
    batch = stream(case, 20)
    good, _ = case.method().update(start(case), batch)

    index, value = np.insert(batch.index, 9, batch.index[0], axis=0), np.insert(batch.value, 9, bad)
    state, update = case.method().update(start(case), Batch(index, value))
    elements = case.network.n_weights + sum(case.network.factor_sizes)
    assert (update.rejected, update.refused) == (int(good.counts.rejected) + elements, 1)
    assert int(state.counts.entries) == 21
    assert not np.isfinite(update.log_evidence[9])
    assert np.isfinite(np.delete(update.log_evidence, 9)).all()
    assert_same_state(case, state, to_oracle(good) | {"entries": 21, "refused": 1}, rtol=0, atol=0)


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_curvature_keeps_what_would_turn_negative(activation):
    """Large errors bend log Z: variances turn negative in exact arithmetic too, and are kept and counted."""
    case = Case((2, 3, 4), (7, 16), activation, "gaussian", curvature=True)
    state = fixed_noise(start(case), 0.05)
    batch = stream(case, 30)
    batch = Batch(batch.index, 6 * batch.value)
    wanted, _ = naive.learn(case.oracle(), oracle_start(case, state), batch.index, batch.value)
    state, update = case.method().update(state, batch)
    assert wanted["rejected"] > 10
    assert update.rejected == wanted["rejected"]
    assert_healthy(state)
    assert_same_state(case, state, wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("curvature", [False, True])
@pytest.mark.parametrize("likelihood", ["gaussian", "probit"])
@pytest.mark.parametrize("kind", ["noisy", "constant"])
def test_long_stream(likelihood, curvature, kind):
    """300,000 entries over a handful of nodes: nothing stalls into 0, inf or NaN, least of all when y never
    changes and everything about it becomes certain."""
    case = Case(
        (2, 3, 4), (7, 5), "relu", likelihood, curvature, bias=True, multilinear=2, noise_memory=10_000.0
    )
    batch = stream(case, 300_000)
    if kind == "constant":
        batch = Batch(batch.index, np.ones(len(batch.value)))
    method = case.method(256)
    state, update = method.update(start(case, np.float32), batch)
    assert_healthy(state)
    assert np.isfinite(np.array(update[:4])).all()
    assert (update.var > 0).all()
    late = np.mean(update.log_evidence[-10_000:])
    assert late > np.mean(update.log_evidence[:1000])  # it has learned something and kept it
    assert int(state.counts.entries) == 300_000
    np.testing.assert_allclose(state.counts.log_evidence, update.log_evidence.sum(), rtol=1e-9)


def test_settings_that_make_no_sense():
    with pytest.raises(ValueError, match="refine_every"):
        sequential(Network((2, 2)), GAUSSIAN, refine_every=0)
    with pytest.raises(ValueError, match="noise_memory"):
        sequential(Network((2, 2)), GAUSSIAN, noise_memory=1.0)
    with pytest.raises(ValueError, match="likelihood"):
        sequential(Network((2, 2)), "poisson")
