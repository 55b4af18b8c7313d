"""Take back what a call has added to the columns, if it fails on the way: out of memory, for instance.

Everything that a call changes is noted before it. Values that had to make room for others are not brought
back; then all stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.bounded_values import BoundedValues
from spidertensor.estimator.columns.holder import Holder
from spidertensor.estimator.columns.many import ManyState
from spidertensor.estimator.columns.memory import NodeMemory
from spidertensor.estimator.columns.table_columns import CrossColumn, RecentColumn, TableColumn
from spidertensor.estimator.columns.value import ValueState
from spidertensor.estimator.ids import NodeIndex


class Undo:
    """What the columns were before a call. index: (n, K) the nodes of its entries"""

    def __init__(self, columns: Sequence[TableColumn], index: NDArray[np.int64]) -> None:
        self._columns, self._index = columns, index
        self._steps: list[Callable[[], None]] = []
        self._evicted = [column.n_evicted for column in columns]
        for column in columns:
            self._fields(column, "scale")
            for holder in column.holders:
                self._note_holder(holder)
            if isinstance(column, CrossColumn):
                self._note_cross(column)
            if isinstance(column, RecentColumn):
                self._note_rings(column)

    def back(self) -> bool:
        """Take the changes back; False if that is not possible."""
        if self._evicted != [column.n_evicted for column in self._columns]:
            return False
        for step in reversed(self._steps):
            step()
        return True

    def _fields(self, thing: Any, *names: str) -> None:
        """Attributes that a call replaces."""
        before = {name: getattr(thing, name) for name in names}
        self._steps.append(lambda: vars(thing).update(before))

    def _note_holder(self, holder: Holder) -> None:
        state, memory = holder.state, holder.memory
        self._fields(holder, "spec", "state", "memory")
        if state is None:
            return
        state.tidy(memory)  # now, because it renumbers what is noted
        if isinstance(state, ValueState | ManyState):
            self._note_values(state.values)
        else:
            self._fields(state, *vars(state))
        if isinstance(state, ManyState):
            self._fields(state.pool, "n_bags", "n_elements")
        if memory is not None and holder.owner is not None:
            self._note_memory(memory, self._index[:, holder.owner])

    def _note_memory(self, memory: NodeMemory, nodes: NDArray[np.int64]) -> None:
        self._fields(memory, "_n")
        nodes = nodes[nodes < len(memory.codes)]
        before = memory.read(nodes)
        self._steps.append(lambda: memory.store(nodes, before))

    def _note_values(self, values: BoundedValues) -> None:
        self._fields(values, "n_rows", "clock", "_free")
        seen = values._seen[: values.n_rows].copy()

        def back() -> None:
            values._seen[: len(seen)] = seen

        self._steps.append(back)
        self._note_index(values.index)

    def _note_index(self, index: NodeIndex) -> None:
        n = len(index)
        self._steps.append(lambda: index.truncate(n))

    def _note_cross(self, column: CrossColumn) -> None:
        self._note_values(column.state.values)
        for fold in column.state.folds:
            self._note_index(fold)
        for _, codes in column.ids.values():
            self._fields(codes, "_n", "next")

    def _note_rings(self, column: RecentColumn) -> None:
        state, nodes = column.state, np.unique(self._index[:, column.state.own])
        self._fields(state, "n_rows")
        new, nodes = nodes[nodes >= len(state._length)], nodes[nodes < len(state._length)]
        names = ("_ring", "_age", "_first", "_length")
        before = {name: getattr(state, name)[nodes] for name in names}

        def back() -> None:
            for name, rows in before.items():
                getattr(state, name)[nodes] = rows
            state._length[new[new < len(state._length)]] = 0

        self._steps.append(back)
