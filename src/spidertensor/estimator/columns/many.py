"""Many: several values in a cell, n values of weight 1 / sqrt(n), or weights given in a dict.

The code of a cell is the number of a bag in a pool, which nodes share if one call describes them alike.
Bags that no node has any more are removed when they take more than half of the pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.bounded_values import MAX_VALUES, BoundedValues
from spidertensor.estimator.columns.cells import MISSING, Elements, Encoded
from spidertensor.estimator.columns.many_cells import MOST_IN_CELL, ManyCells, cells_of
from spidertensor.estimator.columns.memory import NodeMemory
from spidertensor.estimator.columns.pool import Pool
from spidertensor.estimator.inputs import Column

_FEWEST_TIDIED = 4096  # elements of a pool before it is searched for unused bags


class ManyState:
    """What a model keeps about a column of several values. remembers: whether nodes have these attributes"""

    dtype, missing = np.dtype(np.int64), MISSING

    def __init__(self, sep: str | None, max_values: int = MAX_VALUES, *, remembers: bool = True) -> None:
        self.sep, self.remembers = sep, remembers
        self.values = BoundedValues(max(max_values, MOST_IN_CELL))  # room for the longest cell
        self.pool, self._tidy_at = Pool(), _FEWEST_TIDIED

    @property
    def n_rows(self) -> int:
        return self.values.n_rows

    def check(self, column: Column) -> ManyCells:
        return cells_of(column, self.sep)

    def encode(self, cells: ManyCells, *, learn: bool) -> Encoded:
        rows = self.values.rows(cells.values, add=learn)
        codes = np.where(cells.codes >= 0, cells.codes + self.pool.n_bags, MISSING)
        extra = None if learn and self.remembers else Pool()
        (extra or self.pool).append(np.diff(cells.start), rows, cells.weight)
        return Encoded(codes, extra=extra)

    def fitting(self, cells: ManyCells) -> int:
        """For how many entries, from the first on, there is room."""
        fit = self.values.fitting(cells.values)
        if fit == len(cells.values):
            return cells.n
        cell = np.searchsorted(cells.start, fit, side="right") - 1
        return int((cells.codes == cell).argmax())

    def forget(self, rows: NDArray[np.int64], memory: NodeMemory | None) -> None:
        """Values were evicted from these rows: nodes do not have them any more."""
        self.pool = self.pool.without(rows, self.n_rows)

    def move(self, moved: NDArray[np.int64], memory: NodeMemory | None) -> None:
        """Values are in other rows. moved: (rows,) the new row of each"""
        pool = Pool()
        pool.append(np.diff(self.pool.start), moved[self.pool.row], self.pool.weight)
        self.pool = pool

    def pooled(self, bag: list[tuple[int, float]]) -> int:
        """Put a bag of known values into the pool; returns its code."""
        rows, weights = [row for row, _ in bag], [weight for _, weight in bag]
        self.pool.append(np.array([len(bag)]), np.array(rows, np.int64), np.array(weights))
        return self.pool.n_bags - 1

    def is_missing(self, codes: NDArray[Any]) -> NDArray[np.bool_]:
        return codes == MISSING

    def elements(self, encoded: Encoded) -> Elements:
        codes, pool = encoded.codes, self.pool
        count = np.zeros(len(codes), np.int64)
        kept, added = (codes >= 0) & (codes < pool.n_bags), codes >= pool.n_bags
        old = pool.take(codes[kept])
        count[kept] = old.size
        if encoded.extra is None or not added.any():
            return old._replace(size=count)
        new = encoded.extra.take(codes[added] - pool.n_bags)
        count[added] = new.size
        from_new = np.repeat(added, count)
        row, weight = np.empty(len(from_new), np.int64), np.empty(len(from_new), np.float32)
        row[from_new], weight[from_new] = new.row, new.weight
        row[~from_new], weight[~from_new] = old.row, old.weight
        return Elements(count, row, weight)

    def tidy(self, memory: NodeMemory | None) -> None:
        """Remove bags that no node has, if there may be many."""
        if memory is not None and self.pool.n_bags + self.pool.n_elements >= self._tidy_at:
            self.pool, memory.codes = self._tidied(memory)
            self._plan_to_tidy()

    def _plan_to_tidy(self) -> None:
        self._tidy_at = max(_FEWEST_TIDIED, 2 * (self.pool.n_bags + self.pool.n_elements))

    def _tidied(self, memory: NodeMemory) -> tuple[Pool, NDArray[np.int64]]:
        """The bags in use in order of their numbers, and the codes of the nodes in these terms."""
        codes, pool = memory.codes, Pool()
        used = np.unique(codes[codes >= 0])
        pool.append(*self.pool.take(used))
        return pool, np.where(codes >= 0, np.searchsorted(used, codes), codes)

    def to_arrays(self, memory: NodeMemory | None) -> dict[str, NDArray[Any]]:
        arrays = self.values.to_arrays()
        if memory is not None:
            # A bag for each node: which nodes share one depends on how the stream was cut into calls.
            codes, pool = memory.codes, Pool()
            there = codes >= 0
            pool.append(*self.pool.take(codes[there]))
            arrays["memory"] = np.where(there, np.cumsum(there) - 1, codes)
            arrays |= {"start": pool.start, "row": pool.row, "weight": pool.weight}
        return arrays

    def read(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        arrays = dict(arrays)
        if self.remembers:
            if not {"start", "row", "weight"} <= arrays.keys():
                raise ValueError("the bags of the nodes are missing")
            start, row, weight = (arrays.pop(name) for name in ("start", "row", "weight"))
            self.values = BoundedValues.restored(arrays, self.values.limit)
            self.pool = Pool.from_arrays(start, row, weight, self.values.row)
            self._plan_to_tidy()
        else:
            self.values = BoundedValues.restored(arrays, self.values.limit)

    def possible(self, codes: NDArray[Any]) -> bool:
        return bool(((codes == MISSING) | ((codes >= 0) & (codes < self.pool.n_bags))).all())
