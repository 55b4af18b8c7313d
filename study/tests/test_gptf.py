"""GPTF, the static sparse Gaussian process: its bound where it is known, mini-batches, and that it learns.

The contract is checked in test_contract.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal

pytest.importorskip("jax", reason="the Gaussian-process baselines need the extra: spidertensor[jax]")
pytest.importorskip("optax", reason="the Gaussian-process baselines need the extra: spidertensor[jax]")

import jax

from spidertensor.method import Batch
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT
from spidertensor_study.competitors import gp, gp_method, gptf
from spidertensor_study.competitors.gp import Entries, GPSettings, Hyper, Nodes
from spidertensor_study.competitors.svb_gptf import Away, Params

NOISE = 0.3
HYPER = Hyper(np.log(1.5), np.log([0.9, 1.7]), np.log(NOISE - gp.MIN_NOISE))
KNOWN = -60.0  # log variance of a factor that is known
KEY = jax.random.key(0)


@pytest.fixture
def x64():
    with gp_method.enable_x64(True):
        yield


def data(n: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] + 0.2 * rng.normal(size=n)


def entries_of(value: np.ndarray, rows: np.ndarray) -> Entries:
    return Entries(rows[:, None], value[rows], np.ones(len(rows)), None)


def ard(x: np.ndarray, z: np.ndarray) -> np.ndarray:
    d = (x[:, None] - z[None]) / np.exp(HYPER.log_lengths)
    return np.exp(HYPER.log_var) * np.exp(-0.5 * (d**2).sum(axis=2))


@pytest.mark.parametrize("M", [5, 12])
def test_its_optimum_is_sparse_gp_regression(x64, M):
    """With known factors: the collapsed bound of Titsias, flat at his q; with M = n the exact GP."""
    x, value = data()
    inputs, jitter = x[:M], 1e-12
    settings = GPSettings(1, GAUSSIAN, 2, M, 1, len(x), jitter=jitter)
    K, link = ard(inputs, inputs) + jitter * np.exp(HYPER.log_var) * np.eye(M), ard(inputs, x)
    A = np.linalg.solve(np.linalg.cholesky(K), link)
    cov = np.linalg.inv(np.eye(M) + A @ A.T / NOISE)
    nodes = Nodes(x, np.full(x.shape, KNOWN))
    prior = gp.kl_nodes(nodes, Nodes(np.zeros(x.shape), np.zeros(x.shape)))

    def bound(mean, root):
        now = Params(inputs, HYPER, Away(mean, root), nodes)
        return gptf.bound(settings, now, entries_of(value, np.arange(len(x))), 1, KEY) + prior

    reached, slopes = jax.jit(jax.value_and_grad(bound, (0, 1)))(
        cov @ A @ value / NOISE, np.linalg.cholesky(cov)
    )
    wanted = multivariate_normal(np.zeros(len(x)), A.T @ A + NOISE * np.eye(len(x))).logpdf(value)
    wanted -= (len(x) * np.exp(HYPER.log_var) - np.sum(A * A)) / (2 * NOISE)
    np.testing.assert_allclose(reached, wanted, rtol=1e-7)
    np.testing.assert_allclose(slopes[0], 0, atol=1e-7)
    np.testing.assert_allclose(np.tril(slopes[1]), 0, atol=1e-7)
    if len(x) == M:
        exact = multivariate_normal(np.zeros(M), ard(x, x) + NOISE * np.eye(M)).logpdf(value)
        np.testing.assert_allclose(reached, exact, rtol=1e-7)


def test_mini_batches_tell_the_bound_of_all_entries_and_its_gradient(x64):
    """On average over the steps of a pass; and the gradient is the one of finite differences."""
    x, value = data()
    settings = GPSettings(1, GAUSSIAN, 2, 4, 1, 3)
    rng = np.random.default_rng(1)
    away = Away(rng.normal(size=4), np.eye(4) + np.tril(rng.normal(size=(4, 4)), -1) / 3)
    now = Params(x[:4] + 0.1, HYPER, away, Nodes(x, np.full(x.shape, KNOWN)))

    def bound(now, entries, steps):
        return gptf.bound(settings, now, entries, steps, KEY) + prior

    prior = gp.kl_nodes(now.nodes, Nodes(np.zeros(x.shape), np.zeros(x.shape)))
    told, all_of_them = jax.jit(jax.value_and_grad(bound), static_argnums=2), entries_of(value, np.arange(12))
    whole, gradient = told(now, all_of_them, 1)
    parts = [told(now, entries_of(value, rows), 4) for rows in rng.permutation(12).reshape(4, 3)]
    np.testing.assert_allclose(np.mean([part[0] for part in parts]), whole, rtol=1e-10)
    average = jax.tree.map(lambda *each: np.mean(each, axis=0), *(part[1] for part in parts))
    for a, b in zip(jax.tree.leaves(average), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)

    free = ("inputs", "hyper", "away")  # known factors are too sure for a finite difference
    direction = jax.tree.map(lambda each: rng.normal(size=np.shape(each)), now)
    direction = direction._replace(
        nodes=jax.tree.map(np.zeros_like, now.nodes),
        away=Away(direction.away.mean, np.tril(direction.away.root)),
    )
    up, down = (
        told(jax.tree.map(lambda at, by: at + h * by, now, direction), all_of_them, 1)[0]  # noqa: B023
        for h in (1e-5, -1e-5)
    )
    slope = sum(
        np.sum(a * b)
        for name in free
        for a, b in zip(
            jax.tree.leaves(getattr(gradient, name)), jax.tree.leaves(getattr(direction, name)), strict=True
        )
    )
    np.testing.assert_allclose(slope, (up - down) / 2e-5, rtol=1e-4)


def stream(binary: bool, n: int) -> Batch:
    rng = np.random.default_rng(1)
    index = np.stack([rng.integers(d, size=n) for d in (6, 5, 4)], axis=1)
    value = sum(rng.normal(size=d)[rows] for d, rows in zip((6, 5, 4), index.T, strict=True))
    value = value + 0.3 * rng.normal(size=n)
    return Batch(index, (value > 0).astype(float) if binary else value / 2)


SMALL: dict[str, Any] = {"rank": 2, "inducing": 12, "epochs": 30, "batch_size": 32, "learning_rate": 2e-2}


@pytest.mark.parametrize("binary", [False, True])
def test_it_learns(binary):
    """Additive effects of the nodes. The last mini-batch of a pass is half empty."""
    method = gptf.gptf(3, PROBIT if binary else GAUSSIAN, **SMALL)
    batch = stream(binary, 884)
    state, update = method.update(method.init(0), Batch(batch.index[:784], batch.value[:784]))
    assert state.bound[1] > state.bound[0]
    assert update.rejected == update.refused == 0
    told, value = method.predict(state, batch.index[784:]), batch.value[784:]
    if binary:
        assert np.mean((told.mean > 0) == value) > 0.8
    else:
        assert np.sqrt(np.mean((told.mean - value) ** 2)) < 0.5 * value.std()
        assert 0.02 < told.noise[0] < 0.06  # (0.3 / 2)^2 = 0.0225


def test_bad_values_are_refused_and_a_second_update_is_an_error():
    method = gptf.gptf(3, GAUSSIAN, **SMALL)
    batch = stream(False, 96)
    batch.value[5], batch.value[7] = np.nan, 1e7
    state, update = method.update(method.init(0), batch)
    assert update.refused == 2 == state.counts.refused
    good = np.delete(np.arange(96), [5, 7])
    alone, _ = method.update(method.init(0), Batch(batch.index[good], batch.value[good]))
    np.testing.assert_array_equal(method.predict(state, batch.index), method.predict(alone, batch.index))
    with pytest.raises(ValueError, match="GPTF is static"):
        method.update(state, batch)
    with pytest.raises(ValueError, match="epochs must be at least 1"):
        gptf.gptf(3, GAUSSIAN, epochs=0)
