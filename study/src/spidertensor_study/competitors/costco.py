"""CoSTCo: a convolutional network over the embeddings of an entry's nodes (Liu et al., KDD 2019), static.

With E (n_modes, rank), the embeddings of an entry's nodes, and a relu after every layer but the last:

    conv 1   h[p, c] = sum_k W1[k, c] E[k, p] + b1[c]          kernel (n_modes x 1)
    conv 2   g[d]    = sum_{p, c} W2[p, c, d] h[p, c] + b2[d]  kernel (1 x rank)
    dense    e[a]    = sum_d W3[d, a] g[d] + b3[a]
    output   f       = sum_a w4[a] e[a] + b4

The kernels are as high or as wide as their input, so both convolutions are matrix products. The loss is
squared for continuous values and logistic for 0/1. It is minimised by Adam over mini-batches, in a new order
in every epoch; a tenth of the entries is held back, and the epoch that fits them best is kept. One epoch is
one compiled call.

All entries come in one update; a second update is an error, because the state keeps no entries. A network has
no posterior, so a Method's other outputs are made up as follows:

- An unseen node has the average embedding of its mode, each node weighted by its number of entries.
- `var` of f is close to zero, `noise` is the mean squared residual of the entries held back.
- For 0/1 values the latent f of a Prediction is the one whose Phi(f) is the network's logistic probability.

The caller shifts and scales the values, to about mean 0 and standard deviation 1.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from numpy.typing import NDArray
from scipy.special import log_expit, ndtri_exp

from spidertensor.evaluation.counts import Counts, no_counts
from spidertensor.method import HUGE_SCALED, Bags, Batch, Method, Prediction, check_index
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT, Likelihood, check
from spidertensor_study.competitors.static import learns_once

MINI_BATCH = 256  # as in the authors' program, like Adam's settings, the starts and the patience
PATIENCE = 10  # stop after this many epochs without a lower loss on the held-back entries
HELD_BACK = 0.1
START = 0.05  # embeddings start uniform in (-START, START)
BLOCK = 4096  # entries in one prediction
TINY = 1e-12  # a variance must be positive, and a network has none
SMALLEST_NOISE = 1e-12

Array = Any  # a jax.Array inside compiled functions, a NumPy array outside


class CoSTCoWeights(NamedTuple):
    """Weights and biases of the four layers, in the letters of the module."""

    W1: Array  # (modes, channels)
    b1: Array
    W2: Array  # (rank, channels, channels)
    b2: Array
    W3: Array  # (channels, channels)
    b3: Array
    w4: Array  # (channels,)
    b4: Array


class CoSTCoState(NamedTuple):
    embeddings: tuple[NDArray[np.float32], ...]  # one (nodes, rank) per mode
    average: NDArray[np.float32]  # (modes, rank): embedding of an unseen node
    weights: CoSTCoWeights
    held_back_loss: NDArray[np.float64]  # mean over the held-back entries; inf before the update
    noise: NDArray[np.float64]
    counts: Counts
    seed: NDArray[np.int64]


class Entries(NamedTuple):
    """Entries on the device. One table has the nodes of all modes; a node is a row number."""

    nodes: Array  # (n, modes)
    value: Array  # (n,)


Theta = tuple[Array, CoSTCoWeights]  # the table (nodes of all modes, rank), and the weights


def costco(
    n_modes: int,
    likelihood: Likelihood,
    *,
    rank: int = 8,
    channels: int = 64,
    learning_rate: float = 1e-3,
    epochs: int = 100,
) -> Method:
    """CoSTCo as a static Method; the module says where its variances come from.

    channels: number of channels of both convolutions, and of units of the dense layer
    epochs:   maximum number of epochs
    """
    check(likelihood, (GAUSSIAN, PROBIT), "CoSTCo")
    sizes = {"n_modes": n_modes, "rank": rank, "channels": channels, "epochs": epochs}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    if not 0 < learning_rate < math.inf:
        raise ValueError(f"a learning rate must be positive and finite, got {learning_rate}")

    def init(seed: int) -> CoSTCoState:
        rng = np.random.default_rng([seed, 0])
        return CoSTCoState(
            tuple(np.empty((0, rank), np.float32) for _ in range(n_modes)),
            np.zeros((n_modes, rank), np.float32),
            start_of_weights(rng, n_modes, rank, channels),
            np.array(np.inf),
            np.ones(()),
            no_counts(n_modes),
            np.array(seed, np.int64),
        )

    def predict(state: CoSTCoState, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
        check_index(index, n_modes, bags)
        output = _outputs(state, index)
        if likelihood.normal:
            noise = float(state.noise)
            return Prediction(output, np.full(len(index), TINY * noise), np.full(len(index), noise))
        # computed from the less likely value, whose probability keeps all its digits
        f = -np.sign(output) * ndtri_exp(log_expit(-np.abs(output)))
        return Prediction(f, np.full(len(index), TINY), np.zeros(len(index)))

    fitted = partial(_fitted, likelihood, learning_rate, epochs)
    update = learns_once("CoSTCo", likelihood, (n_modes, rank), HUGE_SCALED, predict, fitted)
    return Method(init, update, predict, unit="all")


def start_of_weights(rng: np.random.Generator, n_modes: int, rank: int, channels: int) -> CoSTCoWeights:
    """Uniform after Glorot, biases 0, as Keras does it for the authors' program."""

    def glorot(inputs: int, outputs: int, *shape: int) -> NDArray[np.float32]:
        edge = math.sqrt(6 / (inputs + outputs))
        return rng.uniform(-edge, edge, shape).astype(np.float32)

    c, none = channels, np.zeros(channels, np.float32)
    return CoSTCoWeights(
        glorot(n_modes, n_modes * c, n_modes, c),
        none,
        glorot(rank * c, rank * c, rank, c, c),
        none.copy(),
        glorot(c, c, c, c),
        none.copy(),
        glorot(c, 1, c),
        np.zeros((), np.float32),
    )


# --- on the device --------------------------------------------------------------------------------


def forward(weights: CoSTCoWeights, E: Array) -> Array:
    """(n,) outputs, for the embeddings E (n, modes, rank)."""
    W1, b1, W2, b2, W3, b3, w4, b4 = weights
    h = jax.nn.relu(jnp.einsum("nkp,kc->npc", E, W1) + b1)
    g = jax.nn.relu(h.reshape(len(h), -1) @ W2.reshape(-1, W2.shape[-1]) + b2)
    return jax.nn.relu(g @ W3 + b3) @ w4 + b4


forward_compiled = jax.jit(forward)


def losses(likelihood: Likelihood, value: Array, output: Array) -> Array:
    """(n,) squared, or minus the logarithm of the logistic probability."""
    if likelihood.normal:
        return (value - output) ** 2
    return jax.nn.softplus(-(2 * value - 1) * output)


def mean_loss(likelihood: Likelihood, theta: Theta, entries: Entries, rows: Array) -> Array:
    """Mean loss of the entries in these rows; -1 is an empty place."""
    table, weights = theta
    each = losses(likelihood, entries.value[rows], forward(weights, table[entries.nodes[rows]]))
    return jnp.sum(jnp.where(rows >= 0, each, 0)) / jnp.sum(rows >= 0)


@partial(jax.jit, static_argnums=0)
def _epoch(likelihood: Likelihood, theta: Theta, memory, entries: Entries, batches: Array, rate: Array):
    """One step of Adam for each mini-batch."""

    def step(loop, rows):
        theta, memory = loop
        gradient = jax.grad(mean_loss, argnums=1)(likelihood, theta, entries, rows)
        change, memory = optax.adam(rate).update(gradient, memory)
        return (optax.apply_updates(theta, change), memory), None

    return lax.scan(step, (theta, memory), batches)[0]


@partial(jax.jit, static_argnums=0)
def _watched_loss(likelihood: Likelihood, theta: Theta, entries: Entries, batches: Array) -> Array:
    means = lax.map(lambda rows: mean_loss(likelihood, theta, entries, rows), batches)
    sizes = jnp.sum(batches >= 0, axis=1)
    return jnp.sum(means * sizes) / jnp.sum(sizes)


# --- on the host ----------------------------------------------------------------------------------


def _fitted(
    likelihood: Likelihood, learning_rate: float, epochs: int, state: CoSTCoState, batch: Batch
) -> CoSTCoState:
    """The parameters, among the start and all epochs, that fit the held-back entries best."""
    rank, n = state.average.shape[1], len(batch.value)
    first = np.concatenate([[0], np.cumsum(batch.index.max(axis=0) + 1)])
    nodes = (batch.index + first[:-1]).astype(np.int32)
    rng = np.random.default_rng([int(state.seed), 1])
    table = rng.uniform(-START, START, (first[-1], rank)).astype(np.float32)
    held, rest = np.split(rng.permutation(n), [math.ceil(HELD_BACK * n)])
    rest = rest if len(rest) else held  # there is only one entry
    entries = Entries(jnp.asarray(nodes), jnp.asarray(batch.value, jnp.float32))
    watched = _mini_batches(held)

    theta = jax.tree.map(jnp.asarray, (table, state.weights))
    memory = optax.adam(learning_rate).init(theta)
    best, lowest, since = theta, float(_watched_loss(likelihood, theta, entries, watched)), 0
    for _ in range(epochs):
        batches = _mini_batches(rng.permutation(rest))
        theta, memory = _epoch(likelihood, theta, memory, entries, batches, learning_rate)
        now, since = float(_watched_loss(likelihood, theta, entries, watched)), since + 1
        if now < lowest:  # also false for NaN
            best, lowest, since = theta, now, 0
        if since == PATIENCE:
            break
    return _with(state, best, lowest, nodes[rest], first)


def _mini_batches(rows: NDArray[np.int64]) -> Array:
    """(batches, MINI_BATCH), the last one filled up with -1."""
    batches = np.full((-(-len(rows) // MINI_BATCH), MINI_BATCH), -1, np.int32)
    batches.ravel()[: len(rows)] = rows
    return jnp.asarray(batches)


def _with(
    state: CoSTCoState, theta: Theta, lowest: float, learned: NDArray[np.int32], first: NDArray[np.int64]
) -> CoSTCoState:
    """The state with this network; a node without entries gets the average of its mode."""
    table, weights = jax.tree.map(np.array, theta)
    entries_of = np.bincount(learned.ravel(), minlength=first[-1])[:, None]
    modes = [slice(a, b) for a, b in pairwise(first)]
    average = np.stack([(entries_of[mode] * table[mode]).sum(axis=0) for mode in modes]) / len(learned)
    average = average.astype(np.float32)
    np.maximum(state.counts.nodes, np.diff(first), out=state.counts.nodes)
    return state._replace(
        embeddings=tuple(np.where(entries_of[mode], table[mode], average[k]) for k, mode in enumerate(modes)),
        average=average,
        weights=weights,
        held_back_loss=np.array(lowest),
        noise=np.array(max(lowest, SMALLEST_NOISE)),  # for the squared loss; not used for 0/1 values
    )


def _outputs(state: CoSTCoState, index: NDArray[np.integer]) -> NDArray[np.float64]:
    """(n,) outputs, in blocks of one shape, so that one compilation serves any number of entries."""
    tables = [np.vstack(each) for each in zip(state.embeddings, state.average[:, None], strict=True)]
    out = np.empty(len(index))
    E = np.zeros((BLOCK, *state.average.shape), np.float32)
    for start in range(0, len(index), BLOCK):
        some = index[start : start + BLOCK]
        for k, table in enumerate(tables):
            known = (some[:, k] >= 0) & (some[:, k] < len(table) - 1)
            E[: len(some), k] = table[np.where(known, some[:, k], -1)]  # the last row is for unseen nodes
        out[start : start + BLOCK] = np.asarray(forward_compiled(state.weights, E))[: len(some)]
    return out
