"""SVB-DTF: the network of mathematics.md section 1 by streaming variational Bayes with gradients. Section 8.

The unit is the batch: the entries of one update are cut into batches of `batch_size`, the last one shorter.
svb_dtf_batch.py learns a batch. An update reports the prediction made for each entry before its batch. A
batch with an absurd value, or that ends in anything not finite, is refused as a whole. Random numbers are
keyed by (seed, entries learned before the batch, epoch), so a model that is saved and loaded goes on as if it
had never stopped.

The caller shifts and scales the values, to about mean 0 and standard deviation 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import random
from numpy.typing import NDArray

from spidertensor.method import HUGE_SCALED, Bags, Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.spider import posterior
from spidertensor.spider.likelihoods import Likelihood, check
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian, Prior, State
from spidertensor_study.competitors.svb_dtf_batch import (
    HANDLED,
    Array,
    Carry,
    DTFLearned,
    DTFSettings,
    Entries,
    Noise,
    Normal,
    Pair,
    learn_compiled,
    learn_each,
    moments_compiled,
)

RATES = (1e-5, 5e-5, 1e-4, 3e-4, 5e-4, 1e-3, 3e-3, 5e-3, 1e-2)  # learning rates that the paper tunes over
AT_ONCE = 16  # most batches in one compiled call
BLOCK = 1024  # entries in one prediction
NO_ROW = np.iinfo(np.int32).max  # no row of the table of nodes

PRIOR = Prior(bias_var=1.0, multilinear_var=1.0, multilinear_start=0.0)  # N(0, 1) for every element


def svb_dtf(
    network: Network,
    likelihood: Likelihood,
    *,
    learning_rate: float = 1e-3,
    epochs: int = 100,
    batch_size: int = 256,
) -> Method:
    """SVB-DTF as a Method."""
    settings = _settings(network, likelihood, [learning_rate], epochs, batch_size)

    def update(state: State, batch: Batch) -> tuple[State, Update]:
        check_batch(batch, network.n_modes)
        out, rejected, refused = np.empty((4, len(batch.value))), 0, 0
        for first in range(0, len(batch.value), AT_ONCE * batch_size):
            part = slice(first, first + AT_ONCE * batch_size)
            some = Batch(batch.index[part], batch.value[part])
            state, learned = _learned(settings, state, some, learning_rate, batch_size)
            out[:, part] = learned[:4]
            rejected, refused = rejected + learned.rejected, refused + learned.refused
        return state, Update(*out, rejected=rejected, refused=refused)

    def predict(state: State, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
        index = np.asarray(index)
        check_index(index, network.n_modes, bags)
        out = np.empty((3, len(index)))
        for first in range(0, len(index), BLOCK):
            part = index[first : first + BLOCK]
            u = _blank(network, (BLOCK, network.n_modes))  # the prior, for unseen nodes
            for k, factor in enumerate(state.posterior.factors):
                known = np.flatnonzero((part[:, k] >= 0) & (part[:, k] < state.counts.nodes[k]))
                for to, have in zip(u, factor, strict=True):
                    to[known, k, : have.shape[1]] = have[part[known, k]]
            of_block = np.array(moments_compiled(network, state.posterior.weights, u))
            out[:2, first : first + BLOCK] = of_block[:, : len(part)]
        out[2] = likelihood.noise_var(*state.posterior.noise)
        return Prediction(*out)

    return Method(partial(_init, network), update, predict, unit="batch")


def side_by_side(
    network: Network,
    likelihood: Likelihood,
    batch: Batch,
    *,
    learning_rates: Sequence[float] = RATES,
    seeds: Sequence[int] = (0,),
    epochs: int = 100,
    batch_size: int = 256,
) -> tuple[Update, NDArray[np.floating]]:
    """Learn a stream from its start with every learning rate and seed in one compiled call, to tune the rate.

    The update's arrays are (rates, seeds, entries), `rejected` and `refused` are over all runs; the bound is
    (rates, seeds, batches, epochs).
    """
    settings = _settings(network, likelihood, learning_rates, epochs, batch_size)
    check_batch(batch, network.n_modes)
    if not len(batch.value):
        raise ValueError("no learning rate can be tuned on a stream without entries")
    n_batches = -(-len(batch.value) // batch_size)
    state = posterior.grow(_init(network, 0), network, PRIOR, batch.index.max(axis=0) + 1)
    nodes, entries = _packed(batch, batch_size, n_batches, 0)
    carry = _carry(network, state, nodes, max(map(len, nodes)))
    keys = jnp.stack([_key(seed) for seed in seeds])
    _, learned = learn_each(settings, carry, entries, n_batches, jnp.array(learning_rates), keys)
    update, _ = _update(settings, learned, batch.value, entries)
    return update, np.asarray(learned.bound)


def _settings(network, likelihood, rates, epochs: int, batch_size: int) -> DTFSettings:
    check(likelihood, HANDLED, "SVB-DTF")
    for rate in rates:
        if not 0 < rate < math.inf:
            raise ValueError(f"a learning rate must be positive and finite, got {rate}")
    if min(epochs, batch_size) < 1:
        raise ValueError(f"epochs and batch_size must be at least 1, got {epochs} and {batch_size}")
    return DTFSettings(network, likelihood, int(epochs))


def _init(network: Network, seed: int) -> State:
    """The initial state: no nodes, every weight N(0, 1), no sites."""
    state = posterior.init(network, PRIOR, seed)
    weights = tuple(
        Gaussian(np.zeros(shape, np.float32), np.ones(shape, np.float32)) for shape in network.layers
    )
    return state._replace(posterior=state.posterior._replace(weights=weights), sites=())


def _key(seed: int) -> Array:
    words = jnp.array(divmod(seed % 2**64, 2**32), jnp.uint32)
    return random.wrap_key_data(words, impl="threefry2x32")  # the same draws on every device, and under vmap


def _learned(
    settings: DTFSettings, state: State, batch: Batch, rate: float, batch_size: int
) -> tuple[State, Update]:
    """One compiled call, which updates the arrays of the state in place."""
    network, n = settings.network, len(batch.value)
    state = posterior.grow(state, network, PRIOR, batch.index.max(axis=0) + 1)
    nodes, entries = _packed(batch, batch_size, AT_ONCE, int(state.counts.entries))
    carry = _carry(network, state, nodes, AT_ONCE * batch_size)
    carry, learned = learn_compiled(
        settings, carry, entries, -(-n // batch_size), rate, _key(int(state.seed))
    )
    for k, (factor, rows) in enumerate(zip(state.posterior.factors, nodes, strict=True)):
        for to, new in zip(factor, carry.factors, strict=True):
            to[rows] = np.asarray(new)[k, : len(rows), : to.shape[1]]
    if settings.likelihood.normal:
        for to, new in zip(state.posterior.noise, carry.noise, strict=True):
            to[()] = float(new.high) + float(new.low)
    update, good = _update(settings, learned, batch.value, entries)
    state.counts.entries[()] += n
    state.counts.rejected[()] += update.rejected
    # one running sum over all calls, so that cuts do not change a bit of it
    total = state.counts.log_evidence
    total[()] = np.cumsum([total, *update.log_evidence[good]])[-1]
    weights = tuple(Gaussian(*map(np.array, weight)) for weight in carry.weights)
    return state._replace(posterior=state.posterior._replace(weights=weights)), update


def _update(
    settings: DTFSettings, learned: DTFLearned, value: NDArray, entries: Entries
) -> tuple[Update, NDArray[np.bool_]]:
    """Results per entry, without the empty places; and which entries were learned."""
    likelihood, network = settings.likelihood, settings.network
    shape = np.shape(learned.mean)
    parts = learned.mean, learned.var, learned.noise[..., None], learned.good[..., None]
    mean, var, noise, good = (
        np.broadcast_to(part, shape).astype(np.float64).reshape(*shape[:-2], -1)[..., : len(value)]
        for part in parts
    )
    if likelihood.binary:
        noise = np.zeros_like(noise)
    log_evidence = likelihood.log_evidence(value, mean, var, noise)
    refused = ~np.asarray(learned.good) & (entries.count > 0)  # (..., batches)
    nodes = (entries.rows != NO_ROW).sum(axis=2)  # (batches, K)
    rejected = refused @ (network.n_weights + nodes @ np.array(network.factor_sizes))
    update = Update(mean, var, noise, log_evidence, int(rejected.sum()), int((good == 0).sum()))
    return update, good > 0


def _blank(network: Network, shape: tuple[int, ...]) -> Gaussian:
    shape = (*shape, max(network.factor_sizes))
    return Gaussian(np.zeros(shape, np.float32), np.ones(shape, np.float32))


def _carry(network: Network, state: State, nodes: list[NDArray], rows: int) -> Carry:
    table = _blank(network, (network.n_modes, rows))
    for k, (factor, some) in enumerate(zip(state.posterior.factors, nodes, strict=True)):
        for to, have in zip(table, factor, strict=True):
            to[k, : len(some), : have.shape[1]] = have[some]
    weights = tuple(Normal(*weight) for weight in state.posterior.weights)
    pairs = (Pair(np.float32(part), np.float32(part - np.float32(part))) for part in state.posterior.noise)
    return Carry(Normal(*table), weights, Noise(*pairs))


def _packed(batch: Batch, places: int, n_batches: int, before: int) -> tuple[list[NDArray], Entries]:
    """The nodes of all entries per mode, as rows of the table, and the entries in batches."""
    n, K = batch.index.shape
    nodes, inverse = zip(*(np.unique(column, return_inverse=True) for column in batch.index.T), strict=True)
    rows = np.full((n_batches, K, places), NO_ROW, np.int32)
    local = np.zeros((n_batches * places, K), np.int32)
    for start in range(0, n, places):
        part = slice(start, min(start + places, n))
        for k in range(K):
            # in order of first appearance, so that results do not depend on node numbers
            found, first, which = np.unique(inverse[k][part], return_index=True, return_inverse=True)
            order = np.argsort(first)
            rows[start // places, k, : len(found)] = found[order]
            local[part, k] = np.argsort(order)[which]
    value = np.zeros(n_batches * places, np.float32)
    value[:n] = np.where(np.abs(batch.value) < HUGE_SCALED, batch.value, np.inf)  # its batch is refused
    starts = places * np.arange(n_batches)
    entries = Entries(
        rows,
        local.reshape(n_batches, places, K),
        value.reshape(n_batches, places),
        np.clip(n - starts, 0, places).astype(np.int32),
        ((before + starts) % 2**32).astype(np.uint32),
    )
    return list(nodes), entries
