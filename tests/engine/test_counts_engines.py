"""Both engines learn counts as the oracle does, whose integrals are scipy's: mathematics.md section 17.

The engines' own quadrature has twenty nodes. At the start, where the level is hardly known, that is exact to
about 1e-4; a state that knows its level shows the rest of the algorithm.
"""

from __future__ import annotations

import numpy as np
import pytest

import naive
from cases import Case, assert_same_state, learn_in_pieces, nodes_of, oracle_start, questions, start, stream
from spidertensor.method import Batch
from spidertensor.spider.likelihoods import COUNT

CASES = [
    Case((3, 2), (7,), "relu", "count", bias=True, multilinear=3, noise_memory=50.0),
    Case((3, 2), (7,), "tanh", "count", curvature=True, bias=True, multilinear=3, clip=0.2),
    Case((3, 2), (7,), "relu", "count", bias=True, multilinear=3, noise_memory=50.0, memory=5.0, clip=0.2),
]
NAMES = ["plain", "curved-clipped", "memory-clipped"]


def early(case: Case):
    """A state that knows a little of its counts, so that its predictions are not wide."""
    state = start(case)
    for _, var in (*state.posterior.factors, *state.posterior.weights):
        var *= 0.1
    state.posterior.factors[0].mean[0, 0] = -14.0  # the bias of a node: f is far below the level
    state.stream.mean[()], state.stream.var[()] = 0.4, 0.1
    state.posterior.noise.shape[()], state.posterior.noise.rate[()] = 3.0, 1.5
    return state


def compare(case: Case, method, cuts, rtol: float) -> dict:
    model, batch, state = case.oracle(16), stream(case, 40), early(case)
    batch.value[batch.index[:, 0] == 0] = 0
    batch.value[batch.index[:, 0] == 1] *= 5  # some are clipped
    wanted, wanted_update = naive.learn(model, oracle_start(case, state), batch.index, batch.value)
    state, got, _ = learn_in_pieces(method, state, batch, cuts)
    np.testing.assert_allclose(got, wanted_update, rtol=rtol, atol=rtol)
    assert_same_state(case, state, wanted, rtol, rtol)
    predicted = np.array(method.predict(state, questions(case)))
    expected = naive.predict(model, wanted, questions(case), nodes_of(case))
    np.testing.assert_allclose(predicted, expected, rtol=rtol, atol=rtol)
    return wanted


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_the_sequential_engine_equals_the_oracle(case):
    wanted = compare(case, case.method(16), (0, 7, 8, 30), rtol=1e-6)
    assert wanted["clipped"] > 0 or case.clip is None


@pytest.mark.slow
@pytest.mark.parametrize(("number", "cuts"), [(2, range(40)), (1, (0, 7, 8, 30))])
def test_the_vectorized_engine_equals_the_oracle(number, cuts):
    vectorized = pytest.importorskip("test_vectorized", reason="needs jax")
    case = CASES[number]
    with vectorized.algorithm():
        compare(case, vectorized.build(case), cuts, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [256, 1])
def test_float32_equals_the_sequential_engine(batch_size):
    vectorized = pytest.importorskip("test_vectorized", reason="needs jax")
    case, batch = CASES[2], stream(CASES[2], 40)
    batch = Batch(batch.index, np.where(np.arange(40) % 9 == 0, 1e6, batch.value))
    results = [
        learn_in_pieces(method, start(case, np.float32), batch, range(40))
        for method in (case.method(16), vectorized.build(case, batch_size=batch_size))
    ]
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=2e-3, atol=2e-3)
    for a, b in zip(*(each[0].posterior.noise for each in results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2)


@pytest.mark.slow
def test_a_batch_at_once_learns_the_level_and_the_noise():
    """Not entry by entry, but to the same place."""
    vectorized = pytest.importorskip("test_vectorized", reason="needs jax")
    rng = np.random.default_rng(0)
    index = rng.integers(5, size=(6000, 2))
    value = rng.negative_binomial(2, 2 / (2 + np.exp(5 + 0.5 * np.sin(index[:, 0])))).astype(float)
    method = vectorized.vectorized(CASES[0].network, COUNT, clip=4.0, batch_size=64)
    state, update = method.update(method.init(0), Batch(index, value))
    late = slice(4000, None)
    truth = 5 + 0.5 * np.sin(index[late, 0])
    assert np.sqrt(np.mean((update.mean[late] - truth) ** 2)) < 0.1
    assert 0.4 < COUNT.noise_var(*state.posterior.noise) < 0.6
