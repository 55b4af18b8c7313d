"""A committee on the vectorised engine: compiled once for all members, and safe in threads."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

jax = pytest.importorskip("jax", reason="needs the extra: pip install spidertensor[jax]")
import jax.numpy as jnp  # noqa: E402

from spidertensor import CustomNetwork, Inference, SpiderClassifier, SpiderRegressor  # noqa: E402
from spidertensor.estimator.parameters import MEMBERS  # noqa: E402
from spidertensor.method import Batch  # noqa: E402
from spidertensor.spider.committee import MANY_ENTRIES, committee  # noqa: E402
from spidertensor.spider.likelihoods import GAUSSIAN  # noqa: E402
from spidertensor.spider.network import Network  # noqa: E402
from spidertensor.spider.vectorized import vectorized  # noqa: E402
from spidertensor.spider.vectorized_updates import _inverse, evaluate, learn  # noqa: E402
from spidertensor.testing.states import bits  # noqa: E402
from streams import entries  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As in test_vectorized.py."""
    with threadpool_limits(1):
        yield


def own(weights, x):
    return weights[0][0] * jnp.sum(jnp.tanh(jnp.concatenate(x)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (SpiderRegressor, {}),
        (SpiderRegressor, {"inference": Inference(curvature=True)}),  # entry by entry
        (SpiderClassifier, {}),
        (SpiderRegressor, {"network": CustomNetwork(own, ((1,),))}),
    ],
    ids=["regressor", "curvature", "classifier", "custom"],
)
def test_a_committee_compiles_as_often_as_one_model(kind, settings):
    """Members differ only in numbers, some have a memory; with MANY_ENTRIES entries they run in threads."""
    assert len({"memory" in own for own in MEMBERS[:4]}) == 2
    X, y = entries(2 * MANY_ENTRIES)
    y = (y > 0).astype(int) if kind is SpiderClassifier else y
    compiled = []
    for members in (1, 4):
        before = learn._cache_size(), evaluate._cache_size()
        rank = members + 6  # a rank that nothing else has compiled
        model = kind(
            engine="vectorized", rank=rank, multilinear=2, batch_size=64, committee=members, **settings
        )
        model.partial_fit(X, y).predict(X)
        compiled.append((learn._cache_size() - before[0], evaluate._cache_size() - before[1]))
    assert compiled[0] == compiled[1]
    assert compiled[0][0] > 0
    if "network" in settings:  # no shortcut by matrix products knows it
        assert len(model.recommend({0: 1}, 1, 3, "thompson", seed=0)) == 3


@pytest.mark.slow
def test_no_solve_of_a_stack_on_a_cpu():
    """What jaxlib 0.10 hangs on when two models learn at the same time."""
    L = jnp.tril(jnp.ones((128, 128))) + jnp.eye(128)
    cpu = jax.devices("cpu")[0]
    program = jax.jit(_inverse).lower(jax.device_put(L, cpu)).compile().as_text()
    shapes = [line for line in program.splitlines() if re.search(r"custom_call_target=\"lapack_.trsm", line)]
    assert shapes
    assert all(re.search(r"= f32\[32,32\]", line) for line in shapes), shapes
    np.testing.assert_allclose(_inverse(L) @ L, np.eye(128), atol=1e-4)


@pytest.mark.slow
def test_threads_change_nothing():
    X, y = entries(4 * MANY_ENTRIES)
    network = Network((2, 3), (5,), bias=True, multilinear=2)
    members = [vectorized(network, GAUSSIAN, clip=4.0, memory=memory) for memory in (None, 1000, 100, 30)]
    results = []
    for threads in (1, 4):
        method = committee(members, GAUSSIAN, threads=threads)
        state, update = method.update(method.init(0), Batch(X, y))
        results.append((bits(state), update.mean.tobytes(), method.predict(state, X).var.tobytes()))
    assert results[0] == results[1]


@pytest.mark.slow
@pytest.mark.parametrize("change", [1.0, 50.0])
def test_members_of_one_program_learn_as_alone(change):
    """As on a GPU. After a change of scale each of them watches and follows at a time of its own."""
    X, y = entries(900)
    y[300:] *= change
    network = Network((2, 3), (5,), bias=True, multilinear=2)
    settings = {"batch_size": 32, "refine_every": 32, "clip": 4.0, "node_noise": True}
    alone = [vectorized(network, GAUSSIAN, memory=memory, **settings) for memory in (None, 100, 30)]
    other = vectorized(Network((2, 3), (4,)), GAUSSIAN, **settings)
    together = [replace(each, program=lambda: "one") for each in alone]
    results = []
    for members in (alone, together):
        method = committee([members[0], other, *members[1:]], GAUSSIAN, threads=1)
        state = method.init(0)
        for part in (slice(0, 300), slice(300, 900)):
            state, update = method.update(state, Batch(X[part], y[part]))
            results.append([*np.array(update[:4]), update.clipped, state.weights])
        results.append([member.stream.scale for member in state.members])
    half = len(results) // 2
    for one, joint in zip(results[:half], results[half:], strict=True):
        for a, b in zip(one, joint, strict=True):
            np.testing.assert_allclose(a, b, rtol=5e-3, atol=5e-3 * change)
    assert (results[half - 1][0] > 10) == (change > 1)
