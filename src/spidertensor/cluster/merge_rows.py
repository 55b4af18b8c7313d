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
from spidertensor.spider.robust import LARGEST_LOG_NOISE
from spidertensor.spider.sequential_memory import carray, elements

MOST = 8  # workers' steps that the mean of a row takes in full; more are scaled down

# Not fastmath: a NaN must be noticed.
_EXACT: dict[str, Any] = {"fastmath": False}


def marks(n_rows: int) -> NDArray[np.int32]:
    """Per row of a mode, one plus its first position among all workers' rows in a round. All 0 between
    merges, so that a merge costs nothing for rows it does not touch."""
    return np.zeros(n_rows, np.int32)


def merge_rows(
    rows: Gaussian,
    parts: Sequence[tuple[NDArray[np.int64], Gaussian]],
    prior_var: NDArray[np.floating] | float,
    used: NDArray[np.int32] | None = None,
    left: Sequence[NDArray[np.float64]] | None = None,
    modes: int = 1,
) -> int:
    """Merge what all workers learned into `rows`, in place; returns how many elements were rejected.

    parts:       per worker, the numbers of the rows it touched, each once, and their new values
    prior_var:   prior variance of an element, up to which a memory widens
    used:        marks that are reused from round to round
    left:        per worker and row, the share of the precision that its memory left; None: all
    modes:       number of modes of an entry
    """
    size = math.prod(rows.mean.shape[1:])
    mean, var = (each.reshape(-1, size) for each in rows)  # views
    prior_var = np.full(size, prior_var, np.float64)
    own = [[np.require(each, mean.dtype, "C") for each in after] for _, after in parts]
    addresses = np.array([[each.ctypes.data for each in after] for after in own], np.int64).reshape(-1, 2)
    where = np.concatenate([numbers for numbers, _ in parts])
    ends = np.cumsum([len(numbers) for numbers, _ in parts])
    keep = np.ones(len(where)) if left is None else np.concatenate(left)
    first = marks(len(mean)) if used is None else used
    return _merge(where, ends, addresses, keep, mean, var, first, 1 / prior_var, modes)


def merge_log_noise(
    rows: Gaussian,
    parts: Sequence[tuple[NDArray[np.int64], Gaussian]],
    prior_var: float,
    used: NDArray[np.int32] | None = None,
    left: Sequence[NDArray[np.float64]] | None = None,
) -> int:
    """`merge_rows` for a mode's log_noise."""
    rejected = merge_rows(rows, parts, prior_var, used, left)
    for where, _ in parts:
        rows.mean[where] = np.clip(rows.mean[where], -LARGEST_LOG_NOISE, LARGEST_LOG_NOISE)
    return rejected


@kernel(**COMPILE | _EXACT)
def _merge(where, ends, addresses, keep, mean, var, first, least, modes):
    """where:     row numbers of all workers, one worker after the other, each up to its `ends`
    addresses: of each worker's means and variances
    least:     the prior's precision of each element
    """
    size, here = mean.shape[1], np.array([mean.ctypes.data, var.ctypes.data])
    following, sums = np.empty(len(where), np.int32), np.empty((5, size))
    for j in range(len(where) - 1, -1, -1):  # backwards, so that a row's chain has the workers in order
        following[j] = first[where[j]]
        first[where[j]] = j + 1
    rejected, worker = 0, 0
    for j in range(len(where)):
        while j >= ends[worker]:
            worker += 1
        if first[where[j]] == 0:  # already merged with an earlier worker's
            continue
        first[where[j]] = 0
        row_mean, row_var = _row(here, where[j], mean, size)
        if following[j] == 0:  # touched by this worker only: copied bit for bit
            own_mean, own_var = _row(addresses[worker], j - _start(ends, worker), mean, size)
            for e in range(size):
                row_mean[e], row_var[e] = own_mean[e], own_var[e]
            continue
        for e in range(size):
            sums[0, e] = 1 / np.float64(row_var[e])
            sums[1, e], sums[2, e], sums[3, e], sums[4, e] = 0, 0, 0, sums[0, e]
        at, of, workers, taken = j, worker, 0, 0.0
        while at >= 0:
            while at >= ends[of]:
                of += 1
            own_mean, own_var = _row(addresses[of], at - _start(ends, of), mean, size)
            _add(sums, row_mean, row_var, own_mean, own_var, keep[at], least)
            workers, taken = workers + 1, taken + (1 - keep[at])
            at = following[at] - 1
        share = min(1.0, MOST / workers)
        # What each worker forgets of a node it relearns from its own entries, as do the nodes of all modes:
        # all workers correct that share of an error alike, and it must not be added up (q in section 18).
        alike = min(1.0, modes * taken / workers)
        if alike > 0:
            share *= (1 - (1 - alike) ** workers) / (workers * alike)
        rejected += _finish(sums, row_mean, row_var, share, least)
    return rejected


@kernel(**HOT | _EXACT)
def _start(ends, worker):
    return ends[worker - 1] if worker else 0


@kernel(**PART | _EXACT)
def _row(addresses, number, like, size):
    """Mean and variance of a row, by the address of the first row: array slices would be slower."""
    offset = number * size * like.itemsize
    return (
        carray(elements(addresses[0] + offset, like), (size,)),
        carray(elements(addresses[1] + offset, like), (size,)),
    )


@kernel(**HOT | _EXACT)
def _add(sums, mean, var, own_mean, own_var, keep, least):
    """Add one worker's version of a row to `sums`: precision, merged in turn as far as a memory leaves it;
    change of precision; precision times step of the mean; largest and smallest precision of a worker."""
    for e in range(len(mean)):
        start, own = 1 / np.float64(var[e]), 1 / np.float64(own_var[e])
        sums[0, e] = _kept(sums[0, e], keep, least[e]) + own - _kept(start, keep, least[e])
        sums[1, e] += own - start
        sums[2, e] += own * (np.float64(own_mean[e]) - mean[e])
        sums[3, e], sums[4, e] = max(sums[3, e], own), min(sums[4, e], own)


@kernel(**HOT | _EXACT)
def _finish(sums, mean, var, share, least_of_prior):
    """Set a row from its sums; returns how many elements were rejected."""
    rejected, dtype = 0, mean.dtype.type
    for e in range(len(mean)):
        least = min(sums[4, e], least_of_prior[e])  # no wider than the prior or the widest worker's
        weight = max(1 / np.float64(var[e]) + share * sums[1, e], sums[3, e])
        new_mean, new_var = dtype(mean[e] + share * sums[2, e] / weight), dtype(1 / max(sums[0, e], least))
        good = (abs(new_mean) < HUGE) & (new_var > 1 / HUGE) & (new_var < HUGE)  # false for NaN
        mean[e], var[e] = new_mean if good else mean[e], new_var if good else var[e]
        rejected += not good
    return rejected


@kernel(**HOT | _EXACT)
def _kept(precision, keep, least):
    """Precision that a memory leaves: no less than the prior's, unless it was less before."""
    return max(precision * keep, min(precision, least))
