"""A history in parts that are always learned together: mathematics.md section 20."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Batch
from spidertensor.spider.bags import taken
from spidertensor.spider.compiled import COMPILE, kernel

PART_ENTRIES = 512
FEWEST_PARTS = 100  # of smaller histories, if batches allow it
LARGER_ENTRIES, MANY_PARTS = 8192, 200  # of larger histories: less work, and no worse with so many parts
READ_ENTRIES = 2**16  # at once, to count


class Part(NamedTuple):
    """Some entries, and what they touch.

    rows:  per table, the rows, each once
    times: per table, how often each counts: the weights of its entries, together
    """

    number: int
    batch: Batch
    rows: list[NDArray[np.int64]]
    times: list[NDArray[np.number]]


class History:
    """Entries to be learned several times, in the order of the first pass.

    read:     (first, last) -> the entries at these places, as new arrays
    n_tables: of all members: modes, then tables of attributes

    counts:   per table, how often each row comes
    times:    per table, how often each row counts: the weights of its entries, together
    """

    made_entries = 1  # learned for each that is read

    def __init__(
        self, read: Callable[[int, int], Batch], n_entries: int, batch_size: int, n_tables: int
    ) -> None:
        self._read, self._batch_size, self.n_entries = read, batch_size, n_entries
        # Whole batches, so that each part starts at a refinement. A part alone has nobody to learn from.
        smaller = min(PART_ENTRIES, n_entries // FEWEST_PARTS)
        self.cut(max(smaller, min(LARGER_ENTRIES, n_entries // MANY_PARTS)))
        self.counts, self.times = self._counted(n_tables)
        self._place = [np.full(len(each), -1, np.int32) for each in self.counts]

    def cut(self, wanted: int) -> None:
        """Cut into parts of about so many entries."""
        self.part_entries = self._batch_size * max(1, -(-wanted // self._batch_size))
        self.n_parts = -(-self.n_entries // self.part_entries)

    def part(self, number: int, visit: int = 0) -> Part:
        """visit: how often it was learned before, which matters to events alone"""
        batch, rows, times = self._entries(number, visit), [], []
        for table, place in enumerate(self._place):
            nodes = np.ascontiguousarray(nodes_of(batch, table))  # another layout would be compiled again
            found = np.empty((2, len(nodes)), np.int64)
            n = touched(nodes, place, *found)
            rows.append(found[0, :n])
            weights = weights_of(batch, table)
            times.append(found[1, :n] if weights is None else summed(nodes, weights, found[0, :n]))
        return Part(number, batch, rows, times)

    def _entries(self, number: int, visit: int) -> Batch:
        first = number * self.part_entries
        return self._read(first, min(first + self.part_entries, self.n_entries))

    def _counted(self, n_tables: int) -> tuple[list[NDArray[np.int64]], list[NDArray[Any]]]:
        """Per table, how often each row comes, and how often it counts."""
        counts = [np.zeros(0, np.int64)] * n_tables
        times: list[NDArray[Any]] = [np.zeros(0)] * n_tables
        weighted = False
        for first in range(0, self.n_entries, READ_ENTRIES):
            batch = self._read(first, min(first + READ_ENTRIES, self.n_entries))
            weighted = batch.weight is not None
            for table, before in enumerate(counts):
                nodes, weights = nodes_of(batch, table), weights_of(batch, table)
                known = nodes >= 0
                counts[table] = np.bincount(nodes[known], minlength=len(before))
                counts[table][: len(before)] += before
                if weights is not None:
                    old, times[table] = times[table], np.bincount(nodes[known], weights[known], len(before))
                    times[table][: len(old)] += old
        return counts, times if weighted else counts


def entries_at(entries: Batch, rows: NDArray[np.integer]) -> Batch:
    """Some entries of a batch, which may have narrower integers than an engine takes."""
    index, value, bags, weight = entries
    own = None if bags is None else taken(bags, np.asarray(rows, np.int64))
    return Batch(index[rows].astype(np.int64), value[rows], own, None if weight is None else weight[rows])


def nodes_of(batch: Batch, table: int) -> NDArray[np.int64]:
    """All rows of a table that a batch names, as often as it does; -1 where a mode has no ids."""
    if table < batch.index.shape[1]:
        return batch.index[:, table]
    if batch.bags is None:
        return np.empty(0, np.int64)
    return batch.bags.row[batch.bags.table == table - batch.index.shape[1]]


def weights_of(batch: Batch, table: int) -> NDArray[np.float64] | None:
    """The weights of the entries of `nodes_of`; None if each counts once."""
    if batch.weight is None or table < batch.index.shape[1]:
        return batch.weight
    if batch.bags is None:
        return np.empty(0)
    here = batch.bags.table == table - batch.index.shape[1]
    return np.repeat(batch.weight, np.diff(batch.bags.start))[here]


def summed(
    nodes: NDArray[np.int64], weights: NDArray[np.float64], rows: NDArray[np.int64]
) -> NDArray[np.number]:
    """For each of these rows, the sum of the weights of nodes that are this row."""
    different, which = np.unique(nodes, return_inverse=True)
    return np.bincount(which, weights, len(different))[np.searchsorted(different, rows)]


@kernel(**COMPILE)
def touched(nodes, place, rows, times):
    """Fill rows with the different nodes, in the order in which they come first, and times with how often.

    Returns how many there are.
    place: (all nodes,) -1, and so again at the end
    """
    n = 0
    for i in range(len(nodes)):
        node = nodes[i]
        if node >= 0:
            at = place[node]
            if at < 0:
                place[node], rows[n], times[n] = n, node, 1
                n += 1
            else:
                times[at] += 1
    for i in range(n):
        place[rows[i]] = -1
    return n
