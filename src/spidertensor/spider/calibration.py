"""Intervals with the stated coverage, without held-out data: mathematics.md section 15.

Before an entry is learned, its residual in predictive standard deviations, (y - mean) / sd, is added to a
histogram that forgets. Intervals use its quantiles in place of the normal distribution's.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from spidertensor.spider.compiled import COMPILE, kernel

MEMORY_ENTRIES = 1000  # after which a residual's weight has fallen to 1/e
# The same of forecasts: errors of the same hours are alike and become known together, so that the last
# thousand tell little of the next (docs/history.md).
FORECAST_MEMORY = 4000
START_ENTRIES = 100.0  # mass of N(0, 1) that a histogram starts with
INNER, OUTER = 4.0, 100.0  # bins are equally wide up to INNER, then grow geometrically to OUTER
_RIGHT = np.concatenate([np.linspace(0, INNER, 101), np.geomspace(INNER, OUTER, 41)[1:]])
EDGES = np.concatenate([-_RIGHT[:0:-1], _RIGHT])  # residuals beyond these go into the outermost bins
N_BINS = len(EDGES) - 1


class Histogram(NamedTuple):
    mass: NDArray[np.float64]  # (N_BINS,)


class ForecastScores(NamedTuple):
    """Residuals of forecasts: predictions made some time before their entries were learned.

    share: of recent entries that came with a forecast, at entry number `latest`, the last that did
    """

    mass: NDArray[np.float64]  # (N_BINS,)
    entries: NDArray[np.int64]  # number of forecasts scored
    share: NDArray[np.float64]
    latest: NDArray[np.int64]


class RestScores(NamedTuple):
    """Residuals of entries that the model predicted at rest, when it had learned `at` entries."""

    mass: NDArray[np.float64]  # (N_BINS,)
    entries: NDArray[np.int64]
    at: NDArray[np.int64]


def start_of_forecasts() -> ForecastScores:
    return ForecastScores(start().mass, np.zeros((), np.int64), np.zeros(()), np.zeros((), np.int64))


def start_at_rest() -> RestScores:
    return RestScores(start().mass, np.zeros((), np.int64), np.zeros((), np.int64))


def start() -> Histogram:
    cdf = ndtr(EDGES)
    cdf[0], cdf[-1] = 0, 1
    return Histogram(START_ENTRIES * np.diff(cdf))


def quantile(histogram: Histogram, probability: Any) -> Any:
    """The residual with this share of the mass below it, or several; within a bin the mass is uniform."""
    cdf = np.concatenate([[0.0], np.cumsum(histogram.mass)])
    return np.interp(np.asarray(probability) * cdf[-1], cdf, EDGES)


@kernel(**COMPILE | {"fastmath": False})
def note_shares(share, latest, numbers):
    """The entries with these numbers came with forecasts; others are inferred from the gaps."""
    for number in numbers:
        share[()] = share[()] * (1 - 1 / MEMORY_ENTRIES) ** (number - latest[()]) + 1 / MEMORY_ENTRIES
        latest[()] = number


@kernel(**COMPILE)
def note(mass, memory, residual, good, below):
    """Add the `good` residuals one by one; fills below (n,) with the share of the mass below each, or NaN.

    memory: number of residuals after which the weight of one has fallen to 1/e
    """
    keep = 1 - 1 / memory
    for i in range(len(residual)):
        if not good[i]:
            below[i] = np.nan
            continue
        r = residual[i]
        if abs(r) > OUTER:
            r = math.copysign(OUTER, r)
        b = min(np.searchsorted(EDGES, r, side="right") - 1, N_BINS - 1)
        lower, total = 0.0, 0.0
        for k in range(b):
            lower += mass[k]
        for k in range(N_BINS):
            total += mass[k]
            mass[k] *= keep
        inside = (r - EDGES[b]) / (EDGES[b + 1] - EDGES[b])
        below[i] = (lower + inside * mass[b] / keep) / total
        mass[b] += 1
