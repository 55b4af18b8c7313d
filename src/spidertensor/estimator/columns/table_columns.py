"""What fills one table of attribute nodes: a column of the input, a cross of columns, or recent nodes.

All have the same methods. `index` is (n, K), the nodes of the entries; `cells` are checked columns by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.bounded_values import BoundedValues
from spidertensor.estimator.columns.cells import MISSING, Elements, joined_elements, no_elements, single
from spidertensor.estimator.columns.cross import CrossState, NodeCodes, Restart
from spidertensor.estimator.columns.holder import CheckedColumn, Holder
from spidertensor.estimator.columns.many import ManyState
from spidertensor.estimator.columns.recent import RecentState
from spidertensor.estimator.columns.specs import Cross, Recent, Spec, Value
from spidertensor.estimator.columns.value import ValueState

Cells = dict[str, CheckedColumn]
Arrays = dict[str, NDArray[Any]]


def cut(cells: Cells, start: int, stop: int) -> Cells:
    """The cells of the entries from start to stop."""
    return {name: each.cut(start, stop) for name, each in cells.items()}


class TableColumn(ABC):
    """Base class. mode: the mode whose bags it adds to; scale: of the prior variance, None until decided"""

    def __init__(self, mode: int, holders: Sequence[Holder]) -> None:
        self.mode, self.holders = mode, holders
        self.scale: float | None = None
        self.restarts: list[Restart] = []  # of the latest call that learned or described
        self.collecting = False  # takes any number of values, until `bound`

    @property
    @abstractmethod
    def spec(self) -> Spec: ...

    @property
    @abstractmethod
    def n_rows(self) -> int: ...

    @property
    def n_evicted(self) -> int:
        """How many values had to make room for others."""
        return 0

    @property
    def n_described(self) -> int | None:
        """Number of nodes whose attribute is known; None if it belongs to no node."""
        own = [holder for holder in self.holders if holder.owner == self.mode]
        if len(self.holders) != 1 or not own:
            return None
        state, memory = own[0].state, own[0].memory
        return 0 if state is None or memory is None else int((~state.is_missing(memory.codes)).sum())

    @abstractmethod
    def elements(self, cells: Cells, index: NDArray[np.int64]) -> Elements:
        """The elements of the entries in this table, to predict."""

    def learn(self, cells: Cells, index: NDArray[np.int64]) -> Elements:
        """The same to learn: adds values, and remembers attributes of nodes."""
        found = [self._learn(own, index[start:stop]) for start, stop, own in self._parts(cells, len(index))]
        return joined_elements(found)

    @abstractmethod
    def _learn(self, cells: Cells, index: NDArray[np.int64]) -> Elements:
        """Learn entries whose values find room."""

    def describe(self, mode: int, nodes: NDArray[np.int64], cells: Cells) -> None:
        """Replace the attributes of nodes of a mode, where stated."""
        for start, stop, own in self._parts(cells, len(nodes)):
            for holder in self.holders:
                if holder.owner == mode and holder.spec.name in own:
                    holder.describe(nodes[start:stop], own[holder.spec.name])

    def _parts(self, cells: Cells, n: int) -> Iterator[tuple[int, int, Cells]]:
        """The entries in parts whose values find room; between them values are evicted."""
        self.restarts, self._start, rest = [], 0, cells
        if self.collecting:
            yield 0, n, cells
            return
        while True:
            left = n - self._start
            fit = min(
                (holder.fitting(rest.get(holder.spec.name), left) for holder in self.holders), default=n
            )
            if fit == left:
                yield self._start, n, rest
                return
            if fit:
                yield self._start, self._start + fit, cut(rest, 0, fit)
            self._start, rest = self._start + fit, cut(rest, fit, left)
            for holder in self.holders:
                given = rest.get(holder.spec.name)
                gone = holder.make_room(given and given.cut(0, 1))
                if len(gone):
                    holder.forget_changes()  # values that had to go are gone for all of the call
                    self.restarts.append((self._start, self._evicted(holder, gone)))

    @property
    def is_overfull(self) -> bool:
        """Whether more values were collected than there may be."""
        return any(values.limit < len(values) for values in self._bounded)

    @property
    def _bounded(self) -> list[BoundedValues]:
        states = [holder.state for holder in self.holders]
        return [state.values for state in states if isinstance(state, ValueState | ManyState)]

    def bound(self, seen: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Keep as many values as there may be, those most often seen; no more are collected.

        seen: (rows,) how often each was. Return the new row of each, -1 if it is gone; None if all stay
        """
        self.collecting = False
        return self._bound(seen)

    def _bound(self, seen: NDArray[np.int64]) -> NDArray[np.int64] | None:
        return None

    def _evicted(self, holder: Holder, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """A column of the input has lost the values in these rows. Returns the rows to start afresh."""
        return rows

    @abstractmethod
    def of_nodes(self, nodes: NDArray[np.int64], entries: NDArray[np.int64] | None = None) -> Elements:
        """The elements of nodes of the own mode, from what the model remembers.

        entries: of the latest call, as of which it is asked; None for now
        """

    def keep(self, mode: int, keep: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """Nodes were removed. Return which rows of the table stay; None for all."""
        for holder in self.holders:
            if holder.owner == mode and holder.memory is not None:
                holder.memory.keep(keep)
        return None

    def clear(self, mode: int, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Nodes now belong to other ids. Return the rows of the table to start afresh; None for none."""
        for holder in self.holders:
            if holder.owner == mode:
                holder.clear(rows)
        return None

    def nodes_kept(self) -> list[tuple[int, int]]:
        """Modes, and how many of their nodes something is kept for."""
        own = [(holder.owner, holder.memory) for holder in self.holders]
        return [(mode, len(memory.codes)) for mode, memory in own if mode is not None and memory is not None]

    @abstractmethod
    def to_arrays(self) -> Arrays: ...

    @abstractmethod
    def read(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of `to_arrays`. ValueError for anything it does not write."""


class PlainColumn(TableColumn):
    """A table for the values, knots or parts of one column of the input."""

    def __init__(self, mode: int, spec: Spec, owner: int | None, max_values: int) -> None:
        super().__init__(mode, [Holder(spec, owner, max_values)])
        self.holder = self.holders[0]

    @property
    def spec(self) -> Spec:
        return self.holder.spec

    @property
    def n_rows(self) -> int:
        return self.holder.state.n_rows if self.holder.state else 0

    @property
    def n_evicted(self) -> int:
        state = self.holder.state
        return state.values.n_evicted if isinstance(state, ValueState | ManyState) else 0

    def elements(self, cells: Cells, index: NDArray[np.int64]) -> Elements:
        return self._elements(cells, index, learn=False)

    def _elements(self, cells: Cells, index: NDArray[np.int64], *, learn: bool) -> Elements:
        holder = self.holder
        nodes = None if holder.owner is None else index[:, holder.owner]
        encoded = holder.encode(cells.get(self.spec.name), nodes, len(index), learn=learn)
        return holder.state.elements(encoded) if holder.state and encoded else no_elements(len(index))

    def _learn(self, cells: Cells, index: NDArray[np.int64]) -> Elements:
        found = self._elements(cells, index, learn=True)
        self.holder.use(found)
        return found

    def of_nodes(self, nodes: NDArray[np.int64], entries: NDArray[np.int64] | None = None) -> Elements:
        if entries is None:
            encoded = self.holder.remembered(nodes, len(nodes))
        else:
            encoded = self.holder.as_of(nodes, entries)
        return (
            self.holder.state.elements(encoded) if self.holder.state and encoded else no_elements(len(nodes))
        )

    def _bound(self, seen: NDArray[np.int64]) -> NDArray[np.int64] | None:
        return self.holder.bound(seen)

    def to_arrays(self) -> Arrays:
        return self.holder.to_arrays()

    def read(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.holder.read(arrays)


class CrossColumn(TableColumn):
    """A table for combinations. Each part is an id of a mode (`ids`) or a column with values of its own."""

    def __init__(
        self, mode: int, spec: Cross, ids: Mapping[str, int], owners: Mapping[str, int], max_values: int
    ) -> None:
        """ids: part -> mode, for parts that are ids; owners: part -> mode, for attributes of nodes"""
        self._spec, max_values = spec, spec.most or max_values
        self.ids = {part: (ids[part], NodeCodes()) for part in spec.columns if part in ids}
        self.values = {
            part: Holder(Value(part), owners.get(part), max_values)
            for part in spec.columns
            if part not in ids
        }
        self.state = CrossState(len(spec.columns), max_values)
        super().__init__(mode, list(self.values.values()))

    @property
    def spec(self) -> Cross:
        return self._spec

    @property
    def n_rows(self) -> int:
        return self.state.n_rows

    @property
    def n_evicted(self) -> int:
        return self.state.values.n_evicted

    @property
    def _bounded(self) -> list[BoundedValues]:
        return [self.state.values, *super()._bounded]

    def elements(self, cells: Cells, index: NDArray[np.int64]) -> Elements:
        return self.state.elements(self._codes(cells, index, learn=False))

    def _learn(self, cells: Cells, index: NDArray[np.int64]) -> Elements:
        codes = self._codes(cells, index, learn=True)
        found, restarts = self.state.learn(codes, bounded=not self.collecting)
        self.restarts += [(self._start + entry, rows) for entry, rows in restarts]
        return found

    def _evicted(self, holder: Holder, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.state.drop(self.spec.columns.index(holder.spec.name), rows)

    def _bound(self, seen: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Values of a part that are too many are those in no combination that stays."""
        rows = self.state.bound(seen)
        for part, name in enumerate(self.spec.columns):
            if name in self.values:
                used = self.state.combinations()[:, part]
                moved = self.values[name].bound(np.bincount(used))
                if moved is not None:
                    self.state.move(part, moved)
        return rows

    def _codes(self, cells: Cells, index: NDArray[np.int64], *, learn: bool) -> list[NDArray[np.int64]]:
        """The codes of each part."""
        parts = []
        for name in self.spec.columns:
            if name in self.ids:
                mode, codes = self.ids[name]
                parts.append(codes.read(index[:, mode], add=learn))
            else:
                holder = self.values[name]
                nodes = None if holder.owner is None else index[:, holder.owner]
                encoded = holder.encode(cells.get(name), nodes, len(index), learn=learn)
                assert encoded is not None  # parts are never undecided
                parts.append(encoded.codes)
                if learn:
                    holder.use(single(encoded.codes))
        return parts

    def of_nodes(self, nodes: NDArray[np.int64], entries: NDArray[np.int64] | None = None) -> Elements:
        parts = []
        for name in self.spec.columns:
            codes = np.full(len(nodes), MISSING, np.int64)
            if name in self.ids and self.ids[name][0] == self.mode:
                codes = self.ids[name][1].read(nodes, add=False)
            elif name in self.values and self.values[name].owner == self.mode:
                encoded = self.values[name].remembered(nodes, len(nodes))
                assert encoded is not None
                codes = encoded.codes
            parts.append(codes)
        return self.state.elements(parts)

    def keep(self, mode: int, keep: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        super().keep(mode, keep)
        for part, name in enumerate(self.spec.columns):
            if name in self.ids and self.ids[name][0] == mode:
                codes = self.ids[name][1]
                codes.keep(keep)
                return self.state.keep_with(part, codes.codes)
        return None

    def clear(self, mode: int, rows: NDArray[np.int64]) -> None:
        super().clear(mode, rows)
        for owner, codes in self.ids.values():
            if owner == mode:
                codes.clear(rows)

    def nodes_kept(self) -> list[tuple[int, int]]:
        return super().nodes_kept() + [(mode, len(codes.codes)) for mode, codes in self.ids.values()]

    def to_arrays(self) -> Arrays:
        arrays = self.state.to_arrays()
        for part, name in enumerate(self.spec.columns):
            own = self.ids[name][1].to_arrays() if name in self.ids else self.values[name].to_arrays()
            arrays |= {f"part{part}/{key}": array for key, array in own.items()}
        return arrays

    def read(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        arrays, limits = dict(arrays), []
        for part, name in enumerate(self.spec.columns):
            start = f"part{part}/"
            own = {key.removeprefix(start): arrays.pop(key) for key in list(arrays) if key.startswith(start)}
            if name in self.ids:
                self.ids[name][1].read_arrays(own)
                limits.append(self.ids[name][1].next)
            else:
                holder = self.values[name]
                holder.read(own)
                limits.append(holder.state.n_rows if holder.state else 0)
        self.state.read_arrays(arrays)
        if (self.state.combinations() >= np.array(limits)).any():
            raise ValueError("a combination has a part that is not known")


class RecentColumn(TableColumn):
    """A table with a row for each node of another mode."""

    def __init__(self, mode: int, spec: Recent, other: int) -> None:
        super().__init__(mode, [])
        self._spec, self.state = spec, RecentState(mode, other, spec.n)

    @property
    def spec(self) -> Recent:
        return self._spec

    @property
    def n_rows(self) -> int:
        return self.state.n_rows

    def elements(self, cells: Cells, index: NDArray[np.int64]) -> Elements:
        return self.state.read(index[:, self.state.own])

    def _learn(self, cells: Cells, index: NDArray[np.int64]) -> Elements:
        return self.state.learn(index[:, self.state.own], index[:, self.state.other])

    def of_nodes(self, nodes: NDArray[np.int64], entries: NDArray[np.int64] | None = None) -> Elements:
        return self.state.read(nodes)

    def keep(self, mode: int, keep: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        if mode == self.state.own:
            self.state.keep_own(keep)
        return self.state.keep_other(keep) if mode == self.state.other else None

    def clear(self, mode: int, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        if mode == self.state.own:
            self.state.clear_own(rows)
        return self.state.clear_other(rows) if mode == self.state.other else None

    def nodes_kept(self) -> list[tuple[int, int]]:
        return [(self.state.own, self.state.n_rings), (self.state.other, self.n_rows)]

    def to_arrays(self) -> Arrays:
        return self.state.to_arrays()

    def read(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.state.read_arrays(arrays)
