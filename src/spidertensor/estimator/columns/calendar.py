"""Calendar: hour of the day, weekday, day of the year and a slow trend, from wall-clock times as given.

Hour (24 nodes) and day of the year (12) are cyclic hats: a time between two nodes belongs to both. The trend
has a knot every 30 days, counted from the first time seen, or the earliest of a history that is learned in
several passes; new knots come as time goes on. A date without a time has no hour.

The code of a time is twice its microseconds since 1970, plus 1 if it has an hour.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.cells import Elements, Encoded, entry_of, spread, stated_of
from spidertensor.estimator.columns.number import to_numbers
from spidertensor.estimator.inputs import Column
from spidertensor.faults import EntryError

HOURS, WEEKDAYS, YEAR_PARTS = 24, 7, 12
WEEKDAY_ROW, YEAR_ROW = HOURS, HOURS + WEEKDAYS
TREND_ROW = YEAR_ROW + YEAR_PARTS
TREND_DAYS = 30
MOST_TREND = 1200  # knots, about a century: a date that is a typing error must not add thousands
NO_TIME = np.iinfo(np.int64).min

DAY_US = 86_400_000_000
TREND_US = TREND_DAYS * DAY_US
EPOCH = dt.date(1970, 1, 1).toordinal()
_DATE_UNITS = frozenset({"Y", "M", "W", "D"})
_MIN_DAY, _MAX_DAY = dt.date.min.toordinal() - EPOCH, dt.date.max.toordinal() - EPOCH
_REMEDY = "pass a datetime, a date, an ISO text such as 2024-05-31T18:30, or epoch seconds"


class CalendarCells(NamedTuple):
    """codes: (n,), NO_TIME where missing"""

    codes: NDArray[np.int64]

    @property
    def n(self) -> int:
        return len(self.codes)

    def cut(self, start: int, stop: int) -> CalendarCells:
        return CalendarCells(self.codes[start:stop])


class CalendarState:
    """What a model keeps about a column of times: when the trend begins, and how many knots it has."""

    dtype, missing = np.dtype(np.int64), NO_TIME

    def __init__(self) -> None:
        self.first: int | None = None  # microseconds
        self.n_trend = 0

    @property
    def n_rows(self) -> int:
        return TREND_ROW + self.n_trend

    def check(self, column: Column) -> CalendarCells:
        return CalendarCells(to_codes(column))

    def begin_history(self, cells: CalendarCells) -> None:
        """Let the trend begin with the earliest time of a history."""
        stated = cells.codes[cells.codes != NO_TIME]
        if self.first is None and len(stated):
            self.first, self.n_trend = int(stated.min() >> 1), 1

    def encode(self, cells: CalendarCells, *, learn: bool) -> Encoded:
        if learn:
            stated = cells.codes[cells.codes != NO_TIME]
            if len(stated):
                self.first = int(stated[0] >> 1) if self.first is None else self.first
                self.n_trend = max(self.n_trend, int(np.ceil(self._trend(stated >> 1).max())) + 1)
        return Encoded(cells.codes)

    def is_missing(self, codes: NDArray[Any]) -> NDArray[np.bool_]:
        return codes == NO_TIME

    def elements(self, encoded: Encoded) -> Elements:
        """Up to seven elements for each time, none where it is missing."""
        there = encoded.codes != NO_TIME
        codes = np.where(there, encoded.codes, 0)
        us, n = codes >> 1, len(codes)
        day, in_day = us // DAY_US, (us % DAY_US) / DAY_US
        row, weight = np.empty((n, 7), np.int64), np.empty((n, 7), np.float32)
        row[:, :2], weight[:, :2] = _cyclic(in_day * HOURS, HOURS)
        weight[(codes & 1) == 0, :2] = 0
        row[:, 2], weight[:, 2] = WEEKDAY_ROW + (day + 3) % WEEKDAYS, 1  # 1970 began on a Thursday
        row[:, 3:5], weight[:, 3:5] = _cyclic(_in_year(day, in_day) * YEAR_PARTS, YEAR_PARTS)
        row[:, 3:5] += YEAR_ROW
        place = self._trend(us)
        knot = place.astype(np.int64)
        weight[:, 6] = place - knot
        weight[:, 5] = 1 - weight[:, 6]
        knots = np.stack([knot, knot + 1], axis=1)
        row[:, 5:] = np.where(knots < self.n_trend, TREND_ROW + knots, -1)
        used = (weight > 0) & there[:, None]
        return Elements(used.sum(axis=1), row[used], weight[used])

    def _trend(self, us: NDArray[np.int64]) -> NDArray[np.float64]:
        """Times on the grid of the trend, from 0 for the first time seen."""
        first = int(us[0]) if self.first is None and len(us) else self.first or 0
        return np.clip((us - first) / TREND_US, 0, MOST_TREND - 1)

    def tidy(self, memory: Any) -> None:
        """Nothing to tidy up."""

    def to_arrays(self, memory: Any) -> dict[str, NDArray[Any]]:
        return {"trend": np.array([] if self.first is None else [self.first, self.n_trend], np.int64)}

    def read(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        trend = arrays.get("trend")
        if trend is None or len(arrays) != 1 or trend.dtype != np.int64 or trend.shape not in ((0,), (2,)):
            raise ValueError(f"unknown arrays {sorted(arrays)!s:.200}")
        if len(trend):
            first, n_trend = trend.tolist()
            if not (_MIN_DAY <= first // DAY_US <= _MAX_DAY and 1 <= n_trend <= MOST_TREND):
                raise ValueError("the trend is not possible")
            self.first, self.n_trend = first, n_trend

    def possible(self, codes: NDArray[Any]) -> bool:
        """Whether codes from a file are times that were learned: the trend has their knots."""
        us = codes[codes != NO_TIME] >> 1
        if not len(us):
            return True
        day = us // DAY_US
        inside = ((day >= _MIN_DAY) & (day <= _MAX_DAY)).all()
        return bool(inside and self.first is not None and np.ceil(self._trend(us).max()) < self.n_trend)


def _cyclic(place: NDArray[np.float64], n: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The two neighbours of each place on a circle of n nodes, and their weights, both (.., 2)."""
    low = np.floor(place)
    share = (place - low).astype(np.float32)
    row = low.astype(np.int64)
    return np.stack([row % n, (row + 1) % n], axis=1), np.stack([1 - share, share], axis=1)


def _in_year(day: NDArray[np.int64], in_day: NDArray[np.float64]) -> NDArray[np.float64]:
    """The part of the year that has passed, from 0 to 1."""
    year = day.astype("M8[D]").astype("M8[Y]")
    start, end = (each.astype("M8[D]").astype(np.int64) for each in (year, year + 1))
    return (day - start + in_day) / (end - start)


def to_codes(column: Column) -> NDArray[np.int64]:
    """(n,) codes of times, NO_TIME where missing; EntryError for what is no time."""
    stated, mask = stated_of(column)
    if isinstance(stated, np.ndarray) and stated.dtype.kind not in "Mbiuf":
        stated = stated.tolist()
    if isinstance(stated, np.ndarray) and stated.dtype.kind == "M":
        codes = _codes_of_array(stated, mask)
    elif isinstance(stated, np.ndarray) or set(map(type, stated)) <= {int, float}:
        codes = _codes_of_seconds(stated, mask)
    elif set(map(type, stated)) == {dt.datetime} and all(each.tzinfo is None for each in stated):
        codes = _codes_of_array(np.array(stated, "M8[us]"), mask)
    else:
        cells = (_code(cell, mask, place) for place, cell in enumerate(stated))
        codes = np.fromiter(cells, np.int64, len(stated))
    return spread(mask, codes, NO_TIME)


def _codes_of_array(times: NDArray[Any], mask: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    unit = np.datetime_data(times.dtype)[0]
    year = times.astype("M8[Y]").astype(np.int64) + 1970
    wrong = (year < 1) | (year > 9999)
    if wrong.any():
        raise _no_time(times[wrong.argmax()], entry_of(mask, int(wrong.argmax())))
    return 2 * times.astype("M8[us]").astype(np.int64) + (unit not in _DATE_UNITS)


def _codes_of_seconds(column: Column, mask: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    if isinstance(column, np.ndarray) and column.dtype.kind == "b":
        raise _no_time(bool(column[0]), entry_of(mask, 0))
    seconds = to_numbers(column)
    wrong = ~((seconds >= _MIN_DAY * 86400) & (seconds < (_MAX_DAY + 1) * 86400))
    if wrong.any():
        raise _no_time(seconds[wrong.argmax()], entry_of(mask, int(wrong.argmax())))
    return 2 * np.rint(seconds * 1e6).astype(np.int64) + 1


def code_of(cell: Any) -> int:
    """The code of a single time."""
    return _code(cell, None, 0)


def _code(cell: Any, mask: NDArray[np.bool_] | None, place: int) -> int:
    """The code of a single time of any type."""
    try:
        if isinstance(cell, str):
            if not cell.strip():
                return NO_TIME
            text = cell.strip()
            cell = dt.date.fromisoformat(text) if len(text) <= 10 else dt.datetime.fromisoformat(text)
        if isinstance(cell, dt.datetime):
            in_day = ((cell.hour * 60 + cell.minute) * 60 + cell.second) * 1_000_000 + cell.microsecond
            return 2 * ((cell.toordinal() - EPOCH) * DAY_US + in_day) + 1
        if isinstance(cell, dt.date):
            return 2 * (cell.toordinal() - EPOCH) * DAY_US
        if isinstance(cell, np.datetime64):
            return int(_codes_of_array(np.array([cell]), None)[0])
        if isinstance(cell, int | float | np.integer | np.floating) and not isinstance(cell, bool):
            return int(_codes_of_seconds([cell.item() if isinstance(cell, np.generic) else cell], None)[0])
    except ValueError:  # among them EntryError, which does not know the row
        pass
    raise _no_time(cell, entry_of(mask, place))


def _no_time(cell: Any, row: int) -> EntryError:
    shown = f"{cell!s:.80}" if isinstance(cell, np.generic) else f"{cell!r:.80}"
    return EntryError(f"{shown} is not a time", row, kind="attribute", value=cell, remedy=_REMEDY)
