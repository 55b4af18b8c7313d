"""Both engines learn ordered levels as the oracle does; the kernel's quadrature against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

import naive
from cases import Case, assert_same_state, learn_in_pieces, nodes_of, oracle_start, questions, start, stream
from spidertensor.method import Batch
from spidertensor.spider.likelihoods import PROBIT
from spidertensor.spider.likelihoods.ordinal import Ordinal, cut_points, evidence, ordinal
from spidertensor.spider.posterior import Prior
from spidertensor.spider.sequential import sequential

CASES = [
    Case((3, 2), (7,), "relu", "ordinal", bias=True, multilinear=3, noise_memory=50.0),
    Case((3, 2), (7,), "tanh", "ordinal", True, True, 3, 50.0, False, 0.7, True, 20.0),
]
NAMES = ["plain", "curved-noisy-memory"]


@pytest.mark.parametrize("low", [-np.inf, -9.0, -3.0, -1e-5, 0.0, 2.0, 35.0])
@pytest.mark.parametrize("width", [0.3, 2.0, 30.0, np.inf])
@pytest.mark.parametrize(("alpha", "beta", "noise"), [(0.0, 0.02, 0.7), (1.5, 4.0, 0.01), (-3.0, 1e-6, 1.0)])
def test_the_quadrature_equals_the_truncated_normal(low, width, alpha, beta, noise):
    high = (2.0 if math.isinf(low) else low) + min(width, 30.0 if math.isinf(low) else np.inf)
    got = evidence(low, high, alpha, beta, noise)
    wanted = naive.evidence({"likelihood": "ordinal"}, (low, high), alpha, beta, noise)
    np.testing.assert_allclose(got[:3], wanted, rtol=1e-9, atol=1e-9)
    assert 0 <= got[3] <= 1 / (beta + noise)


def test_narrow_intervals_are_values_and_far_ones_their_near_end():
    """A level between cut points that are close is a value of f + noise, as the Gaussian's."""
    log_z, da, _, c = evidence(0.7, 0.7 + 1e-9, 0.2, 0.3, 0.5)
    assert log_z - math.log(1e-9) == pytest.approx(-0.5 * math.log(2 * math.pi * 0.8) - 0.25 / 1.6, rel=1e-6)
    assert (da, c) == (pytest.approx(0.5 / 0.8), pytest.approx(1 / 0.8))
    log_z, da, _, c = evidence(1e6, math.inf, 0.0, 0.5, 0.5)
    assert (da, c) == (pytest.approx(1e6), pytest.approx(1.0))
    assert log_z == pytest.approx(-5e11)


def test_cut_points_are_in_order_and_leave_each_level_its_share():
    counts = np.array([1.0, 1e7, 3.0, 2.0, 1e9, 1.0])
    cuts = cut_points(counts)
    assert (np.diff(cuts) > 0).all()
    assert (cuts[0], cuts[-1]) == (-math.inf, math.inf)
    np.testing.assert_allclose(np.diff(ndtr(cuts)), counts / counts.sum(), rtol=1e-6, atol=1e-16)
    learned = Ordinal((1.0, 2.0, 5.0), np.array([1.0, 2.0, 7.0]))
    np.testing.assert_allclose(learned.probabilities(0, 1e-12, 1.0), [0.1, 0.2, 0.7])


def test_two_levels_are_a_probit():
    """With cut points that stay at 0: a million entries of each level before."""
    network = CASES[0].network
    methods = [sequential(network, each, Prior()) for each in (ordinal((0.0, 1.0)), PROBIT)]
    batch = stream(CASES[0], 40)
    batch = Batch(batch.index, (batch.value > 3).astype(float))
    states = [method.init(3) for method in methods]
    states[0].stream.level_counts[:] = 1e12
    states[0].posterior.noise.shape[()] = states[0].posterior.noise.rate[()] = 1e12  # noise 1, as in Phi
    updates = [method.update(state, batch)[1] for method, state in zip(methods, states, strict=True)]
    for row in (0, 1, 3):  # mean, var, log evidence
        np.testing.assert_allclose(updates[0][row], updates[1][row], rtol=1e-5, atol=1e-6)


def compare(case: Case, method, cuts, rtol: float) -> None:
    model, batch, state = case.oracle(16), stream(case, 40), start(case)
    wanted, wanted_update = naive.learn(model, oracle_start(case, state), batch.index, batch.value)
    state, got, _ = learn_in_pieces(method, state, batch, cuts)
    np.testing.assert_allclose(got, wanted_update, rtol=rtol, atol=rtol)
    assert_same_state(case, state, wanted, rtol, rtol)
    assert sum(wanted["levels"].values()) == 45
    predicted = np.array(method.predict(state, questions(case)))
    expected = naive.predict(model, wanted, questions(case), nodes_of(case))
    np.testing.assert_allclose(predicted, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_the_sequential_engine_equals_the_oracle(case):
    compare(case, case.method(16), (0, 7, 8, 30), rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "cuts"), [(0, (0, 8, 16, 24, 32)), (1, (0, 8, 16, 24, 32))])
def test_the_vectorized_engine_equals_the_oracle(number, cuts):
    vectorized = pytest.importorskip("test_vectorized", reason="needs jax")
    with vectorized.algorithm():
        compare(CASES[number], vectorized.build(CASES[number], batch_size=1), cuts, rtol=1e-7)


@pytest.mark.slow
def test_a_batch_at_once_in_float32_learns_the_same_place():
    vectorized = pytest.importorskip("test_vectorized", reason="needs jax")
    rng = np.random.default_rng(0)
    index = rng.integers(8, size=(6000, 2))
    z = np.sin(3.0 * index[:, 0]) + rng.normal(size=6000) * 0.8
    batch = Batch(index, np.digitize(z, [-1.0, 0.0, 0.3, 1.5]) + 1.0)
    one = sequential(CASES[0].network, ordinal((1.0, 2.0, 3.0, 4.0, 5.0)))
    many = vectorized.vectorized(CASES[0].network, ordinal((1.0, 2.0, 3.0, 4.0, 5.0)), batch_size=64)
    (a, told), (b, said) = (method.update(method.init(0), batch) for method in (one, many))
    np.testing.assert_array_equal(a.stream.level_counts, b.stream.level_counts)
    late = slice(4000, None)
    assert abs(told.log_evidence[late].mean() - said.log_evidence[late].mean()) < 0.01
    assert np.abs(told.mean[late] - said.mean[late]).mean() < 0.05
