"""Weights of entries: an entry of weight w is w observations of its value. mathematics.md section 27."""

from __future__ import annotations

import numpy as np
import pytest

import naive
from cases import (
    BAG_CASES,
    CASES,
    NEVER,
    PRIOR,
    Case,
    assert_same_state,
    fix,
    fixed_noise,
    learn_in_pieces,
    listed,
    name,
    nodes_of,
    oracle_start,
    start,
    stream,
)
from exact import algorithm, linear, regression
from naive import as_float64
from spidertensor.evaluation.floors import biases
from spidertensor.method import Batch
from spidertensor.spider import posterior
from spidertensor.spider.committee import MANY_ENTRIES, committee
from spidertensor.spider.likelihoods import GAUSSIAN, likelihood_by_name
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Prior
from spidertensor.spider.sequential import sequential
from spidertensor.testing.states import leaves

# every likelihood, with and without curvature, clipping, noise per node, memory and attributes
COUNTS = Case((2, 3), (), "tanh", "count", bias=True, multilinear=2, noise_memory=50.0, clip=2.0)
WEIGHTED = [CASES[i] for i in (0, 1, 3, 12, 15, 18, 24, 29, 30)] + BAG_CASES[2:4] + [COUNTS]


def weighted(case: Case, n: int, seed: int = 3) -> Batch:
    """A stream with weights from 0.05 to 20, some of them 1."""
    weight = np.exp(np.random.default_rng(seed).uniform(-3, 3, n))
    weight[::5] = 1.0
    return stream(case, n)._replace(weight=weight)


@pytest.mark.parametrize("case", WEIGHTED, ids=name)
def test_equals_the_oracle(case):
    method, model, batch = case.method(), case.oracle(), weighted(case, 60)
    # by quadrature in both: the kernel's nodes are exact to about 1e-4 where an entry says much
    rtol, atol = (1e-9, 1e-11) if case.likelihood == "gaussian" else (2e-3, 2e-4)
    state = start(case)
    wanted, wanted_update = naive.learn(
        model, oracle_start(case, state), batch.index, batch.value, listed(batch.bags), batch.weight
    )
    state, update, rejected = learn_in_pieces(method, state, batch)
    np.testing.assert_allclose(update, wanted_update, rtol=rtol, atol=atol)
    assert_same_state(case, state, wanted, rtol, atol)
    assert rejected == wanted["rejected"]


@pytest.mark.slow
@pytest.mark.parametrize("case", [CASES[29], CASES[30], CASES[3], COUNTS], ids=name)
def test_the_vectorized_engine_equals_the_oracle(case):
    """By single entries, as section 7 promises."""
    pytest.importorskip("jax", reason="needs the extra: pip install spidertensor[jax]")
    from spidertensor.spider.vectorized import vectorized

    batch, model = weighted(case, 40), case.oracle()
    names = ("curvature", "noise_memory", "clip", "node_noise", "memory")
    with algorithm():
        method = vectorized(
            case.network,
            likelihood_by_name(case.likelihood),
            PRIOR,
            refine_every=NEVER,
            batch_size=1,
            **{each: getattr(case, each) for each in names},
        )
        state = start(case)
        wanted, wanted_update = naive.learn(
            model, oracle_start(case, state), batch.index, batch.value, None, batch.weight
        )
        state, update, _ = learn_in_pieces(method, state, batch, (0, 8, 16, 24, 32))
    rtol, atol = (1e-9, 1e-10) if case.likelihood == "gaussian" else (2e-3, 2e-4)
    np.testing.assert_allclose(update, wanted_update, rtol=rtol, atol=atol)
    assert_same_state(case, state, wanted, rtol, atol)


# --- repeated entries -----------------------------------------------------------------------------


def repeated(batch: Batch) -> Batch:
    """Every entry as often as its weight says."""
    rows = np.repeat(np.arange(len(batch.value)), batch.weight.astype(int))
    return Batch(batch.index[rows], batch.value[rows])


@pytest.mark.parametrize("curvature", [False, True])
def test_one_entry_is_the_regression_on_its_repeats(curvature):
    """Known factors, no hidden layer, known noise: the exact posterior after six equal rows."""
    case = Case((3, 5), (), "tanh", "gaussian", curvature)
    state = fixed_noise(start(case), 0.3)
    for factor in state.posterior.factors:
        fix(factor)
    x = np.concatenate([state.posterior.factors[0].mean[1], state.posterior.factors[1].mean[0]])
    weights, G = state.posterior.weights[0], np.tile(np.append(x, 1) / 3, (6, 1))  # sqrt(3 + 5 + 1)
    mean, cov = regression(weights.mean[0], np.diag(weights.var[0]), G, np.full(6, 1.7), 0.3)

    state, _ = case.method().update(state, Batch(np.array([[1, 0]]), np.array([1.7]), weight=np.array([6.0])))
    np.testing.assert_allclose(state.posterior.weights[0].mean[0], mean, rtol=1e-9)
    np.testing.assert_allclose(state.posterior.weights[0].var[0], np.diag(cov), rtol=1e-9)


def test_weights_of_a_node_add_up():
    """Nodes with a bias each and nothing else to learn: the precision is that of all weights together."""
    case = Case((0, 0), (), "tanh", "gaussian", bias=True)
    state = posterior.grow(start(case), case.network, PRIOR, nodes_of(case))
    state, batch = as_float64(fixed_noise(state, 0.3)), weighted(case, 60)
    fix(state.posterior.weights[0])
    fix(state.posterior.factors[1])
    offset = state.posterior.weights[0].mean[0, 0] + state.posterior.factors[1].mean[batch.index[:, 1], 0]
    (mean, var), rows = (part[:, 0].copy() for part in state.posterior.factors[0]), batch.index[:, 0]
    precision = 1 / var + np.bincount(rows, batch.weight / 0.3)
    wanted = (mean / var + np.bincount(rows, batch.weight * (batch.value - offset) / 0.3)) / precision

    state, _ = case.method().update(state, batch)
    np.testing.assert_allclose(state.posterior.factors[0].mean[:, 0], wanted, rtol=1e-8)
    np.testing.assert_allclose(state.posterior.factors[0].var[:, 0], 1 / precision, rtol=1e-8)


@pytest.mark.parametrize("free", ["weights", "factors"])
def test_weight_equals_repeats_in_a_joint_batch(free):
    pytest.importorskip("jax", reason="needs the extra: pip install spidertensor[jax]")
    from spidertensor.spider.vectorized import vectorized

    case = Case((3, 5), (), "tanh", "gaussian", noise_memory=50.0)
    states = []
    with algorithm():
        method = vectorized(case.network, likelihood_by_name("gaussian"), PRIOR, refine_every=NEVER)
        for repeats in (False, True):
            state, batch, *_ = linear(free)
            batch = batch.part(0, 20)._replace(weight=1.0 + np.arange(20) % 4)
            states.append(method.update(state, repeated(batch) if repeats else batch)[0])
    got, wanted = ([*state.posterior.weights, *state.posterior.factors] for state in states)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one.mean, other.mean, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(one.var, other.var, rtol=1e-8)


@pytest.mark.parametrize("likelihood", ["gaussian", "probit", "count"])
def test_weight_is_close_to_repeats(likelihood):
    """An entry of weight 3, three of weight 1, thirty of weight 0.1: nearly the same."""
    case = Case((0, 0), (), "tanh", likelihood, bias=True, noise_memory=10_000.0)
    batch, ways = stream(case, 300), []
    for times, weight in ((1, 3.0), (3, 1.0), (30, 0.1), (1, 1.0)):
        rows = np.repeat(np.arange(300), times)
        entries = Batch(batch.index[rows], batch.value[rows], weight=np.full(len(rows), weight))
        state, _ = case.method().update(start(case), entries)
        ways.append(case.method().predict(state, batch.index))
    once, *others, unweighted = ways
    for other in others:
        assert np.abs(other.mean - once.mean).max() < 0.35 * np.abs(unweighted.mean - once.mean).max()
        assert np.abs(np.log(other.var / once.var)).max() < 0.5 * np.log(unweighted.var / once.var).mean()
        assert (np.abs(other.noise - once.noise) <= 0.7 * once.noise).all()


# --- weight 1, and no weight at all ---------------------------------------------------------------


@pytest.mark.parametrize("case", [CASES[1], CASES[29], COUNTS], ids=name)
def test_weight_one_is_no_weight_bit_for_bit(case):
    batch, found = stream(case, 60), []
    for weight in (None, np.ones(60)):
        state, update = case.method(16).update(start(case, np.float32), batch._replace(weight=weight))
        found.append([*leaves(state), *update[:4]])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_calls_of_few_entries_learn_the_same_bits():
    """Calls below MANY_ENTRIES go through few_entries.py."""
    network = Network((3, 3), (7,), "relu", True, 2)
    members = [sequential(network, GAUSSIAN, Prior(bias_var=var), clip=4.0) for var in (0.02, 0.2)]
    method, rng = committee(members, GAUSSIAN, clip=4.0), np.random.default_rng(0)
    index, n = rng.integers(0, 9, (2 * MANY_ENTRIES, 2)), 2 * MANY_ENTRIES
    batch = Batch(index, rng.normal(size=n), weight=np.exp(rng.normal(size=n)))
    whole, of_whole = method.update(method.init(0), batch)
    state, updates = method.init(0), []
    for first in range(0, n, 50):
        state, update = method.update(state, batch.part(first, first + 50))
        updates.append(update)
    for one, other in zip(leaves(whole), leaves(state), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(of_whole.mean, np.concatenate([each.mean for each in updates]))


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (np.ones(3), r"weights of shape \(3,\)"),
        (np.array([1.0, 0.0]), "positive and finite"),
        (np.array([1.0, np.nan]), "positive and finite"),
        (np.array([np.inf, 1.0]), "positive and finite"),
    ],
)
def test_impossible_weights_are_refused(weight, reason):
    case = CASES[0]
    with pytest.raises(ValueError, match=reason):
        case.method().update(start(case), stream(case, 2)._replace(weight=weight))


def test_methods_without_weights_refuse_them():
    batch = Batch(np.zeros((2, 1), np.int64), np.ones(2), weight=np.array([1.0, 2.0]))
    method = biases(1, GAUSSIAN)
    with pytest.raises(ValueError, match="counts every entry once: leave the weights out"):
        method.update(method.init(0), batch)
