"""CoSTCo: its network against loops, its gradient against differences, and what it learns and answers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.special import expit, ndtr

from spidertensor.method import Batch
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT
from spidertensor_study.competitors import costco as module
from spidertensor_study.competitors.costco import CoSTCoWeights, Entries, costco, forward, mean_loss

SIZES = (4, 3, 5)
RANK, CHANNELS = 3, 2


def drawn_weights(rng) -> CoSTCoWeights:
    """With biases, which start at 0."""
    start = module.start_of_weights(rng, len(SIZES), RANK, CHANNELS)
    return CoSTCoWeights(*(rng.normal(size=part.shape) for part in start))


def by_loops(weights: CoSTCoWeights, E: np.ndarray) -> float:
    """One entry, as a library of convolutions would: both kernels slide wherever they fit."""
    W1, b1, W2, b2, W3, b3, w4, b4 = weights
    image = E[:, :, None]  # (modes, rank, one channel)
    kernels = (W1[:, None, None, :], b1), (W2[None], b2)
    for kernel, bias in kernels:
        height, width, inputs, outputs = kernel.shape
        rows, columns = image.shape[0] - height + 1, image.shape[1] - width + 1
        out = np.zeros((rows, columns, outputs))
        for i in range(rows):
            for j in range(columns):
                for d in range(outputs):
                    total = bias[d]
                    for a in range(height):
                        for b in range(width):
                            for c in range(inputs):
                                total += image[i + a, j + b, c] * kernel[a, b, c, d]
                    out[i, j, d] = max(total, 0)
        image = out
    assert image.shape == (1, 1, CHANNELS)
    dense = [max(sum(image[0, 0] * W3[:, a]) + b3[a], 0) for a in range(CHANNELS)]
    return sum(np.array(dense) * w4) + b4


def test_the_network_is_two_convolutions_and_a_dense_layer():
    rng = np.random.default_rng(0)
    weights, E = drawn_weights(rng), rng.normal(size=(20, len(SIZES), RANK))
    wanted = [by_loops(weights, one) for one in E]
    assert np.ptp(wanted) > 1
    np.testing.assert_allclose(forward(weights, E), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("likelihood", [GAUSSIAN, PROBIT])
def test_the_gradient_agrees_with_finite_differences(likelihood):
    """Checks everything that is learned; rows of -1 pad a mini-batch and count for nothing."""
    rng = np.random.default_rng(1)
    first = np.cumsum((0, *SIZES))
    nodes = np.stack([rng.integers(0, size, 12) for size in SIZES], axis=1) + first[:-1]
    value = rng.normal(size=12) if likelihood is GAUSSIAN else rng.integers(0, 2, 12).astype(float)
    with jax.enable_x64(True):
        theta = jnp.asarray(rng.normal(size=(first[-1], RANK))), drawn_weights(rng)
        flat, whole = ravel_pytree(theta)
        entries = Entries(jnp.asarray(nodes), jnp.asarray(value))

        def loss(x, rows):
            return mean_loss(likelihood, whole(x), entries, rows)

        full, padded = np.arange(12), np.append(np.arange(12), [-1, -1, -1])
        assert loss(flat, padded) == pytest.approx(float(loss(flat, full)), rel=1e-12)
        gradient = jax.jit(jax.grad(loss))(flat, padded)
        steps = 1e-6 * np.eye(len(flat))
        losses = jax.jit(jax.vmap(loss, (0, None)))
        numeric = (losses(flat + steps, full) - losses(flat - steps, full)) / 2e-6
    assert np.count_nonzero(gradient) > len(flat) // 2
    np.testing.assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-7)


def planted(n=6000, seed=0) -> tuple[Batch, Batch]:
    """Entries of a tensor that is no sum over its modes; the last 1,000 are a test."""
    rng = np.random.default_rng(seed)
    sizes = (25, 20, 15)
    u = [rng.normal(size=size) for size in sizes]
    index = np.stack([rng.integers(0, size, n) for size in sizes], axis=1)
    a, b, c = (part[rows] for part, rows in zip(u, index.T, strict=True))
    value = np.abs(a + b) - 1 + 0.7 * c + 0.1 * rng.normal(size=n)
    return Batch(index[:-1000], value[:-1000]), Batch(index[-1000:], value[-1000:])


def method_of(epochs: int):
    """One size of everything, so that it is compiled once."""
    return costco(3, GAUSSIAN, rank=4, channels=8, learning_rate=1e-2, epochs=epochs)


@pytest.fixture(scope="module")
def learned():
    train, test = planted()
    method = method_of(epochs=40)
    return method, method.update(method.init(0), train)[0], train, test


def test_it_learns_a_planted_tensor_that_no_sum_of_effects_fits(learned):
    method, state, _, test = learned
    residual = test.value - method.predict(state, test.index).mean
    one_hot = [np.eye(size)[rows] for size, rows in zip((25, 20, 15), test.index.T, strict=True)]
    effects = np.hstack(one_hot)
    additive = test.value - effects @ np.linalg.lstsq(effects, test.value)[0]  # fitted to the test itself
    assert np.var(residual) < 0.2 * np.var(additive)
    assert float(state.noise) == pytest.approx(np.mean(residual**2), rel=0.3)  # it was not learned from


def test_unseen_nodes_have_the_average_embedding_of_their_mode(learned):
    method, state, train, _ = learned
    counted = np.bincount(train.index[:, 1])[:, None]
    average = (counted * state.embeddings[1]).sum(axis=0) / counted.sum()
    np.testing.assert_allclose(state.average[1], average, atol=0.02)  # a tenth of the entries was held back
    E = np.stack([state.embeddings[0][3], state.average[1], state.embeddings[2][2]])
    wanted = float(forward(state.weights, E[None])[0])
    assert method.predict(state, np.array([[3, -1, 2]])).mean[0] == pytest.approx(wanted, rel=1e-5)


def test_it_is_decided_by_the_seed():
    train, _ = planted()
    method = method_of(epochs=2)

    def means(seed):
        return method.predict(method.update(method.init(seed), train)[0], train.index).mean

    np.testing.assert_array_equal(means(1), means(1))
    assert np.abs(means(1) - means(2)).max() > 1e-3


def test_probabilities_are_those_of_the_logistic_loss():
    """Rates of ones by node: P(1) = Phi(f) is the network's expit, and near what was drawn."""
    rng = np.random.default_rng(3)
    index = rng.integers(0, 4, (4000, 2))
    rate = np.array([0.1, 0.4, 0.6, 0.95])
    batch = Batch(index, (rng.random(4000) < rate[index[:, 0]]).astype(float))
    method = costco(2, PROBIT, rank=2, channels=8, learning_rate=1e-2, epochs=15)
    state, _ = method.update(method.init(0), batch)
    every = np.stack(np.meshgrid(range(4), range(4), indexing="ij"), axis=-1).reshape(-1, 2)
    told = ndtr(method.predict(state, every).mean)
    np.testing.assert_allclose(told.reshape(4, 4).mean(axis=1), rate, atol=0.08)
    output = module._outputs(state, every)
    np.testing.assert_allclose(told, expit(output), rtol=1e-9)


def test_the_best_epoch_is_kept_and_it_stops_when_none_follows(monkeypatch):
    """With noise alone to learn, an early epoch is best, and more of them are not run."""
    rng, (train, _) = np.random.default_rng(4), planted()
    batch = Batch(train.index, rng.normal(size=len(train.value)))
    losses = []
    watched = module._watched_loss
    monkeypatch.setattr(module, "_watched_loss", lambda *a: losses.append(float(watched(*a))) or losses[-1])
    method = method_of(epochs=200)
    state, _ = method.update(method.init(0), batch)
    assert float(state.held_back_loss) == min(losses)
    assert len(losses) == 1 + np.argmin(losses) + module.PATIENCE


@pytest.mark.parametrize(
    "wrong", [{"rank": 0}, {"channels": 0}, {"epochs": 0}, {"learning_rate": 0.0}, {"learning_rate": np.inf}]
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong)).replace("_", " ") + "|" + next(iter(wrong))):
        costco(2, GAUSSIAN, **wrong)
