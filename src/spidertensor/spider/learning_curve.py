"""Errors over the entries learned, kept small: blocks of equally many entries, joined by twos when there are
too many.

Every sum is made entry by entry, so that cuts of the stream change nothing, bit for bit. A floor is kept
beside it that needs no memory: the mean of the values before, or of labels their share.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.spider.compiled import COMPILE, kernel

FIRST_SIZE, MOST_BLOCKS = 16, 128  # entries in a block at first; an even number of blocks
COVERAGE = 0.9  # of the intervals
SQUARES, LABELS, SCORES = range(3)  # what an error is: squared; log loss, with and without a floor
ENTRIES, ERROR, FLOOR, WITH_INTERVAL, INSIDE = range(5)  # sums over the entries of a block
LARGEST_VALUE, LARGEST_ERROR = 1e125, 1e255  # of an entry: far beyond any, and their sums stay finite


class Curve(NamedTuple):
    size: NDArray[np.int64]  # (1,) entries in a block
    sums: NDArray[np.float64]  # (MOST_BLOCKS, 5)
    values: NDArray[np.float64]  # (4,) of all: how many, their sum, the lowest and the highest


def start() -> Curve:
    values = np.array([0.0, 0.0, np.inf, -np.inf])
    return Curve(np.full(1, FIRST_SIZE), np.zeros((MOST_BLOCKS, 5)), values)


def is_possible(curve: Curve, kind: int, n: int) -> bool:
    """Whether n entries, of which some may be unknown or refused, can have such a curve.

    With a curve that cannot be, figures would be wrong, or sums would overflow later.
    """
    size, sums, (count, total, low, high) = int(curve.size[0]), curve.sums, curve.values
    blocks = size // FIRST_SIZE
    if blocks < 1 or size != FIRST_SIZE * blocks or blocks & (blocks - 1):
        return False
    if blocks > 1 and size * (MOST_BLOCKS // 2) >= n:  # blocks are joined only when there are too many
        return False
    numbers = sums[:, [ENTRIES, WITH_INTERVAL, INSIDE]]
    if not np.isfinite(sums).all() or (numbers % 1 != 0).any() or count != numbers[:, 0].sum() or count > n:
        return False
    ordered = (numbers[:, 0] >= numbers[:, 1]) & (numbers[:, 1] >= numbers[:, 2]) & (numbers[:, 2] >= 0)
    errors = sums[:, [ERROR, FLOOR]]
    least = {SQUARES: 0.0, LABELS: -1e-6, SCORES: -LARGEST_ERROR}[kind]  # a log loss may be rounded
    small = (errors >= least * numbers[:, :1]) & (errors <= LARGEST_ERROR * numbers[:, :1])
    late = np.arange(len(sums)) * size >= n
    if not ordered.all() or not small.all() or numbers[late].any():
        return False
    if count == 0:
        return total == 0 and low == np.inf and high == -np.inf
    away = 1e-6 * max(abs(low), abs(high))  # the sum is rounded
    in_range = -LARGEST_VALUE <= low <= high <= LARGEST_VALUE and low - away <= total / count <= high + away
    return bool(in_range and (kind != LABELS or (0 <= low <= high <= 1 and 0 <= total <= count)))


# Not fastmath: a sum must not depend on how entries are cut into calls.
@kernel(**COMPILE | {"fastmath": False})
def note(size, sums, values, first, kind, seen, value, mean, log_evidence, below):
    """Add entries, of which the first has the number `first`, counted from 0.

    kind: what an error is. seen: means keep to the values before
    mean, log_evidence, below (n,): what was predicted, as in an Update; below may be NaN
    """
    for i in range(len(value)):
        while (first + i) // size[0] >= len(sums):
            half = len(sums) // 2
            for block in range(half):
                for part in range(sums.shape[1]):
                    sums[block, part] = sums[2 * block, part] + sums[2 * block + 1, part]
            sums[half:] = 0.0
            size[0] *= 2
        if not math.isfinite(log_evidence[i]):
            continue  # refused
        y, n = value[i], values[0]
        error = floor = -log_evidence[i]
        if kind == SQUARES:
            predicted = mean[i]
            if seen and n > 0:
                predicted = min(max(predicted, values[2]), values[3])
            error = (y - predicted) ** 2
            floor = (y - values[1] / n) ** 2 if n > 0 else error
        elif kind == LABELS:
            share = (values[1] + 0.5) / (n + 1)
            floor = -math.log(share if y > 0.5 else 1 - share)
        block = (first + i) // size[0]
        sums[block, ENTRIES] += 1
        sums[block, ERROR] += error
        sums[block, FLOOR] += floor
        if below[i] == below[i]:
            sums[block, WITH_INTERVAL] += 1
            sums[block, INSIDE] += abs(below[i] - 0.5) <= COVERAGE / 2
        values[0] += 1
        values[1] += y
        values[2] = min(values[2], y)
        values[3] = max(values[3], y)
