"""The bag of a single entry, without the arrays that many entries need.

`find` changes nothing, and applies if all values are known; `Found.keep` then remembers what the entry
states. Bags and what stays are the same as those of `FittedColumns.bags`, bit for bit.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from math import ceil, floor, isinf, sqrt
from typing import Any

import numpy as np

from spidertensor.estimator.columns import calendar, number
from spidertensor.estimator.columns.bounded_values import BoundedValues
from spidertensor.estimator.columns.calendar import NO_TIME, TREND_ROW, WEEKDAY_ROW, YEAR_ROW, CalendarState
from spidertensor.estimator.columns.cells import MISSING, UNSEEN
from spidertensor.estimator.columns.cross import HALF
from spidertensor.estimator.columns.holder import Holder
from spidertensor.estimator.columns.many import ManyState
from spidertensor.estimator.columns.many_cells import read_cell
from spidertensor.estimator.columns.number import N_KNOTS, NumberState
from spidertensor.estimator.columns.table_columns import CrossColumn, PlainColumn, RecentColumn, TableColumn
from spidertensor.estimator.columns.value import ValueState
from spidertensor.faults import EntryError

_PLAIN = frozenset({str, int, bool, bytes})
_MANY = frozenset({str, list, tuple, dict})
_NUMPY = (np.number, np.bool_, np.str_)  # as a row of a data frame has

Bag = list[tuple[int, float]]  # rows and weights in one table


class _Otherwise(Exception):
    """The general path has to be taken."""


class Found:
    """What `find` has found.

    elements: of all tables: (table, row, weight)
    """

    def __init__(self, nodes: list[int], learn: bool) -> None:
        self.nodes, self.learn = nodes, learn
        self.elements: list[tuple[int, int, float]] = []
        self._seen: list[tuple[BoundedValues, list[int]]] = []  # the rows that count as seen
        self._stated: list[tuple[Holder, Any]] = []  # codes to remember, or bags of a Many
        self._recent: list[RecentColumn] = []

    def add(self, table: int, column: TableColumn, given: Mapping[str, Any]) -> None:
        if isinstance(column, PlainColumn):
            bag = self._plain(column.holder, plain_cell(given.get(column.holder.spec.name)))
        elif isinstance(column, CrossColumn):
            bag = self._cross(column, given)
        else:
            assert isinstance(column, RecentColumn)
            bag = self._ring(column)
        if len(bag) > 1 and sum(row < 0 for row, _ in bag) > 1:
            raise _Otherwise  # unseen ones are merged
        self.elements += [(table, row, weight) for row, weight in bag]

    def keep(self) -> None:
        """The entry was learned: remember what it states."""
        for values, rows in self._seen:
            values.see(rows)
        for holder, code in self._stated:
            state, memory = holder.state, holder.memory
            assert memory is not None
            assert holder.owner is not None
            if isinstance(state, ManyState):
                state.tidy(memory)
                code = state.pooled(code)
            memory.set(self.nodes[holder.owner], code)
        for column in self._recent:
            own, other = (np.array([self.nodes[mode]]) for mode in (column.state.own, column.state.other))
            column.state.learn(own, other)

    def _plain(self, holder: Holder, cell: Any) -> Bag:
        state = holder.state
        if isinstance(state, ValueState):
            code = self._value(holder, state, cell)
            return [] if code == MISSING else [(code, 1.0)]
        if isinstance(state, NumberState):
            return self._number(holder, state, cell)
        if isinstance(state, ManyState):
            return self._many(holder, state, cell)
        if isinstance(state, CalendarState):
            return self._calendar(holder, state, cell)
        if cell is not None:
            raise _Otherwise  # it decides what the column is
        return []

    def _known(self, holder: Holder) -> Any:
        """What the model remembers of the node."""
        if holder.memory is None:
            return None if holder.state is None else holder.state.missing
        assert holder.owner is not None
        return holder.memory.get(self.nodes[holder.owner])

    def _value(self, holder: Holder, state: ValueState, cell: Any) -> int:
        """The code of a cell."""
        if cell is None:
            code = int(self._known(holder))
        elif type(cell) in _PLAIN:
            code = self._row(state.values, cell)
            if self.learn and holder.memory is not None:
                self._stated.append((holder, code))
        else:
            raise _Otherwise
        if self.learn:
            self._seen.append((state.values, [code] if code >= 0 else []))
        return code

    def _row(self, values: BoundedValues, value: Any) -> int:
        row = values.row_of(value)
        if row < 0 and self.learn:
            raise _Otherwise  # it is new
        return row

    def _number(self, holder: Holder, state: NumberState, cell: Any) -> Bag:
        if cell is None or cell != cell:
            x = float(self._known(holder))
        elif type(cell) is float or type(cell) is int or type(cell) is bool:
            try:
                x = float(cell)
            except OverflowError:
                raise _Otherwise from None
            if isinf(x) or (self.learn and state.grid is None):
                raise _Otherwise
            if self.learn and holder.memory is not None:
                self._stated.append((holder, x))
        else:
            raise _Otherwise
        if state.grid is None or x != x:
            return [(N_KNOTS, 1.0)]
        z = float(np.arcsinh((x - state.grid.centre) / state.grid.width))
        place = (min(max(z, -number.END), number.END) + number.END) * ((N_KNOTS - 1) / (2 * number.END))
        return _hats(place, min(int(place), N_KNOTS - 2))

    def _many(self, holder: Holder, state: ManyState, cell: Any) -> Bag:
        if cell is None or (type(cell) is str and not cell.strip()):
            code = int(self._known(holder))
            bag = [] if code < 0 else state.pool.bag(code)
        elif type(cell) in _MANY:
            try:
                values, weights = read_cell(cell, state.sep)
            except EntryError:
                raise _Otherwise from None
            if not _PLAIN.issuperset(map(type, values)):
                raise _Otherwise
            weights = [1 / sqrt(len(values) or 1)] * len(values) if weights is None else weights
            bag = list(zip([self._row(state.values, value) for value in values], weights, strict=True))
            if self.learn and holder.memory is not None:
                self._stated.append((holder, bag))
        else:
            raise _Otherwise
        if self.learn:
            self._seen.append((state.values, [row for row, _ in bag]))
        return bag

    def _calendar(self, holder: Holder, state: CalendarState, cell: Any) -> Bag:
        if cell is None:
            code = int(self._known(holder))
        elif type(cell) in (dt.datetime, dt.date, str):
            try:
                code = calendar.code_of(cell)
            except EntryError:
                raise _Otherwise from None
        else:
            raise _Otherwise
        if code == NO_TIME:
            return []
        us = code >> 1
        if state.first is None:
            raise _Otherwise
        place = min(max(float(us - state.first) / calendar.TREND_US, 0.0), calendar.MOST_TREND - 1.0)
        if cell is not None and self.learn:
            if ceil(place) >= state.n_trend:
                raise _Otherwise  # the trend gets another knot
            if holder.memory is not None:
                self._stated.append((holder, code))
        day, in_day = us // calendar.DAY_US, (us % calendar.DAY_US) / calendar.DAY_US
        bag = _circle(in_day * calendar.HOURS, calendar.HOURS, 0) if code & 1 else []
        bag.append((WEEKDAY_ROW + (day + 3) % calendar.WEEKDAYS, 1.0))
        bag += _circle(_in_year(day, in_day) * calendar.YEAR_PARTS, calendar.YEAR_PARTS, YEAR_ROW)
        trend = _hats(place, int(place))
        return bag + [(TREND_ROW + row if row < state.n_trend else UNSEEN, weight) for row, weight in trend]

    def _cross(self, column: CrossColumn, given: Mapping[str, Any]) -> Bag:
        state = column.state
        parts = [self._part(column, name, given) for name in column.spec.columns]
        row = MISSING if MISSING in parts else UNSEEN
        if min(parts) >= 0:
            code = parts[0]
            for fold, part in zip(state.folds, parts[1:-1], strict=True):
                code = fold.number_of(code * HALF + part) if code >= 0 else code
            row = state.values.row_of(code * HALF + parts[-1]) if code >= 0 else UNSEEN
        if self.learn:
            if row == UNSEEN:
                raise _Otherwise
            self._seen.append((state.values, [row] if row >= 0 else []))
        return [] if row == MISSING else [(row, 1.0)]

    def _part(self, column: CrossColumn, name: str, given: Mapping[str, Any]) -> int:
        if name in column.ids:
            mode, codes = column.ids[name]
            node = self.nodes[mode]
            return int(codes.codes[node]) if 0 <= node < len(codes.codes) else UNSEEN
        holder = column.values[name]
        assert isinstance(holder.state, ValueState)
        return self._value(holder, holder.state, plain_cell(given.get(name)))

    def _ring(self, column: RecentColumn) -> Bag:
        state = column.state
        if self.learn:
            if self.nodes[state.other] >= state.n_rows:
                raise _Otherwise  # the table gets another row
            self._recent.append(column)
        _, rows, weights = state.read(np.array([self.nodes[state.own]]))
        return list(zip(rows.tolist(), weights.tolist(), strict=True))


def find(
    columns: list[TableColumn], given: Mapping[str, Any], nodes: list[int], *, learn: bool
) -> Found | None:
    """The bag of an entry with these cells, by name, and these nodes; None if `bags` has to make it."""
    found = Found(nodes, learn)
    try:
        for table, column in enumerate(columns):
            found.add(table, column, given)
    except _Otherwise:
        return None
    return found


def plain_cell(cell: Any) -> Any:
    """A number or text of NumPy as one of Python; anything else as it is."""
    return cell.item() if isinstance(cell, _NUMPY) else cell


def _hats(place: float, low: int) -> Bag:
    """The two neighbours of a place, without those of weight 0."""
    share = np.float32(place - low)
    return [(low + up, weight) for up, weight in ((0, float(1 - share)), (1, float(share))) if weight > 0]


def _circle(place: float, n: int, first: int) -> Bag:
    return [(first + row % n, weight) for row, weight in _hats(place, floor(place))]


def _in_year(day: int, in_day: float) -> float:
    """As calendar.py has it for many."""
    year = dt.date.fromordinal(day + calendar.EPOCH).year
    start = dt.date(year, 1, 1).toordinal() - calendar.EPOCH
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return (day - start + in_day) / (366 if leap else 365)
