"""Put the elements of all tables together, entry by entry."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spidertensor.estimator.columns.cells import Elements
from spidertensor.method import Bags


def assemble(n: int, found: Sequence[tuple[int, Elements]]) -> Bags:
    """Bags of n entries from the elements of each table: (number of the table, its elements), in order."""
    start = np.zeros(n + 1, np.int64)
    for _, elements in found:
        start[1:] += elements.size
    np.cumsum(start, out=start)
    total = int(start[-1])
    table, row = np.empty(total, np.int64), np.empty(total, np.int64)
    weight = np.empty(total, np.float32)
    at = start[:-1].copy()  # where the next element of each entry goes
    for number, (count, rows, weights) in found:
        if len(rows) == n and (count == 1).all():
            place = at.copy()
        else:
            place = np.repeat(at - (np.cumsum(count) - count), count) + np.arange(len(rows))
        table[place], row[place], weight[place] = number, rows, weights
        at += count
    return Bags(start, table, row, weight)
