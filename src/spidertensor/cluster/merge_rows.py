"""Merge several workers' versions of the rows of nodes: mathematics.md section 18; reasons in merge.py.

Compiled, and row by row: all versions of a row are added up while it is in the processor's cache. In a round
with many workers, all of them wait for this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import HUGE
from spidertensor.spider.compiled import COMPILE, HOT, PART, kernel
from spidertensor.spider.posterior import Gaussian
from spidertensor.spider.sequential_memory import (
    DOUBLE,
    LINE_BYTES,
    WHOLE,
    carray,
    elements,
    prefetch,
)

MOST = 8  # workers' steps that the mean of a row takes in full; more are scaled down

_BITS = 6  # a thread merges blocks of so many rows (powers of 2): others do not write near what it reads

# Not fastmath: a NaN must be noticed.
_EXACT: dict[str, Any] = {"fastmath": False}


class RowMerge:
    """Merges what all workers learned of the rows of a mode, in place.

    Workers' versions of a row are added up in the order of the workers, whichever thread does it.
    """

    def __init__(
        self,
        rows: Gaussian,
        parts: Sequence[tuple[NDArray[np.int64], Gaussian]],
        prior_var: NDArray[np.floating] | float,
        *,
        used: NDArray[np.int32] | None = None,
        left: Sequence[NDArray[np.float64]] | None = None,
        modes: int = 1,
        bound: float = math.inf,
    ) -> None:
        """
        parts:     per worker, the numbers of the rows it touched, each once, and their new values, perhaps
                   followed by spare rows
        prior_var: prior variance of an element, up to which a memory widens
        used:      `marks`, which are reused from round to round
        left:      per worker and row, the share of the precision that its memory left; None: all
        modes:     number of modes of an entry
        bound:     of a mean's size
        """
        size = math.prod(rows.mean.shape[1:])
        mean, var = (each.reshape(-1, size) for each in rows)  # views
        kept = [()] * len(parts) if left is None else [(each,) for each in left]
        arrays = [(where, *after, *own) for (where, after), own in zip(parts, kept, strict=True)]
        assert all(array.flags.c_contiguous for own in arrays for array in own)  # the kernel does not check
        addresses = np.array([[array.ctypes.data for array in own] for own in arrays], np.int64)
        least = 1 / np.full(size, prior_var, np.float64)
        first = marks(len(mean)) if used is None else used
        counts = np.array([len(where) for where, _ in parts], np.int64)
        self._arguments = addresses, counts, mean, var, first, least, modes, bound
        self._kept = arrays  # keeps alive what the addresses point to

    def run(self, part: int = 0, of: int = 1) -> int:
        """Merge a part of the rows; returns how many elements were rejected. of: a power of 2."""
        return _merge(part, of, *self._arguments)


def marks(n_rows: int) -> NDArray[np.int32]:
    """Per row of a mode, one plus its first position among all workers' rows in a round. All 0 between
    merges, so that a merge costs nothing for rows it does not touch."""
    return np.zeros(n_rows, np.int32)


@kernel(**COMPILE | _EXACT)
def _merge(part, of, addresses, counts, mean, var, first, least, modes, bound):
    """addresses: of each worker's row numbers, means, variances, and shares that its memory left, if any
    counts:    number of rows of each worker
    least:     the prior's precision of each element
    """
    size, here = mean.shape[1], np.array([0, mean.ctypes.data, var.ctypes.data])
    total = 0
    for w in range(len(counts)):
        total += counts[w]
    whose, place, sums = np.empty(total, np.int32), np.empty(total, np.int32), np.empty((6, size))
    n = 0
    for w in range(len(counts)):
        where = elements(addresses[w, 0], WHOLE)
        for i in range(counts[w]):
            if (where[i] >> _BITS) & (of - 1) == part:
                whose[n], place[n] = w, i
                n += 1
    following = np.empty(n, np.int32)
    for j in range(n - 1, -1, -1):  # backwards, so that a row's chain has the workers in order
        row = elements(addresses[whose[j], 0], WHOLE)[place[j]]
        following[j] = first[row]
        first[row] = j + 1
    rejected = 0
    for j in range(n):
        row = elements(addresses[whose[j], 0], WHOLE)[place[j]]
        if first[row] == 0:  # already merged with an earlier worker's
            continue
        first[row] = 0
        at = j + 1 if j + 1 < n and first[elements(addresses[whose[j + 1], 0], WHOLE)[place[j + 1]]] else -1
        while at >= 0:  # the rows that come next, wherever they are
            own, offset = addresses[whose[at]], place[at] * size * mean.itemsize
            for byte in range(offset, offset + size * mean.itemsize, LINE_BYTES):
                prefetch(own[1] + byte)
                prefetch(own[2] + byte)
            at = following[at] - 1
        row_mean, row_var = _row(here, row, mean, size)
        if following[j] == 0:  # touched by this worker only: copied bit for bit
            own_mean, own_var = _row(addresses[whose[j]], place[j], mean, size)
            for e in range(size):
                row_mean[e], row_var[e] = own_mean[e], own_var[e]
            continue
        for e in range(size):
            start = 1 / np.float64(row_var[e])
            sums[0, e], sums[4, e], sums[5, e] = start, start, start
            sums[1, e], sums[2, e], sums[3, e] = 0, 0, 0
        at, workers, taken = j, 0, 0.0
        while at >= 0:
            own = addresses[whose[at]]
            own_mean, own_var = _row(own, place[at], mean, size)
            keep = elements(own[3], DOUBLE)[place[at]] if len(own) > 3 else 1.0
            _add(sums, row_mean, own_mean, own_var, keep, least)
            workers, taken = workers + 1, taken + (1 - keep)
            at = following[at] - 1
        share = min(1.0, MOST / workers)
        # What each worker forgets of a node it relearns from its own entries, as do the nodes of all modes:
        # all workers correct that share of an error alike, and it must not be added up (q in section 18).
        alike = min(1.0, modes * taken / workers)
        if alike > 0:
            share *= (1 - (1 - alike) ** workers) / (workers * alike)
        rejected += _finish(sums, row_mean, row_var, share, least, bound)
    return rejected


@kernel(**PART | _EXACT)
def _row(addresses, number, like, size):
    """Mean and variance of a row, by the address of the first row: array slices would be slower."""
    offset = number * size * like.itemsize
    return (
        carray(elements(addresses[1] + offset, like), (size,)),
        carray(elements(addresses[2] + offset, like), (size,)),
    )


@kernel(**HOT | _EXACT)
def _add(sums, mean, own_mean, own_var, keep, least):
    """Add one worker's version of a row to `sums`: precision, merged in turn as far as a memory leaves it;
    change of precision; precision times step of the mean; largest and smallest precision of a worker;
    precision before the round, which stays."""
    for e in range(len(mean)):
        start, own = sums[5, e], 1 / np.float64(own_var[e])
        if keep == 1:
            sums[0, e] = sums[0, e] + own - start
        else:
            sums[0, e] = _kept(sums[0, e], keep, least[e]) + own - _kept(start, keep, least[e])
        sums[1, e] += own - start
        sums[2, e] += own * (np.float64(own_mean[e]) - mean[e])
        sums[3, e], sums[4, e] = max(sums[3, e], own), min(sums[4, e], own)


@kernel(**HOT | _EXACT)
def _finish(sums, mean, var, share, least_of_prior, bound):
    """Set a row from its sums; returns how many elements were rejected."""
    rejected, dtype = 0, mean.dtype.type
    for e in range(len(mean)):
        least = min(sums[4, e], least_of_prior[e])  # no wider than the prior or the widest worker's
        weight = max(sums[5, e] + share * sums[1, e], sums[3, e])
        new_mean, new_var = dtype(mean[e] + share * sums[2, e] / weight), dtype(1 / max(sums[0, e], least))
        good = (abs(new_mean) < HUGE) & (new_var > 1 / HUGE) & (new_var < HUGE)  # false for NaN
        new_mean = min(max(new_mean, dtype(-bound)), dtype(bound))
        mean[e], var[e] = new_mean if good else mean[e], new_var if good else var[e]
        rejected += not good
    return rejected


@kernel(**HOT | _EXACT)
def _kept(precision, keep, least):
    """Precision that a memory leaves: no less than the prior's, unless it was less before."""
    return max(precision * keep, min(precision, least))
