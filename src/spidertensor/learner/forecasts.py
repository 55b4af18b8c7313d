"""Forecasts of entries to learn that someone has remembered, and running scores of such forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.forecast import Forecast
from spidertensor.learner.floors import in_intervals
from spidertensor.method import Update

# Between these the seconds from a forecast to its value are counted
LATE_EDGES_S = np.concatenate([[0.0], np.geomspace(1.0, 30 * 86_400.0, 150)])


class Remembered(NamedTuple):
    """Forecasts of entries; of those without one, all NaN.

    late: (n,) seconds from each forecast until its value was known
    """

    forecast: Forecast
    late: NDArray[np.float64]

    @property
    def given(self) -> NDArray[np.bool_]:
        """(n,) which entries have a forecast."""
        return ~np.isnan(self.late)

    def at(self, places: NDArray[np.int64]) -> Remembered:
        """Those at some places; -1 for an entry without one."""
        numbers, late = self.forecast.numbers[places], self.late[places]
        numbers[places < 0], late[places < 0] = np.nan, np.nan
        return Remembered(self.forecast.with_numbers(numbers), late)


def joined(parts: Sequence[tuple[Remembered | None, int]]) -> Remembered | None:
    """Those of several requests, each with its number of entries; None if there are none at all."""
    known = [part for part, _ in parts if part is not None]
    if not known:
        return None
    shape = known[0].forecast.numbers.shape[1:]
    numbers = [np.full((n, *shape), np.nan) if part is None else part.forecast.numbers for part, n in parts]
    late = [np.full(n, np.nan) if part is None else part.late for part, n in parts]
    return Remembered(known[0].forecast.with_numbers(np.concatenate(numbers)), np.concatenate(late))


class ForecastSums(NamedTuple):
    """Running sums over entries with a forecast, as `scores.Sums`."""

    weight: NDArray[np.float64]
    loss: NDArray[np.float64]
    intervals: NDArray[np.float64]  # entries with an interval, and those inside it
    late: NDArray[np.float64]  # by LATE_EDGES_S
    entries: NDArray[np.int64]
    unknown: NDArray[np.int64]  # forecasts that were asked for in vain

    @classmethod
    def start(cls) -> ForecastSums:
        one, whole = np.zeros(()), np.zeros((), np.int64)
        late = np.zeros(len(LATE_EDGES_S) - 1)
        return cls(one, one.copy(), np.zeros(2), late, whole, whole.copy())

    def add(
        self,
        update: Update,
        loss: NDArray[np.float64],
        late: NDArray[np.float64],
        keep: NDArray[np.float64],
        left: float,
    ) -> None:
        """Add the entries of one call with their losses. keep: how much each counts; left: of those before"""
        good = ~np.isnan(late) & np.isfinite(update.log_evidence)
        counted = np.where(good, keep, 0.0)
        for sums, new in (
            (self.weight, counted.sum()),
            (self.loss, counted[good] @ loss[good]),
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
