"""Prepare the attributes of entries for an engine: mathematics.md section 19."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Bags
from spidertensor.spider.compiled import COMPILE, kernel


def plain(bags: Bags) -> Bags:
    """Bags whose arrays kernels can read, with the weights of a node that comes twice in an entry added up.

    Learned one by one, two elements of the same node would overshoot: each takes the node's whole variance.
    """
    start, table, row = (np.require(each, np.int64, "C") for each in bags[:3])
    weight = np.require(bags.weight, np.float32, "C")
    if not (_needs_merging(start, table, row) or (weight == 0).any()):
        return Bags(start, table, row, weight)
    merged = Bags(np.zeros_like(start), np.empty_like(table), np.empty_like(row), np.empty_like(weight))
    _merge(start, table, row, weight, *merged)
    return merged.elements(merged.start, slice(0, merged.start[-1]))


@kernel(**COMPILE)
def _needs_merging(start, table, row):
    for i in range(len(start) - 1):
        for j in range(start[i], start[i + 1]):
            for before in range(start[i], j):
                if table[j] == table[before] and row[j] == row[before]:
                    return True
    return False


@kernel(**COMPILE)
def _merge(start, table, row, weight, new_start, new_table, new_row, new_weight):
    """Fill the arrays of the merged bags, without elements of weight 0."""
    m = 0
    for i in range(len(start) - 1):
        first = m
        for j in range(start[i], start[i + 1]):
            at = first
            while at < m and not (new_table[at] == table[j] and new_row[at] == row[j]):
                at += 1
            if at == m:
                new_table[m], new_row[m], new_weight[m] = table[j], row[j], 0
                m += 1
            new_weight[at] += weight[j]
        kept = first
        for at in range(first, m):
            if new_weight[at] != 0:
                new_table[kept], new_row[kept] = new_table[at], new_row[at]
                new_weight[kept] = new_weight[at]
                kept += 1
        m = kept
        new_start[i + 1] = m


def concatenated(parts: list[Bags]) -> Bags:
    """The bags of consecutive entries, one after the other."""
    ends = np.cumsum([0, *(part.start[-1] for part in parts)])
    start = np.concatenate([[0], *(part.start[1:] + end for part, end in zip(parts, ends[:-1], strict=True))])
    table, row, weight = (np.concatenate(each) for each in zip(*(part[1:] for part in parts), strict=True))
    return Bags(start, table, row, weight)


def taken(bags: Bags, entries: NDArray[np.int64]) -> Bags:
    """The bags of these entries, in this order."""
    length = np.diff(bags.start)[entries]
    start = np.concatenate([[0], np.cumsum(length)])
    at = np.repeat(bags.start[entries] - start[:-1], length) + np.arange(start[-1])
    return bags.elements(start, at)


def moved(bags: Bags, rows: Sequence[NDArray[np.int64] | None]) -> Bags:
    """The bags after their nodes have moved. rows: for each table the new row of each node, -1 for one that
    bags lose; or None if it stays as it is"""
    row = bags.row.copy()
    for table, to in enumerate(rows):
        if to is not None:
            here = bags.table == table
            row[here] = to[row[here]]
    stays = row >= 0
    ends = np.concatenate([[0], np.cumsum(stays)])
    return Bags(ends[bags.start], bags.table[stays], row[stays], bags.weight[stays])
