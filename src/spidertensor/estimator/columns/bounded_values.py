"""Values and their rows in a table, at most so many: in a full table those longest unseen give up their rows.

A value is seen in every learned entry whose bag has it, stated or remembered. Recency follows the order of
the entries, so it does not depend on how they are split into calls. A sixteenth of the values goes at once,
because everything that refers to their rows has to be searched then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.cells import Elements, with_spare
from spidertensor.estimator.ids import NodeIndex
from spidertensor.estimator.inputs import Column

MAX_VALUES = 1_000_000  # of a column
SHARE_EVICTED = 16  # one in so many
TRIED_ENTRIES = 65_536  # at once, to find out which new values find room, if not all may

Arrays = dict[str, NDArray[Any]]


class BoundedValues:
    """index: the values, numbered in the order in which they came. row: number -> row of the table

    n_rows: rows used so far, also those that are free now
    clock:  entries learned
    """

    def __init__(self, limit: int = MAX_VALUES) -> None:
        self.limit, self.index = limit, NodeIndex()
        self.n_rows = self.n_evicted = self.clock = 0
        self._row = np.empty(0, np.int64)
        self._seen = np.empty(0, np.int64)  # by row: the clock when its value was last seen
        self._free = np.empty(0, np.int64)  # rows in ascending order

    def __len__(self) -> int:
        return len(self.index)

    @property
    def row(self) -> NDArray[np.int64]:
        return self._row[: len(self.index)]

    def by_row(self, values: Sequence[Any]) -> list[Any]:
        """Something about each value, by number, in the order of the rows; None for free rows."""
        found: list[Any] = [None] * self.n_rows
        for row, value in zip(self.row.tolist(), values, strict=True):
            found[row] = value
        return found

    def rows(self, values: Column, *, add: bool) -> NDArray[np.int64]:
        """The row of each checked value; UNSEEN if it has none. With `add` there must be room (`fitting`)."""
        known = len(self.index)
        numbers = self.index.numbers(values, add=add)
        if add:
            self._admit(known)
            rows = self._row[numbers]
            self._seen[rows] = self.clock
            return rows
        return np.where(numbers >= 0, self.row[numbers], numbers) if known else numbers

    def row_of(self, value: Any) -> int:
        """The row of one checked value; UNSEEN if it has none."""
        number = self.index.number_of(value)
        return int(self._row[number]) if number >= 0 else number

    def _admit(self, known: int) -> None:
        """Give rows to new values."""
        n = len(self.index)
        if n == known:
            return
        reused = self._free[: n - known]
        fresh = np.arange(self.n_rows, self.n_rows + n - known - len(reused))
        self._row = with_spare(self._row, n)
        self._row[known:n] = np.concatenate([reused, fresh])
        self._free, self.n_rows = self._free[len(reused) :], self.n_rows + len(fresh)
        self._seen = with_spare(self._seen, self.n_rows)

    def use(self, elements: Elements) -> None:
        """Entries were learned with these elements."""
        n = len(elements.size)
        self._seen[elements.row] = np.repeat(np.arange(self.clock, self.clock + n), elements.size)
        self.clock += n

    def see(self, rows: list[int]) -> None:
        """One entry was learned with these rows."""
        self._seen[rows] = self.clock
        self.clock += 1

    def fitting(self, values: Column) -> int:
        """How many of these values, from the first on, find room; new ones among them are not added."""
        known = len(self.index)
        if known + len(values) <= self.limit:
            return len(values)
        numbers = self.index.numbers(values, add=True)
        full = len(self.index) > self.limit
        self.index.truncate(known)
        return int((numbers >= self.limit).argmax()) if full else len(values)

    def make_room(self, values: Column) -> NDArray[np.int64]:
        """Evict values until these distinct ones of one entry fit; returns the numbers of those evicted."""
        numbers = self.index.numbers(values, add=False)
        known = numbers[numbers >= 0]
        lacking = len(self) + len(values) - len(known) - self.limit
        if lacking <= 0:
            return np.empty(0, np.int64)
        self._seen[self._row[known]] = self.clock
        n = max(min(self.limit // SHARE_EVICTED, len(self) - len(known)), lacking)
        self.n_evicted += n
        return np.sort(np.argsort(self._seen[self.row], kind="stable")[:n])

    def rarest(self, seen: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of the values that are too many: those least often seen, of equal ones the latest.

        seen: (rows,) how often. Counts them as evicted
        """
        often = np.zeros(self.n_rows, np.int64)
        often[: len(seen)] = seen
        order = np.argsort(-often[self.row], kind="stable")
        numbers = np.sort(order[self.limit :])
        self.n_evicted += len(numbers)
        return numbers

    def remove(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Remove values, and renumber the others in the same order. Returns the rows, which are free now."""
        rows = self.row[numbers]
        self._row = np.delete(self.row, numbers)
        self.index = self.index.without(set(numbers.tolist()))
        self._free = np.sort(np.concatenate([self._free, rows]))
        return rows

    def compact(self) -> NDArray[np.bool_]:
        """Give up free rows, and move the others together. Returns the (rows,) that stay, in order."""
        stay = np.zeros(self.n_rows, bool)
        stay[self.row] = True
        self._row = (np.cumsum(stay) - 1)[self.row]
        self._seen, self._free = self._seen[: self.n_rows][stay], np.empty(0, np.int64)
        self.n_rows = len(self._seen)
        return stay

    def recency(self) -> Arrays:
        """What files keep beside the values: when each was seen, and the rows if they are not 0, 1, ..."""
        counts = np.array([self.clock, self.n_evicted, self.n_rows], np.int64)
        arrays: Arrays = {"seen": self._seen[self.row], "counts": counts}
        plain = self.n_rows == len(self) and np.array_equal(self.row, np.arange(len(self)))
        return arrays if plain else arrays | {"rows": self.row.copy()}

    def read_recency(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of `recency`, for the values in `index`. ValueError for anything it does not write."""
        arrays, n = dict(arrays), len(self)
        seen, counts = arrays.pop("seen", None), arrays.pop("counts", None)
        given = arrays.pop("rows", None)
        row = np.arange(n) if given is None else given
        if arrays or seen is None or counts is None:
            raise ValueError(f"unknown arrays {sorted(arrays)!s:.200}, or when values were seen is missing")
        if any(each.dtype != np.int64 for each in (seen, counts, row)):
            raise ValueError("when values were seen is not given in numbers")
        if seen.shape != (n,) or row.shape != (n,) or counts.shape != (3,) or (counts < 0).any():
            raise ValueError("when values were seen is not known of each")
        self.clock, self.n_evicted, self.n_rows = counts.tolist()
        if not n <= self.n_rows <= (n if given is None else self.limit) or n > self.limit:
            raise ValueError(f"{n} values in {self.n_rows} rows, but room for {self.limit}")
        if (seen < 0).any() or (seen > self.clock).any() or (row < 0).any() or (row >= self.n_rows).any():
            raise ValueError("a value has a row or a time that is not possible")
        used = np.zeros(self.n_rows, bool)
        used[row] = True
        if used.sum() < n:
            raise ValueError("two values have the same row")
        self._row, self._free, self._seen = row.copy(), np.flatnonzero(~used), np.zeros(self.n_rows, np.int64)
        self._seen[row] = seen

    def to_arrays(self) -> Arrays:
        return self.recency() | {f"values/{name}": array for name, array in self.index.to_arrays().items()}

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]], limit: int) -> BoundedValues:
        """The inverse of `to_arrays`."""
        own = {name.removeprefix("values/"): a for name, a in arrays.items() if name.startswith("values/")}
        values = cls(limit)
        values.index = NodeIndex.from_arrays(own)
        values.read_recency({name: a for name, a in arrays.items() if not name.startswith("values/")})
        return values


def moved_rows(stay: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(rows,) the new row of each when those that stay move together, -1 for the others."""
    return np.where(stay, np.cumsum(stay) - 1, -1)
