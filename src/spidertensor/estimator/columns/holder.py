"""One column of the input with its state, and the latest attribute of each node if it belongs to nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.bounded_values import TRIED_ENTRIES, moved_rows
from spidertensor.estimator.columns.calendar import CalendarState
from spidertensor.estimator.columns.cells import Elements, Encoded
from spidertensor.estimator.columns.deciding import decide
from spidertensor.estimator.columns.many import ManyState
from spidertensor.estimator.columns.memory import Changes, NodeMemory
from spidertensor.estimator.columns.number import NumberState
from spidertensor.estimator.columns.specs import Calendar, Many, Number, Spec, Undecided, Value
from spidertensor.estimator.columns.value import ValueState
from spidertensor.estimator.inputs import Column
from spidertensor.faults import EntryError

State = ValueState | NumberState | ManyState | CalendarState


class CheckedColumn(NamedTuple):
    """Cells that can be learned, and what the column was taken for."""

    spec: Spec
    cells: Any

    def cut(self, start: int, stop: int) -> CheckedColumn:
        return CheckedColumn(self.spec, self.cells.cut(start, stop))


class Holder:
    """owner: the mode whose nodes have this attribute; None if it belongs to the entry"""

    def __init__(self, spec: Spec, owner: int | None, max_values: int) -> None:
        self.spec, self.owner, self._max_values = spec, owner, max_values
        self.state: State | None = None
        self.memory: NodeMemory | None = None
        self._changes: Changes | None = None  # of the latest call, for the negatives of events
        if not isinstance(spec, Undecided):
            self._start(spec)

    def _new_state(self, spec: Spec) -> State:
        if isinstance(spec, Number):
            return NumberState()
        if isinstance(spec, Calendar):
            return CalendarState()
        limit = (spec.most if isinstance(spec, Value | Many) else None) or self._max_values
        if isinstance(spec, Many):
            return ManyState(spec.sep, limit, remembers=self.owner is not None)
        return ValueState(limit)

    def _start(self, spec: Spec) -> None:
        self.spec, self.state = spec, self._new_state(spec)
        if self.owner is not None:
            self.memory = NodeMemory(self.state.dtype, self.state.missing)

    def check(self, column: Column) -> CheckedColumn | None:
        """Convert and check the cells; None if the column is undecided and all cells are missing."""
        spec = self.spec
        try:
            if isinstance(spec, Undecided):
                spec = decide(spec.column, column)
            if spec is None:
                return None
            return CheckedColumn(spec, (self.state or self._new_state(spec)).check(column))
        except EntryError as error:
            raise error.but(column=self.spec.name) from None

    def refused(self, column: Column) -> dict[int, EntryError]:
        """Every cell that `check` refuses: its entry, and why. Slow if there is one."""
        found: dict[int, EntryError] = {}
        try:
            self.check(column)
            return found
        except EntryError as error:
            if error.row is None:
                raise
        spec = decide(self.spec.name, column) if isinstance(self.spec, Undecided) else self.spec
        assert spec is not None  # a missing cell is never refused
        state = self.state or self._new_state(spec)
        for entry in range(len(column)):
            try:
                state.check(column[entry : entry + 1])
            except EntryError as error:
                found[entry] = error.but(row=entry, column=self.spec.name)
        return found

    def adopt(self, given: CheckedColumn | None) -> None:
        """Decide what the column is, if it is undecided."""
        if given is None:
            return
        if self.state is None:
            self._start(given.spec)
        elif given.spec != self.spec:
            raise ValueError(f"column {self.spec.name} was checked before it was decided: check it again")

    def encode(
        self, given: CheckedColumn | None, nodes: NDArray[np.int64] | None, n: int, *, learn: bool
    ) -> Encoded | None:
        """The codes of n entries, those of their nodes where missing; None if the column is undecided."""
        state, memory = self.state, self.memory
        if state is None:
            return None
        changes = self._changes if learn else None
        if given is None:
            if changes is not None:
                changes.passed(n)
            return self.remembered(nodes, n)
        if learn and changes is None:
            state.tidy(memory)
        encoded = state.encode(given.cells, learn=learn)
        if memory is None or nodes is None:
            return encoded
        codes, missing = encoded.codes, state.is_missing(encoded.codes)
        if learn:
            before = None if changes is None else memory.read(nodes)
            codes = memory.fill_and_store(nodes, codes, ~missing)
            if changes is not None and before is not None:
                changes.learned(nodes, before, codes, encoded.ready)
        elif missing.any():
            codes = np.where(missing, memory.read(nodes), codes)
        return encoded._replace(codes=codes)

    def fitting(self, given: CheckedColumn | None, n: int) -> int:
        """For how many of n entries, from the first on, the values are known to find room."""
        if given is None or not isinstance(self.state, ValueState | ManyState):
            return n
        if len(self.state.values) + len(given.cells.values) <= self.state.values.limit:
            return n
        return self.state.fitting(given.cells.cut(0, min(n, TRIED_ENTRIES)))

    def make_room(self, given: CheckedColumn | None) -> NDArray[np.int64]:
        """Evict values so that those of this one entry fit; returns the rows that they had."""
        if given is None or not isinstance(self.state, ValueState | ManyState):
            return np.empty(0, np.int64)
        values = self.state.values
        numbers = values.make_room(given.cells.values)
        if not len(numbers):
            return numbers
        rows = values.remove(numbers)
        self.state.forget(rows, self.memory)
        return rows

    def bound(self, seen: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Keep as many values as there may be, those most often seen.

        seen: (rows,) how often each was. Return the new row of each, -1 if it is gone; None if all stay
        """
        if not isinstance(self.state, ValueState | ManyState):
            return None
        numbers = self.state.values.rarest(seen)
        if not len(numbers):
            return None
        self.state.forget(self.state.values.remove(numbers), self.memory)
        moved = moved_rows(self.state.values.compact())
        self.state.move(moved, self.memory)
        return moved

    def use(self, elements: Elements) -> None:
        """Entries were learned with these elements, so that their values count as seen."""
        if isinstance(self.state, ValueState | ManyState):
            self.state.values.use(elements)

    def remembered(self, nodes: NDArray[np.int64] | None, n: int) -> Encoded | None:
        """The codes that the model keeps for these nodes."""
        if self.state is None:
            return None
        if self.memory is None or nodes is None:
            return Encoded(np.full(n, self.state.missing, self.state.dtype))
        return Encoded(self.memory.read(nodes))

    def as_of(self, nodes: NDArray[np.int64], entries: NDArray[np.int64]) -> Encoded | None:
        """The codes that the model kept for these nodes when it had learned the latest call up to these
        entries."""
        encoded = self.remembered(nodes, len(nodes))
        if encoded is None or self._changes is None or self.state is None:
            return encoded
        ready, codes = self._changes.ready, self._changes.undone(nodes, encoded.codes, entries)
        return Encoded(np.where(entries < ready, self.state.missing, codes) if ready else codes)

    def keep_changes(self) -> None:
        """Keep what the next call changes."""
        self._changes = Changes()
        if self.state is not None:
            self.state.tidy(self.memory)  # not during the call, because it renumbers the codes

    def forget_changes(self) -> None:
        self._changes = None

    def clear(self, nodes: NDArray[np.int64]) -> None:
        """These nodes belong to other ids from now on."""
        if self.memory is None:
            return
        if self._changes is not None:
            self._changes.cleared(nodes, self.memory.read(nodes), self.memory.missing)
        self.memory.clear(nodes)

    def describe(self, nodes: NDArray[np.int64], given: CheckedColumn) -> None:
        """Replace the attribute of these nodes where it is stated."""
        assert self.state is not None
        assert self.memory is not None
        self.state.tidy(self.memory)
        codes = self.state.encode(given.cells, learn=True).codes
        self.memory.store(nodes, codes, ~self.state.is_missing(codes))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        if self.state is None:
            return {}
        arrays = self.state.to_arrays(self.memory)
        return arrays if self.memory is None else {"memory": self.memory.codes.copy()} | arrays

    def read(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of `to_arrays`. ValueError for anything it does not write."""
        arrays = dict(arrays)
        if self.state is None:
            if arrays:
                raise ValueError("an undecided column has arrays")
            return
        codes = arrays.pop("memory", None)
        self.state.read(arrays)
        if (codes is None) != (self.memory is None):
            raise ValueError("the attributes of nodes are missing, or of an entry")
        if codes is None or self.memory is None:
            return
        if codes.dtype != self.state.dtype or codes.ndim != 1 or not self.state.possible(codes):
            raise ValueError("the attributes of nodes are not possible")
        self.memory.codes = codes
