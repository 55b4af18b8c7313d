"""Intervals with the stated coverage, without held-out data: mathematics.md section 15.

Before an entry is learned, its residual in predictive standard deviations, (y - mean) / sd, is added to a
histogram that forgets. Intervals use its quantiles in place of the normal distribution's.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from spidertensor.spider.compiled import COMPILE, kernel

MEMORY_ENTRIES = 1000  # after which a residual's weight has fallen to 1/e
START_ENTRIES = 100.0  # mass of N(0, 1) that a histogram starts with
INNER, OUTER = 4.0, 100.0  # bins are equally wide up to INNER, then grow geometrically to OUTER
_RIGHT = np.concatenate([np.linspace(0, INNER, 101), np.geomspace(INNER, OUTER, 41)[1:]])
EDGES = np.concatenate([-_RIGHT[:0:-1], _RIGHT])  # residuals beyond these go into the outermost bins
N_BINS = len(EDGES) - 1


class Histogram(NamedTuple):
    mass: NDArray[np.float64]  # (N_BINS,)


def start() -> Histogram:
    cdf = ndtr(EDGES)
    cdf[0], cdf[-1] = 0, 1
    return Histogram(START_ENTRIES * np.diff(cdf))


def quantile(histogram: Histogram, probability: float) -> float:
    """The residual with this share of the mass below it; within a bin the mass is uniform."""
    cdf = np.concatenate([[0.0], np.cumsum(histogram.mass)])
    return float(np.interp(probability * cdf[-1], cdf, EDGES))


@kernel(**COMPILE)
def note(mass, residual, good, below):
    """Add the `good` residuals one by one; fills below (n,) with the share of the mass below each, or NaN."""
    keep = 1 - 1 / MEMORY_ENTRIES
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
