"""SPIDER for any network, on CPU or GPU: a Method over JAX. Needs the extra `jax`.

The state is the NumPy state of the sequential engine. A call gathers the nodes of its entries into one table,
learns batch after batch on the device (vectorized_updates.py), and writes the results back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.spider import posterior
from spidertensor.spider.custom_network import CustomSizes
from spidertensor.spider.likelihoods import Likelihood, check
from spidertensor.spider.likelihoods.gaussian import forgetting
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian, Prior, State
from spidertensor.spider.vectorized_networks import Normal, check_function, flat
from spidertensor.spider.vectorized_updates import (
    EVIDENCE,
    Carry,
    Learned,
    Pair,
    Settings,
    Sites,
    evaluate,
    learn,
)

UPDATES = ("joint", "scan")
AT_ONCE = (64, 8, 1)  # joint batches in one compiled call: as many of the first as there are, and so on
LARGEST = 2**14  # entries of a batch: what they share is as many numbers squared, 1 GiB
FEWEST = 256  # rows of a table of nodes: a young stream would else compile again at every doubling
SMALL = 16  # places for a batch, or a prediction, of no more entries than that
BLOCK, GRADIENTS = 1024, 2**26  # entries predicted at once; fewer if they have more gradients than this


class _Cuts(NamedTuple):
    """The batches of a call: where each starts, how many entries it has, and whether to refine after it."""

    start: NDArray[np.int64]
    taken: NDArray[np.int32]
    due: NDArray[np.bool_]


def _cuts(seen: int, n: int, places: int, refine_every: int) -> _Cuts:
    """Cut by how many entries the state has `seen`, not by where the call starts."""
    phase = (seen + np.arange(n)) % refine_every
    start = np.flatnonzero(phase % places == 0)
    start = start if start.size and start[0] == 0 else np.insert(start, 0, 0)
    end = np.append(start[1:], n)
    return _Cuts(start, (end - start).astype(np.int32), (seen + end) % refine_every == 0)


def _pieces(cuts: _Cuts, places: int, joint: bool) -> Iterator[tuple[slice, int]]:
    """Which batches go into one compiled call, and with how many places."""
    first, n = 0, len(cuts.start)
    while first < n:
        length = next(length for length in AT_ONCE if length <= n - first) if joint else 1
        small = joint and length == 1 and cuts.taken[first] <= SMALL
        yield slice(first, first + length), min(places, SMALL) if small else places
        first += length


class _Table(NamedTuple):
    """The nodes of a call: each mode's rows in the state, the entries' rows here, and the factors."""

    rows: list[NDArray[np.int64]]
    entries: NDArray[np.int32]
    factors: Gaussian

    def places(self, state: State) -> Iterator[tuple[Gaussian, NDArray[np.int64], tuple[slice, slice]]]:
        """Of each mode: the factors of the state, which rows of them, and where these are in the table."""
        at = 0
        for factor, rows in zip(state.posterior.factors, self.rows, strict=True):
            yield factor, rows, np.s_[at : at + len(rows), : factor.mean.shape[1]]
            at += len(rows)


def _gather(state: State, index: NDArray[np.integer], most: int) -> _Table:
    """Its size follows `most` and the number of nodes, not the entries: it seldom changes."""
    nodes, factors = state.counts.nodes, state.posterior.factors
    rows, local, at = [], np.empty(index.shape, np.int32), 0
    for mode, n_nodes in enumerate(nodes):
        column = index[:, mode]
        if len(column) < n_nodes // 16:
            touched, place = np.unique(column, return_inverse=True)
        else:  # no sorting
            there = np.zeros(n_nodes, bool)
            there[column] = True
            touched, place = np.flatnonzero(there), (np.cumsum(there, dtype=np.int32) - 1)[column]
        np.add(place, at, out=local[:, mode], casting="same_kind")
        rows.append(touched)
        at += len(touched)
    # a power of two that is more than there can be: the last row is no node's
    size = 1 << max(int(min(most, nodes.sum())), FEWEST - 1).bit_length()
    shape, dtype = (size, max(factor.mean.shape[1] for factor in factors)), factors[0].mean.dtype
    table = _Table(rows, local, Gaussian(np.zeros(shape, dtype), np.ones(shape, dtype)))
    for factor, rows_of, place in table.places(state):
        table.factors.mean[place], table.factors.var[place] = factor.mean[rows_of], factor.var[rows_of]
    return table


def _learn_all(settings: Settings, state: State, batch: Batch, cuts: _Cuts, places: int) -> Update:
    """The entries of a call, piece by piece; the state is updated in place."""
    table = _gather(state, batch.index, len(cuts.start) * places * batch.index.shape[1])
    carry = Carry(
        Normal(*map(jnp.asarray, table.factors)),
        Normal(*_vectors(state.posterior.weights)),
        Sites(*_vectors(state.sites)),
        _pair(state),
    )
    with np.errstate(over="ignore"):  # what float32 cannot hold is an entry without evidence
        value = batch.value.astype(carry.weights.mean.dtype)
    results: list[tuple[Learned, NDArray[np.bool_]]] = []
    for piece, width in _pieces(cuts, places, settings.update == "joint"):
        start, taken, due = (part[piece] for part in cuts)
        at = start[:, None] + np.arange(width)
        filled = np.arange(width) < taken[:, None]
        at[~filled] = 0
        index = table.entries[at]
        index[~filled] = len(table.factors.mean) - 1
        carry, learned = learn(settings, carry, index, value[at], taken, due)
        _fetch(learned)
        results.append((learned, filled))
    _fetch(carry)
    _put_back(state, table, carry)
    return _report(settings, state, results)


def _fetch(tree: tuple) -> None:
    """Start to copy to the host: one copy after the other would wait for each."""
    for array in jax.tree.leaves(tree):
        array.copy_to_host_async()


def _report(settings: Settings, state: State, results: list[tuple[Learned, NDArray[np.bool_]]]) -> Update:
    """What the batches say, in one; the counts of the state follow."""
    n, at, rejected = sum(np.count_nonzero(filled) for _, filled in results), 0, 0
    out, good, counts = np.empty((4, n)), np.empty(n, bool), state.counts
    for learned, filled in results:
        here = slice(at, at + np.count_nonzero(filled))
        for row, said in zip(out, np.asarray(learned.said).swapaxes(0, 1), strict=True):
            row[here] = said[filled]
        good[here] = np.asarray(learned.good)[filled]
        rejected += int(np.asarray(learned.rejected).sum())
        at = here.stop
    n_elements = settings.network.n_weights + sum(settings.network.factor_sizes)
    refused = int(n - np.count_nonzero(good))
    rejected += n_elements * refused
    counts.entries[()] += n
    counts.rejected[()] += rejected
    # one after the other, as the entries came: how calls are cut does not change a digit
    log_evidence = out[3, good]
    if log_evidence.size:
        log_evidence[0] += counts.log_evidence
        counts.log_evidence[()] = np.cumsum(log_evidence)[-1]
    return Update(*out, rejected=rejected, refused=refused)


def _vectors(layers: Sequence[tuple[NDArray[np.floating], ...]]) -> Iterator[jax.Array]:
    """Gaussians or sites of all layers as one, each part a vector."""
    return (jnp.asarray(flat(arrays, np)) for arrays in zip(*layers, strict=True))


def _pair(state: State) -> Pair:
    noise = np.array(state.posterior.noise)
    high = noise.astype(state.posterior.weights[0].mean.dtype)
    return Pair(jnp.asarray(high), jnp.asarray((noise - high).astype(high.dtype)))


def _put_back(state: State, table: _Table, carry: Carry) -> None:
    carry = jax.tree.map(np.asarray, carry)
    for factor, rows, place in table.places(state):
        factor.mean[rows], factor.var[rows] = carry.factors.mean[place], carry.factors.var[place]
    for layers, vectors in ((state.posterior.weights, carry.weights), (state.sites, carry.sites)):
        for arrays, vector in zip(zip(*layers, strict=True), vectors, strict=True):
            at = 0
            for array in arrays:
                array.flat = vector[at : at + array.size]
                at += array.size
    noise = np.asarray(carry.noise.high, np.float64) + carry.noise.low
    state.posterior.noise.shape[()], state.posterior.noise.rate[()] = noise


def _factors_of(state: State, network: Network, prior: Prior, index, places: int) -> Normal:
    """(places, K, ·) factor vectors of the entries; an unseen node has the prior's."""
    shape, dtype = (places, network.n_modes, max(network.factor_sizes)), state.posterior.weights[0].mean.dtype
    u = Gaussian(np.zeros(shape, dtype), np.ones(shape, dtype))
    for mode, (factor, n_nodes) in enumerate(zip(state.posterior.factors, state.counts.nodes, strict=True)):
        rows = index[:, mode]
        seen = (rows >= 0) & (rows < n_nodes)
        size = network.factor_sizes[mode]
        u.var[: len(index), mode, :size] = posterior.factor_prior_var(network, prior, mode)
        for mine, yours in zip(u, factor, strict=True):
            mine[: len(index), mode, :size][seen] = yours[rows[seen]]
    return Normal(*map(jnp.asarray, u))


_DEFAULT = Prior()


def vectorized(
    network: Network,
    likelihood: Likelihood,
    prior: Prior = _DEFAULT,
    *,
    update: str = "joint",
    curvature: bool = False,
    noise_memory: float | None = 10_000,
    refine_every: int = 256,
    batch_size: int = 256,
) -> Method:
    """SPIDER as a Method; its state is that of the sequential engine.

    network:      sizes of a built-in network or, with your own function in it, CustomSizes
    update:       "joint" learns a batch as a whole, "scan" entry by entry as `sequential` does
    curvature:    differentiate log Z through beta as well (the paper); "scan" only
    noise_memory: entries after which an error has faded from the noise by 1/e; None remembers all (the paper)
    refine_every: entries between two refinements of the prior, however the calls are cut
    batch_size:   a joint batch ends after so many entries, where a refinement is due, and with the call
    """
    if update not in UPDATES:
        raise ValueError(f"unknown update {update!r}: choose one of {', '.join(UPDATES)}")
    if curvature and update == "joint":
        raise ValueError("the joint update has no curvature term: choose update='scan'")
    if refine_every < 1 or batch_size < 1:
        raise ValueError(f"at least 1 entry, got refine_every={refine_every}, batch_size={batch_size}")
    places = min(batch_size, refine_every)
    if places > LARGEST:
        raise ValueError(f"this engine learns at most {LARGEST} entries at once, got batch_size={places}")
    if isinstance(network, CustomSizes):
        check_function(network)
    check(likelihood, EVIDENCE, "the vectorized engine")
    forgetting_rate = forgetting(noise_memory)
    prior_weights = float(prior.slab_var), float(prior.rho0)
    settings = Settings(network, likelihood, update, bool(curvature), *prior_weights, forgetting_rate)

    def init(seed: int) -> State:
        return posterior.init(network, prior, seed)

    def learn_batch(state: State, batch: Batch) -> tuple[State, Update]:
        check_batch(batch, network.n_modes)
        n = len(batch.value)
        if not n:
            return state, Update(*np.empty((4, 0)), rejected=0)
        state = posterior.grow(state, network, prior, batch.index.max(axis=0) + 1)
        cuts = _cuts(int(state.counts.entries), n, places, refine_every)
        return state, _learn_all(settings, state, batch, cuts, places)

    def predict(state: State, index: NDArray[np.integer]) -> Prediction:
        index = np.asarray(index)
        check_index(index, network.n_modes)
        out = np.empty((3, len(index)))
        weights, places = Normal(*_vectors(state.posterior.weights)), SMALL
        if len(index) > SMALL:
            places = max(min(BLOCK, GRADIENTS // network.n_weights), SMALL)
        results = []
        for start in range(0, len(index), places):
            u = _factors_of(state, network, prior, index[start : start + places], places)
            results.append(evaluate(network, weights, u))
            _fetch(results[-1])
        for row, blocks in zip(out, zip(*results, strict=True), strict=False):
            row[:] = np.concatenate(list(map(np.asarray, blocks)))[: len(index)]
        out[2] = likelihood.noise_var(*state.posterior.noise)
        return Prediction(*out)

    return Method(init, learn_batch, predict, unit="batch" if update == "joint" else "entry")
