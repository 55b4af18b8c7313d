"""Learn a history as often as it takes, and count nothing twice: mathematics.md section 20.

A `History` has entries in parts that are always learned together. A `Visitor` brings one model through the
parts: before a part is learned again, the model forgets what it said last time (sites.py). The loop over
entries stays that of the engine, whichever it is. `Passes` does so with all members of a committee.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Batch, Method, Update, joined
from spidertensor.spider import posterior
from spidertensor.spider.bags import taken
from spidertensor.spider.committee import cores, in_threads
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Prior, State
from spidertensor.spider.sites import keep, take_back

PART_ENTRIES = 512
FEWEST_PARTS = 100  # of smaller histories, if batches allow it
BLOCK_PARTS = 32  # visited between two looks at the clock
IN_MEMORY = 2**30  # bytes of sites; more of them go to a file


class History:
    """Entries to be learned several times, in parts.

    entries: all of them; what is not to be learned is left out of `order`
    order:   the entries in the order of the first pass
    """

    def __init__(self, entries: Batch, order: NDArray[np.integer], batch_size: int) -> None:
        self._entries, self._order = entries, order
        # Whole batches, so that each part starts at a refinement. A part alone has nobody to learn from.
        wanted = min(PART_ENTRIES, len(order) // FEWEST_PARTS)
        self._size = batch_size * max(1, -(-wanted // batch_size))
        self.n_entries = len(order)
        self.n_parts = -(-len(order) // self._size)

    @cache  # noqa: B019 (a history lives as long as its passes)
    def times(self, mode: int) -> NDArray[np.int64]:
        """How often each node of a mode comes."""
        nodes = self._entries.index[self._order, mode]
        return np.bincount(nodes[nodes >= 0])

    def part(self, number: int) -> Batch:
        rows = self._order[number * self._size : (number + 1) * self._size]
        return entries_at(self._entries, rows)


def entries_at(entries: Batch, rows: NDArray[np.integer]) -> Batch:
    """Some entries of a batch, which may have narrower integers than an engine takes."""
    index, value, bags = entries
    own = None if bags is None else taken(bags, np.asarray(rows, np.int64))
    return Batch(index[rows].astype(np.int64), value[rows], own)


def rows_of(network: Network, batch: Batch) -> list[NDArray[np.int64]]:
    """The rows of each table that the entries of a batch touch."""
    found = [np.unique(batch.index[:, mode]) for mode in range(network.n_modes)]
    found = [rows[rows >= 0] for rows in found]
    if batch.bags is not None:
        for table in range(len(network.tables)):
            found.append(np.unique(batch.bags.row[batch.bags.table == table]))
    return found


class Visitor:
    """One model on its way through a history, and what each part told it at its last visit.

    folder: where a file of sites may lie, if they are too large for memory
    """

    def __init__(
        self, network: Network, prior: Prior, method: Method, history: History, folder: str | None
    ) -> None:
        self._network, self._prior, self._method, self._history = network, prior, method, history
        sizes = [network.factor_sizes[mode] for mode in network.table_modes]
        self._priors = [_node_prior(network, prior, table) for table in range(len(sizes))]
        shapes = [_matrix_shape(layer) for layer in network.layers]
        self._weights = [np.arange(outputs) for outputs, _ in shapes]
        sizes += [inputs for _, inputs in shapes]
        self._sizes, self._ends = sizes, np.zeros((history.n_parts, len(sizes)), np.int64)
        at = 0
        for number in range(history.n_parts):
            for table, rows in enumerate(self._rows(history.part(number))):
                at += 2 * len(rows) * sizes[table]
                self._ends[number, table] = at
        self._sites = _zeros(at, folder)

    def _rows(self, batch: Batch) -> list[NDArray[np.int64]]:
        tables = rows_of(self._network, batch)
        tables += [np.empty(0, np.int64)] * (len(self._network.table_modes) - len(tables))
        return [*tables, *self._weights]

    def visit(self, state: State, number: int, *, again: bool) -> tuple[State, Update]:
        """Learn a part, again or for the first time. `Method.update` for a part of the history."""
        batch = self._history.part(number)
        elements = self._elements(state, batch, number)
        for part in elements:
            take_back(*part)
        if again:
            self._give_back_log_noise(state, batch)
        followed = int(state.stream.followed.sum())
        state, update = self._method.update(state, batch)
        if int(state.stream.followed.sum()) != followed:  # the model has started afresh: section 11
            self._sites[:] = 0
        else:
            for part in elements:
                keep(*part)
        return state, update

    def _elements(self, state: State, batch: Batch, number: int) -> list[tuple[Any, ...]]:
        """For each table and layer, what `take_back` and `keep` need."""
        sites = ((site.precision, site.precision_mean) for site in state.sites)
        priors = [*self._priors, *map(_matrices, sites)]
        parts = [*state.posterior.factors, *map(_matrices, state.posterior.weights)]
        start, found = int(self._ends[number - 1, -1]) if number else 0, []
        for table, rows in enumerate(self._rows(batch)):
            end, size = int(self._ends[number, table]), self._sizes[table]
            if len(rows):
                site = self._sites[start:end].reshape(len(rows), 2, size)
                others = np.empty((3, len(rows), size))
                found.append((*parts[table], rows, *priors[table], site, others))
            start = end
        return found

    def _give_back_log_noise(self, state: State, batch: Batch) -> None:
        """Each node forgets as large a share of what it knows about its noise as the part has of its entries.

        Stochastic expectation propagation: one number per node is not worth sites. Its prior is the mean of
        its mode (section 12).
        """
        prior_var = posterior.node_noise_var(self._network.n_modes)
        for mode, (mean, var) in enumerate(state.posterior.log_noise):
            rows, times = np.unique(batch.index[:, mode], return_counts=True)
            rows, times = rows[rows >= 0], times[rows >= 0]
            kept = 1 - times / self._history.times(mode)[rows]
            centre = state.stream.log_noise[mode]
            precision = kept * (1 / var[rows] - 1 / prior_var)
            shift = kept * (mean[rows] - centre) / var[rows]
            var[rows] = 1 / (1 / prior_var + precision)
            mean[rows] = centre + var[rows] * shift

    def end_first_pass(self, state: State, known: NDArray[np.int64]) -> None:
        """Take the random start of the pairs out of the nodes that were new in this history.

        It made them differ; now the data do. known: number of nodes in each table before the history
        """
        network = self._network
        for table, (mean, var) in enumerate(state.posterior.factors):
            first, last = int(known[table]), int(state.counts.nodes[table])
            started = posterior.start_rows(network, self._prior, int(state.seed), table, first, last)
            mean[first:last] -= var[first:last] * started.mean / started.var


class Model(NamedTuple):
    """One member of a committee. once: it takes part in the first pass only, as one with a memory must"""

    network: Network
    prior: Prior
    method: Method
    once: bool


class Passes:
    """The members of a committee on their way through a history, all at the same part.

    folder: where files may lie
    """

    def __init__(
        self, models: Sequence[Model], history: History, seed: int, folder: str | None = None
    ) -> None:
        self._models, self._history, self._seed = models, history, seed
        self._visitors = [None if model.once else Visitor(*model[:3], history, folder) for model in models]
        self.done = 0

    def one_more(self, states: Sequence[State]) -> Iterator[tuple[list[State], list[Update]]]:
        """One more pass: the members after each block of parts, and what they reported about its entries.

        The first pass has the order of the history; later ones visit its parts in random order.
        """
        states, first = list(states), self.done == 0
        order = np.arange(self._history.n_parts)
        if not first:
            np.random.default_rng([self._seed, self.done]).shuffle(order)
        known, counts = [state.counts.nodes for state in states], [_copied(state.counts) for state in states]
        if first:
            self._entries = [int(state.counts.entries) for state in states]
            # a model that has learned nothing knows no node, although they already have their rows
            self._known = [n if entries else 0 * n for n, entries in zip(known, self._entries, strict=True)]
        else:
            for state, entries in zip(states, self._entries, strict=True):
                state.counts.entries[()] = entries  # refinements come where they came in the first pass

        def work(m: int, block: NDArray[np.int64]) -> tuple[State, list[Update]]:
            updates, state, visitor = [], states[m], self._visitors[m]
            for number in block:
                if visitor is not None:
                    state, update = visitor.visit(state, number, again=not first)
                elif first:
                    state, update = self._models[m].method.update(state, self._history.part(number))
                else:
                    break
                updates.append(update)
            return state, updates

        for block in np.split(order, range(BLOCK_PARTS, len(order), BLOCK_PARTS)):
            results = in_threads(partial(work, block=block), len(states), min(cores(), len(states)))
            states = [state for state, _ in results]
            yield states, [joined(updates) for _, updates in results if updates]
        for state, before, visitor, had in zip(states, counts, self._visitors, self._known, strict=True):
            if not first:
                for now, old in zip(state.counts, before, strict=True):
                    now[...] = old  # each entry counts once
            elif visitor is not None:
                visitor.end_first_pass(state, had)
        self.done += 1


def _matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a layer; weights of a custom network with other dimensions are one row."""
    return (shape[0], shape[1]) if len(shape) == 2 else (1, math.prod(shape))


def _matrices(arrays: Iterable[NDArray[np.floating]]) -> tuple[NDArray[np.floating], ...]:
    """Views of what belongs to a layer, as matrices."""
    return tuple(array.reshape(_matrix_shape(array.shape)) for array in arrays)


def _copied(counts: Any) -> list[NDArray[Any]]:
    return [part.copy() for part in counts]


def _node_prior(network: Network, prior: Prior, table: int) -> tuple[NDArray[np.floating], ...]:
    precision = 1 / posterior.factor_prior_var(network, prior, table)[None]
    return precision, np.zeros_like(precision)


def _zeros(size: int, folder: str | None) -> NDArray[np.uint16]:
    """Memory for sites; a file without a name if they are many. OSError if the disk has no room for it."""
    if size * 2 <= IN_MEMORY:
        return np.zeros(size, np.uint16)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # else a full disk would kill the process later
                os.posix_fallocate(file.fileno(), 0, size * 2)
            return np.memmap(file, np.uint16, "w+", shape=(size,))
    except OSError as error:
        place = folder or tempfile.gettempdir()
        reason = f"several passes need {size * 2 / 2**30:.1f} GiB in {place}, or passes=1: {error.strerror}"
        raise OSError(error.errno, reason) from None
