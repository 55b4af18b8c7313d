"""Forecasts of entries to learn that someone has remembered, and running scores of such forecasts.

The floors forecast at the same time, so that both are compared with equal knowledge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.forecast import Forecast
from spidertensor.learner.floors import FLOORS, in_intervals
from spidertensor.method import Update

# Between these the seconds from a forecast to its value are counted
LATE_EDGES_S = np.concatenate([[0.0], np.geomspace(1.0, 30 * 86_400.0, 150)])


class Remembered(NamedTuple):
    """Forecasts of entries; of those without one, all NaN.

    floors: (n, floors, 3) what the floors predicted at the same time: see RunningFloors.forecast
    late:   (n,) seconds from each forecast until its value was known
    """

    forecast: Forecast
    floors: NDArray[np.float64]
    late: NDArray[np.float64]

    @classmethod
    def of_rows(cls, like: Forecast, rows: NDArray[np.float64], late: NDArray[np.float64]) -> Remembered:
        """The inverse of `rows_of`. like: a forecast by the same model"""
        own = like.numbers.shape[1:]
        numbers, floors = np.split(rows, [math.prod(own)], axis=1)
        forecast = like.with_numbers(numbers.reshape(len(rows), *own))
        return cls(forecast, floors.reshape(len(rows), len(FLOORS), 3), late)

    @property
    def rows(self) -> NDArray[np.float64]:
        return rows_of(self.forecast, self.floors)

    @property
    def given(self) -> NDArray[np.bool_]:
        """(n,) which entries have a forecast."""
        return ~np.isnan(self.late)

    def at(self, places: NDArray[np.int64]) -> Remembered:
        """Those at some places; -1 for an entry without one."""
        rows, late = self.rows[places], self.late[places]
        rows[places < 0], late[places < 0] = np.nan, np.nan
        return Remembered.of_rows(self.forecast, rows, late)


def row_size(like: Forecast) -> int:
    """How many numbers a row has."""
    return math.prod(like.numbers.shape[1:]) + 3 * len(FLOORS)


def rows_of(forecast: Forecast, floors: NDArray[np.float64]) -> NDArray[np.float64]:
    """All numbers of a forecast and of the floors' one, a row for each entry."""
    n, size = len(forecast), row_size(forecast)
    own = size - 3 * len(FLOORS)
    return np.concatenate([forecast.numbers.reshape(n, own), floors.reshape(n, size - own)], axis=1)


def joined(parts: Sequence[tuple[Remembered | None, int]]) -> Remembered | None:
    """Those of several requests, each with its number of entries; None if there are none at all."""
    known = [part for part, _ in parts if part is not None]
    if not known:
        return None
    like = known[0].forecast
    rows = [np.full((n, row_size(like)), np.nan) if part is None else part.rows for part, n in parts]
    late = [np.full(n, np.nan) if part is None else part.late for part, n in parts]
    return Remembered.of_rows(like, np.concatenate(rows), np.concatenate(late))


class ForecastSums(NamedTuple):
    """Running sums over entries with a forecast, as `scores.Sums`."""

    weight: NDArray[np.float64]
    losses: NDArray[np.float64]  # of the model and of the floors
    intervals: NDArray[np.float64]  # entries with an interval, and those inside it
    late: NDArray[np.float64]  # by LATE_EDGES_S
    entries: NDArray[np.int64]
    unknown: NDArray[np.int64]  # forecasts that were asked for in vain

    @classmethod
    def start(cls) -> ForecastSums:
        one, whole = np.zeros(()), np.zeros((), np.int64)
        late = np.zeros(len(LATE_EDGES_S) - 1)
        return cls(one, np.zeros(1 + len(FLOORS)), np.zeros(2), late, whole, whole.copy())

    def add(
        self,
        update: Update,
        losses: NDArray[np.float64],
        late: NDArray[np.float64],
        keep: NDArray[np.float64],
        left: float,
    ) -> None:
        """Add the entries of one call with their losses. keep: how much each counts; left: of those before"""
        good = ~np.isnan(late) & np.isfinite(update.log_evidence)
        counted = np.where(good, keep, 0.0)
        for sums, new in (
            (self.weight, counted.sum()),
            (self.losses, losses[:, good] @ counted[good]),
            (self.intervals, in_intervals(update) @ counted),
            (
                self.late,
                np.histogram(np.minimum(late[good], LATE_EDGES_S[-1]), LATE_EDGES_S, weights=keep[good])[0],
            ),
        ):
            sums[...] = sums * left + new
        self.entries[()] += np.count_nonzero(good)

    @property
    def coverage(self) -> float | None:
        calibrated, inside = self.intervals.tolist()
        return inside / calibrated if calibrated >= 1 else None

    def late_quantile(self, share: float) -> float | None:
        """Seconds within which this share of the values was known; None before the first."""
        below = np.concatenate([[0.0], np.cumsum(self.late)])
        return float(np.interp(share * below[-1], below, LATE_EDGES_S)) if below[-1] > 0 else None
