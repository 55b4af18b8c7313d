"""Intervals that cover what they say, without held-out data: mathematics.md section 15.

Before an entry is learned its residual in predictive standard deviations, (y - mean) / sd, goes into a
histogram that forgets. Its quantiles take the place of the normal distribution's.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from spidertensor.spider.compiled import COMPILE, kernel

MEMORY = 1000  # entries after which a residual counts 1/e
START = 100.0  # entries' worth of N(0, 1) that a histogram starts with
INNER, OUTER = 4.0, 100.0  # bins are equally wide up to the one, and grow to the other
_RIGHT = np.concatenate([np.linspace(0, INNER, 101), np.geomspace(INNER, OUTER, 41)[1:]])
EDGES = np.concatenate([-_RIGHT[:0:-1], _RIGHT])  # residuals beyond the last count in the last bin
N_BINS = len(EDGES) - 1


class Histogram(NamedTuple):
    mass: NDArray[np.float64]  # (N_BINS,)


def start() -> Histogram:
    cdf = ndtr(EDGES)
    cdf[0], cdf[-1] = 0, 1
    return Histogram(START * np.diff(cdf))


def quantile(histogram: Histogram, probability: float) -> float:
    """Where the mass below is this share; inside a bin it is spread evenly."""
    cdf = np.concatenate([[0.0], np.cumsum(histogram.mass)])
    return float(np.interp(probability * cdf[-1], cdf, EDGES))


@kernel(**COMPILE)
def note(mass, residual, good, below):
    """Take in the residuals that are `good`, one by one; below (n,): the share of the mass that lay below."""
    keep = 1 - 1 / MEMORY
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
