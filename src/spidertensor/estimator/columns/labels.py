"""What the rows of an attribute table stand for, to show them to people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

from spidertensor.estimator.columns.calendar import HOURS, TREND_DAYS, WEEKDAYS, YEAR_PARTS, CalendarState
from spidertensor.estimator.columns.many import ManyState
from spidertensor.estimator.columns.number import END, N_KNOTS, NumberState
from spidertensor.estimator.columns.table_columns import CrossColumn, PlainColumn, RecentColumn, TableColumn
from spidertensor.estimator.columns.value import ValueState

_DAY_US = 86_400_000_000


def labels(column: TableColumn, ids: Sequence[Sequence[Any]]) -> list[Any]:
    """The value of each row; of a number its knots, then None for a missing one; of a time ("hour", 0) and so
    on; of a cross a tuple; of recent nodes their ids. None for rows whose value was evicted.

    ids: the raw ids of the nodes of each mode
    """
    if isinstance(column, RecentColumn):
        return list(ids[column.state.other][: column.n_rows])
    if isinstance(column, CrossColumn):
        return _combinations(column, ids)
    assert isinstance(column, PlainColumn)
    state = column.holder.state
    if isinstance(state, ValueState | ManyState):
        return state.values.by_row(state.values.index.ids)
    if isinstance(state, NumberState):
        return [*_knots(state), None]
    return [] if state is None else _calendar(state)


def _knots(state: NumberState) -> list[float | None]:
    if state.grid is None:
        return [None] * N_KNOTS
    places = (-END + 2 * END * knot / (N_KNOTS - 1) for knot in range(N_KNOTS))
    return [state.grid.centre + state.grid.width * math.sinh(place) for place in places]


def _calendar(state: CalendarState) -> list[tuple[str, Any]]:
    first = date(1970, 1, 1) + timedelta(days=(state.first or 0) // _DAY_US)
    trend = [("trend", first + timedelta(days=TREND_DAYS * knot)) for knot in range(state.n_trend)]
    parts = (("hour", HOURS), ("weekday", WEEKDAYS), ("year", YEAR_PARTS))
    return [*((name, number) for name, n in parts for number in range(n)), *trend]


def _combinations(column: CrossColumn, ids: Sequence[Sequence[Any]]) -> list[tuple[Any, ...] | None]:
    """A part that is an evicted id is None."""
    names: list[dict[int, Any]] = []
    for part in column.spec.columns:
        if part in column.ids:
            mode, codes = column.ids[part]
            names.append(dict(zip(codes.codes.tolist(), ids[mode], strict=False)))
        else:
            state = column.values[part].state
            assert isinstance(state, ValueState)
            names.append(dict(enumerate(state.values.by_row(state.values.index.ids))))
    known = column.state.combinations().tolist()
    named = [tuple(name.get(code) for name, code in zip(names, row, strict=True)) for row in known]
    return column.state.values.by_row(named)
