"""One model on its way through a history: mathematics.md section 20.

Before a part is learned again, the model forgets what it said last time (sites.py). The loop over entries
stays that of the engine, whichever it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Method, Update
from spidertensor.spider import posterior
from spidertensor.spider.network import Network
from spidertensor.spider.parts import History, Part
from spidertensor.spider.posterior import Prior, State
from spidertensor.spider.site_plan import SitePlan
from spidertensor.spider.site_store import SiteStore
from spidertensor.spider.sites import give_back, keep, take_back

LARGE_TABLE = 2**21  # touched elements of a part, from which on cavities are kept in half the memory


class MemberModel(NamedTuple):
    """One member of a committee.

    once:      it takes part in the first pass only, as one with a memory must
    level_var: Likelihood.level_var
    """

    network: Network
    prior: Prior
    method: Method
    once: bool
    level_var: float = 0.0

    @property
    def elements(self) -> list[int]:
        """Elements of a row of each table."""
        return [self.network.factor_sizes[mode] for mode in self.network.table_modes]


Floats: TypeAlias = NDArray[np.floating]
# some rows of a table or layer: mean, var, rows, prior precision, prior shift
Place: TypeAlias = tuple[Floats, Floats, NDArray[np.int64], Floats, Floats]


class Elements(NamedTuple):
    """A Place with its sites, as `take_back` and `keep` take it."""

    mean: Floats
    var: Floats
    rows: NDArray[np.int64]
    prior_precision: Floats
    prior_shift: Floats
    site: NDArray[np.uint16]
    others: Floats


def elements_of(places: list[Place], sites: NDArray[np.uint16] | None) -> list[Elements]:
    """sites: of all places, one after the other; None: all zero"""
    shapes = [(len(rows), 2, mean.shape[1]) for mean, _, rows, _, _ in places]
    sizes = [math.prod(shape) for shape in shapes]
    sites, start, found = np.zeros(sum(sizes), np.uint16) if sites is None else sites, 0, []
    for size, shape, place in zip(sizes, shapes, places, strict=True):
        site = sites[start : start + size].reshape(shape)
        others = np.empty((3, *shape[::2]), np.float64 if size < 2 * LARGE_TABLE else np.float32)
        found.append(Elements(*place, site, others))
        start += size
    return found


class Visitor:
    """One model on its way through a history, and what each part told it at its last visit.

    folder: where a file of sites may lie, if they are too large for memory
    """

    def __init__(self, model: MemberModel, history: History, plan: SitePlan, folder: str | None) -> None:
        network = self._network = model.network
        self._prior, self._method, self._history, self._plan = model.prior, model.method, history, plan
        tables = range(len(network.table_modes))
        self._priors = [_node_prior(network, model.prior, table) for table in tables]
        self._level = None if model.level_var == 0 else (np.array([[1 / model.level_var]]), np.zeros((1, 1)))
        self._by_share = [times >= plan.often for times in history.counts]
        self._weights = [np.arange(_matrix_shape(layer)[0]) for layer in network.layers]
        wanted = plan.n_bytes(model.elements, network.n_weights)
        self.sites = SiteStore(wanted, folder)

    def visit(self, state: State, part: Part, *, again: bool) -> tuple[State, Update]:
        """Learn a part, again or for the first time. `Method.update` for a part of the history."""
        elements = self._elements(state, part)
        for element in elements:
            take_back(*element)
        noise = [each.copy() for each in state.posterior.noise]
        level_counts = state.stream.level_counts.copy()
        if again:
            self._give_back_shares(state, part)
            self._give_back_log_noise(state, part)
        followed = int(state.stream.followed.sum())
        state, update = self._method.update(state, part.batch)
        if int(state.stream.followed.sum()) != followed:  # the model has started afresh: section 11
            self.sites.clear()
            return state, update
        self._keep(part, elements)
        if again:  # each entry counts once
            state.stream.level_counts[:] = level_counts
        if again and self._plan.all_by_share:  # whose cavities have seen the entry, so errors look too small
            for now, before in zip(state.posterior.noise, noise, strict=True):
                now[...] = before
        return state, update

    def _elements(self, state: State, part: Part) -> list[Elements]:
        """For each table and layer, what `take_back` and `keep` need."""
        return elements_of(self._places(state, self._with_sites(part)), self.sites.get(part.number))

    def _keep(self, part: Part, elements: list[Elements]) -> None:
        for element in elements:
            keep(*element)
        self.sites.put(part.number, np.concatenate([each.site.reshape(-1) for each in elements]))

    def _with_sites(self, part: Part) -> list[NDArray[np.int64]]:
        """Per table, the rows of a part that have sites."""
        return [rows[~some[rows]] for rows, some in zip(part.rows, self._by_share, strict=True)]

    def _places(self, state: State, tables: list[NDArray[np.int64]]) -> list[Place]:
        """These rows of each table, then all of each layer and the level."""
        factors = zip(tables, state.posterior.factors, self._priors, strict=True)
        places: list[Place] = [(mean, var, rows, *prior) for rows, (mean, var), prior in factors]
        for rows, weights, site in zip(self._weights, state.posterior.weights, state.sites, strict=True):
            mean, var, precision, shift = _matrices((*weights, site.precision, site.precision_mean))
            places.append((mean, var, rows, precision, shift))
        if self._level is not None:
            level = state.stream.mean.reshape(1, 1), state.stream.var.reshape(1, 1)
            places.append((*level, np.zeros(1, np.int64), *self._level))
        return places

    def _give_back_shares(self, state: State, part: Part) -> None:
        """What nodes without sites do before a part is learned again."""
        for table, (rows, times) in enumerate(zip(part.rows, part.times, strict=True)):
            some = self._by_share[table][rows]
            if some.any():
                share = np.minimum(times[some] / self._history.times[table][rows[some]], 1)
                give_back(*state.posterior.factors[table], rows[some], *self._priors[table], share)

    def _give_back_log_noise(self, state: State, part: Part) -> None:
        """Each node forgets as large a share of what it knows about its noise as the part has of its entries.

        Stochastic expectation propagation: one number per node is not worth sites.
        """
        prior_var = posterior.node_noise_var(self._network.n_modes)
        for mode, (mean, var) in enumerate(state.posterior.log_noise):
            rows, times = part.rows[mode], part.times[mode]
            kept = 1 - np.minimum(times / self._history.times[mode][rows], 1)
            precision = kept * (1 / var[rows] - 1 / prior_var)
            shift = kept * mean[rows] / var[rows]
            var[rows] = 1 / (1 / prior_var + precision)
            mean[rows] = var[rows] * shift

    def end_first_pass(self, state: State, known: NDArray[np.int64]) -> None:
        """Take the random start of the pairs out of the nodes that were new in this history.

        It made them differ; now the data do. known: number of nodes in each table before the history
        """
        network = self._network
        for table, (mean, var) in enumerate(state.posterior.factors):
            first, last = int(known[table]), int(state.counts.nodes[table])
            started = posterior.start_rows(network, self._prior, int(state.seed), table, first, last)
            mean[first:last] -= var[first:last] * started.mean / started.var


def _matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a layer; weights of a custom network with other dimensions are one row."""
    return (shape[0], shape[1]) if len(shape) == 2 else (1, math.prod(shape))


def _matrices(arrays: Iterable[Floats]) -> tuple[Floats, ...]:
    """Views of what belongs to a layer, as matrices."""
    return tuple(array.reshape(_matrix_shape(array.shape)) for array in arrays)


def _node_prior(network: Network, prior: Prior, table: int) -> tuple[Floats, Floats]:
    precision = 1 / posterior.factor_prior_var(network, prior, table)[None]
    return precision, np.zeros_like(precision)
