"""The nodes of a call of the vectorized engine: gathered from the state, and written back to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Bags, Batch
from spidertensor.spider import posterior
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian, Prior, State
from spidertensor.spider.vectorized_nodes import Entries, Slots

FEWEST_ROWS = 256  # of a table of nodes: otherwise a young stream would recompile at every doubling


class CallNodes(NamedTuple):
    """The nodes of a call: their rows in each table of the state, the entries' rows here, and their data."""

    rows: list[NDArray[np.integer]]
    ids: NDArray[np.int32]  # (n, K)
    bags: tuple[Slots, ...]
    factors: Gaussian
    log_noise: Gaussian | None

    def places(self, state: State) -> Iterator[tuple[Gaussian, Gaussian, NDArray[np.integer], tuple]]:
        """Matching arrays of the state and the table, the rows in the state and their place in the table."""
        pairs = [(state.posterior.factors, self.factors)]
        pairs += [(state.posterior.log_noise, self.log_noise)] if self.log_noise else []
        for there, here in pairs:
            at = 0
            for part, rows in zip(there, self.rows, strict=False):  # attributes have no log_noise
                yield part, here, rows, (slice(at, at + len(rows)), *map(slice, part.mean.shape[1:]))
                at += len(rows)

    def entries(
        self,
        at: NDArray[np.int64],
        filled: NDArray[np.bool_],
        value: NDArray[Any],
        times: NDArray[Any] | None,
    ) -> Entries:
        """The entries with these numbers; places that are not filled have the row of no node.

        value: (n,), or of several models (·, n)
        times: how often each entry counts; None: once
        """
        spare, ids = len(self.factors.mean) - 1, self.ids[at]
        ids[~filled] = spare
        bags = tuple(Slots(row[at], weight[at]) for row, weight in self.bags)
        for row, weight in bags:
            row[~filled], weight[~filled] = spare, 0
        return Entries(ids, value[..., at], bags, None if times is None else times[at].astype(value.dtype))


def gathered(state: State, network: Network, batch: Batch, places: int, slots: Sequence[int]) -> CallNodes:
    """The table of the entries' nodes. Its size depends on the number of places for entries and on the number
    of nodes: it seldom changes.

    slots: see `slots_of`; () without attributes
    """
    nodes, factors = state.counts.nodes, state.posterior.factors
    # a power of two above the number of nodes: the last row belongs to no node
    most = int(min(places * (network.n_modes + sum(slots)), nodes.sum()))
    size = 1 << max(most, FEWEST_ROWS - 1).bit_length()
    n, dtype, at = len(batch.value), factors[0].mean.dtype, 0
    rows, ids, bags = [], np.full(batch.index.shape, size - 1, np.int32), []
    for mode in range(network.n_modes):
        touched: NDArray[np.integer] = np.empty(0, np.int64)
        if mode not in network.without_id:
            touched, place = _touched(batch.index[:, mode], int(nodes[mode]))
            np.add(place, at, out=ids[:, mode], casting="same_kind")
        rows.append(touched)
        at += len(touched)
    for number, width in enumerate(slots):
        entry, slot, row, weight = _elements(batch.bags, number)
        touched, place = _touched(row, int(nodes[network.n_modes + number]))
        found = Slots(np.full((n, width), size - 1, np.int32), np.zeros((n, width), dtype))
        found.row[entry, slot], found.weight[entry, slot] = place + at, weight
        rows.append(touched)
        bags.append(found)
        at += len(touched)
    shape = size, max(factor.mean.shape[1] for factor in factors)
    log_noise = Gaussian(np.zeros(size, dtype), np.ones(size, dtype)) if state.posterior.log_noise else None
    blank = Gaussian(np.zeros(shape, dtype), np.ones(shape, dtype))
    table = CallNodes(rows, ids, tuple(bags), blank, log_noise)
    for part, here, rows_of, place in table.places(state):
        here.mean[place], here.var[place] = part.mean[rows_of], part.var[rows_of]
    return table


def _touched(row: NDArray[np.integer], n_nodes: int) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """The nodes among these rows, in order, and where among them each row is."""
    if len(row) < n_nodes // 16:
        touched, place = np.unique(row, return_inverse=True)
        return touched, place
    there = np.zeros(n_nodes, bool)  # no sorting
    there[row] = True
    return np.flatnonzero(there), (np.cumsum(there, dtype=np.int32) - 1)[row]


def _elements(bags: Bags | None, table: int) -> tuple[NDArray[Any], ...]:
    """The attributes of a table: entry, number among those of the entry, row and weight of each."""
    if bags is None:
        return (np.empty(0, np.int64),) * 4
    here = bags.table == table
    entry = np.repeat(np.arange(len(bags.start) - 1), np.diff(bags.start))[here]
    return entry, np.arange(len(entry)) - np.searchsorted(entry, entry), bags.row[here], bags.weight[here]


def slots_of(network: Network, bags: Bags) -> list[int]:
    """How many attributes of each table an entry has room for: a power of two, so that it seldom changes."""
    last = (_elements(bags, table)[1].max(initial=0) for table in range(len(network.tables)))
    return [1 << int(number).bit_length() for number in last]


def n_elements(network: Network, batch: Batch) -> NDArray[np.int64]:
    """(n,) number of elements that each entry moves."""
    own = sum(size for mode, size in enumerate(network.factor_sizes) if mode not in network.without_id)
    total = np.full(len(batch.value), network.n_weights + own)
    for number, table in enumerate(network.tables):
        np.add.at(total, _elements(batch.bags, number)[0], network.factor_sizes[table.mode])
    return total


def factors_of(
    state: State, network: Network, prior: Prior, index: NDArray[np.integer], bags: Bags | None, places: int
) -> Gaussian:
    """(places, K, ·) factor vectors of the entries, with their attributes; an unseen node has the prior."""
    shape, dtype = (places, network.n_modes, max(network.factor_sizes)), state.posterior.weights[0].mean.dtype
    u, n = Gaussian(np.zeros(shape, dtype), np.ones(shape, dtype)), len(index)
    for mode, size in enumerate(network.factor_sizes):
        own = _moments(state, network, prior, mode, index[:, mode])
        for mine, yours in zip(u, own, strict=True):
            mine[:n, mode, :size] = 0 if mode in network.without_id else yours
    for number, table in enumerate(network.tables if bags is not None else ()):
        entry, _, row, weight = _elements(bags, number)
        mean, var = _moments(state, network, prior, network.n_modes + number, row)
        w, size = weight.astype(dtype)[:, None], network.factor_sizes[table.mode]
        np.add.at(u.mean[:, table.mode, :size], entry, w * mean)
        np.add.at(u.var[:, table.mode, :size], entry, w * w * var)
    return u


def _moments(
    state: State, network: Network, prior: Prior, table: int, row: NDArray[np.integer]
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Factors of these rows of a table of the state; unseen nodes have the prior."""
    factor, seen = state.posterior.factors[table], (row >= 0) & (row < state.counts.nodes[table])
    prior_var = posterior.factor_prior_var(network, prior, table)
    mean = np.zeros((len(row), len(prior_var)), factor.mean.dtype)
    var = np.tile(prior_var.astype(factor.var.dtype), (len(row), 1))
    mean[seen], var[seen] = factor.mean[row[seen]], factor.var[row[seen]]
    return mean, var
