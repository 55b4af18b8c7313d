"""Bags one after the other in growing arrays: what the codes of `Many` refer to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.cells import Elements

LARGEST_WEIGHT = 32.0  # of a value that fills the longest list


class Pool:
    """Bag b has the elements start[b] to start[b + 1] of row and weight."""

    def __init__(self) -> None:
        self.n_bags = self.n_elements = 0
        self._start, self._row = np.zeros(1, np.int64), np.empty(0, np.int32)
        self._weight = np.empty(0, np.float32)

    @property
    def start(self) -> NDArray[np.int64]:
        return self._start[: self.n_bags + 1]

    @property
    def row(self) -> NDArray[np.int32]:
        return self._row[: self.n_elements]

    @property
    def weight(self) -> NDArray[np.float32]:
        return self._weight[: self.n_elements]

    def append(self, count: NDArray[np.int64], row: NDArray[Any], weight: NDArray[Any]) -> None:
        """Add bags: how many elements each has, and all of them one after the other."""
        bags, elements = self.n_bags + len(count), self.n_elements + len(row)
        self._start = _with_room(self._start, bags + 1)
        self._row, self._weight = _with_room(self._row, elements), _with_room(self._weight, elements)
        self._start[self.n_bags + 1 : bags + 1] = self.n_elements + np.cumsum(count)
        self._row[self.n_elements : elements] = row
        self._weight[self.n_elements : elements] = weight
        self.n_bags, self.n_elements = bags, elements

    def bag(self, bag: int) -> list[tuple[int, float]]:
        """The rows and weights of one bag."""
        begin, end = self._start[bag], self._start[bag + 1]
        return list(zip(self._row[begin:end].tolist(), self._weight[begin:end].tolist(), strict=True))

    def take(self, bags: NDArray[np.int64]) -> Elements:
        begin = self._start[bags]
        count = self._start[bags + 1] - begin
        place = np.repeat(begin - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
        return Elements(count, self._row[place].astype(np.int64), self._weight[place])

    def without(self, rows: NDArray[np.int64], n_rows: int) -> Pool:
        """The same bags without the elements in these rows, which are below n_rows."""
        gone = np.zeros(n_rows, bool)
        gone[rows] = True
        out = gone[self.row]
        lost = np.bincount(np.repeat(np.arange(self.n_bags), np.diff(self.start))[out], minlength=self.n_bags)
        pool = Pool()
        pool.append(np.diff(self.start) - lost, self.row[~out], self.weight[~out])
        return pool

    @classmethod
    def from_arrays(
        cls, start: NDArray[Any], row: NDArray[Any], weight: NDArray[Any], rows: NDArray[np.int64]
    ) -> Pool:
        """A pool from a file. ValueError unless it has only these rows, and weights that are possible."""
        typed = (start.dtype, row.dtype, weight.dtype) == (np.int64, np.int32, np.float32)
        flat = all(array.ndim == 1 for array in (start, row, weight))
        if not (typed and flat and len(row) == len(weight) and len(start) and start[0] == 0):
            raise ValueError("the bags of the nodes are not bags")
        if start[-1] != len(row) or (start[1:] < start[:-1]).any():
            raise ValueError("the bags of the nodes do not match their elements")
        if not ((np.abs(weight) <= LARGEST_WEIGHT).all() and np.isin(row, rows).all()):
            raise ValueError("a bag has a value or a weight that is not possible")
        pool = cls()
        pool.append(np.diff(start), row, weight)
        return pool


def _with_room(array: NDArray[Any], n: int) -> NDArray[Any]:
    if n <= len(array):
        return array
    grown = np.empty(max(n, len(array) * 3 // 2), array.dtype)
    grown[: len(array)] = array
    return grown
