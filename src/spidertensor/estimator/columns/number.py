"""Number: the two neighbouring knots of a fixed grid, weights 1 - t and t; a missing number has its own node.

The grid is z = asinh(2 (x - median) / interquartile range), so it is fine where the first values lie and
reaches far. A column with few first values counts as missing until enough have come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.cells import Elements, Encoded, entry_of, spread, stated_of
from spidertensor.estimator.inputs import Column
from spidertensor.faults import EntryError

N_KNOTS = 12
END = 4.0  # the knots are evenly spaced from -END to END
FEWEST_FIRST = 32  # first values that are enough for a grid
FEWEST_LATER = 256  # values that are, if the first were fewer
_PLAIN = frozenset({int, float, bool})


class Grid(NamedTuple):
    """Centre and half-width of the grid: z = asinh((x - centre) / width)."""

    centre: float
    width: float


class NumberCells(NamedTuple):
    """numbers: (n,), NaN where missing. grid: from all first values of the call, if these are the first"""

    numbers: NDArray[np.float64]
    grid: Grid | None

    @property
    def n(self) -> int:
        return len(self.numbers)

    def cut(self, start: int, stop: int) -> NumberCells:
        return NumberCells(self.numbers[start:stop], self.grid)


class NumberState:
    """What a model keeps about a column of numbers: its grid, or the values until there is one."""

    dtype, missing = np.dtype(np.float64), np.nan
    n_rows = N_KNOTS + 1

    def __init__(self) -> None:
        self.grid: Grid | None = None
        self.waiting = np.empty(0, np.float64)

    def check(self, column: Column) -> NumberCells:
        numbers = to_numbers(column)
        first = numbers[~np.isnan(numbers)] if self.grid is None and not len(self.waiting) else ()
        return NumberCells(numbers, grid_of(np.asarray(first)) if len(first) >= FEWEST_FIRST else None)

    def begin(self, cells: NumberCells) -> None:
        """Take the grid from these first values, if there are enough of them."""
        if self.grid is None and not len(self.waiting):
            self.grid = cells.grid

    def begin_history(self, cells: NumberCells) -> None:
        """Take the grid from the numbers of a history, if there are enough of them."""
        if self.grid is None:
            numbers = np.concatenate([self.waiting, cells.numbers[~np.isnan(cells.numbers)]])
            if len(numbers) >= FEWEST_FIRST:
                self.grid, self.waiting = grid_of(numbers), np.empty(0, np.float64)

    def encode(self, cells: NumberCells, *, learn: bool) -> Encoded:
        ready = 0
        if self.grid is None:
            ready = self._wait(cells) if learn else cells.n
        return Encoded(cells.numbers, ready)

    def _wait(self, cells: NumberCells) -> int:
        """Learn first values. Return the first entry that can use the grid."""
        if cells.grid and not len(self.waiting):
            self.grid = cells.grid
            return 0
        stated = ~np.isnan(cells.numbers)
        lacking = FEWEST_LATER - len(self.waiting)
        places = np.flatnonzero(stated)
        self.waiting = np.concatenate([self.waiting, cells.numbers[places[:lacking]]])
        if len(places) < lacking:
            return cells.n
        self.grid, self.waiting = grid_of(self.waiting), np.empty(0, np.float64)
        return int(places[lacking - 1])

    def is_missing(self, codes: NDArray[Any]) -> NDArray[np.bool_]:
        return np.isnan(codes)

    def elements(self, encoded: Encoded) -> Elements:
        """Two neighbouring knots for each number, one at a knot or beyond the ends, or the missing node."""
        numbers, n = encoded.codes, len(encoded.codes)
        if self.grid is None:
            return Elements(np.ones(n, np.int64), np.full(n, N_KNOTS), np.ones(n, np.float32))
        missing = np.isnan(numbers)
        missing[: encoded.ready] = True
        place = self._place(np.where(missing, 0.0, numbers))
        low = np.minimum(place.astype(np.int64), N_KNOTS - 2)
        row = np.stack([low, low + 1], axis=1)
        weight = np.empty((n, 2), np.float32)
        weight[:, 1] = place - low
        weight[:, 0] = 1 - weight[:, 1]
        row[missing, 0], weight[missing] = N_KNOTS, (1, 0)
        used = weight > 0
        return Elements(used.sum(axis=1), row[used], weight[used])

    def _place(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers on the grid, from 0 for the first knot to N_KNOTS - 1 for the last."""
        assert self.grid is not None
        with np.errstate(over="ignore"):  # far beyond the ends
            z = np.arcsinh((numbers - self.grid.centre) / self.grid.width)
        return (np.clip(z, -END, END) + END) * ((N_KNOTS - 1) / (2 * END))

    def tidy(self, memory: Any) -> None:
        """Nothing to tidy up."""

    def to_arrays(self, memory: Any) -> dict[str, NDArray[Any]]:
        return {"waiting": self.waiting} if self.grid is None else {"grid": np.array(self.grid, np.float64)}

    def read(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        if len(arrays) != 1 or not arrays.keys() <= {"waiting", "grid"}:
            raise ValueError(f"unknown arrays {sorted(arrays)!s:.200}")
        ((name, array),) = arrays.items()
        if array.dtype != np.float64 or array.ndim != 1 or not np.isfinite(array).all():
            raise ValueError(f"{name} is not a list of numbers")
        if name == "waiting":
            if len(array) >= FEWEST_LATER:
                raise ValueError(f"{len(array)} numbers wait, but {FEWEST_LATER} are enough")
            self.waiting = array.copy()
        elif len(array) == 2 and array[1] > 0:
            self.grid = Grid(*array.tolist())
        else:
            raise ValueError("the grid is not a centre and a width")

    def possible(self, codes: NDArray[Any]) -> bool:
        return not np.isinf(codes).any()


def grid_of(numbers: NDArray[np.float64]) -> Grid:
    """The grid for these first values: median, and half the interquartile range, or deviation, or 1."""
    with np.errstate(over="ignore", invalid="ignore"):
        low, centre, high = np.percentile(numbers, (25, 50, 75)).tolist()
        spreads = (high - low, float(np.std(numbers)), 1.0)
    width = next(each for each in spreads if 0 < each < np.inf) / 2
    return Grid(centre if np.isfinite(centre) else float(numbers[0]), max(width, float(np.finfo(float).tiny)))


def to_numbers(column: Column) -> NDArray[np.float64]:
    """(n,) floats, NaN where missing; EntryError for an infinite number or something else."""
    stated, mask = stated_of(column)
    array = stated if isinstance(stated, np.ndarray) else None
    if array is None and set(map(type, stated)) <= _PLAIN:
        try:
            array = np.array(stated, dtype=np.float64)
        except OverflowError:  # a huge int
            array = None
    if array is not None and array.dtype.kind in "biuf":
        with np.errstate(over="ignore"):
            numbers = array.astype(np.float64)
    else:
        cells = stated.tolist() if isinstance(stated, np.ndarray) and stated.dtype.kind != "M" else stated
        numbers = np.array([_number(cell, mask, place) for place, cell in enumerate(cells)], np.float64)
    if np.isinf(numbers).any():
        row = entry_of(mask, int(np.isinf(numbers).argmax()))
        raise EntryError("infinite number", row, kind="attribute", remedy="clip it or leave it out (None)")
    return spread(mask, numbers, np.nan)


def _number(cell: Any, mask: NDArray[np.bool_] | None, place: int) -> float:
    try:
        if isinstance(cell, str) and not cell.strip():
            return np.nan
        if isinstance(cell, str | bytes | np.datetime64 | np.timedelta64 | complex | np.complexfloating):
            raise TypeError
        return float(cell)
    except OverflowError:
        return np.inf
    except (TypeError, ValueError):
        raise EntryError(
            f"{cell!r:.80} is not a number",
            entry_of(mask, place),
            kind="attribute",
            value=cell,
            remedy="convert it, or declare the column with Value(...)",
        ) from None
