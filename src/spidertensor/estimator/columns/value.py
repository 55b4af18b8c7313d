"""Value: one node per value. Values compare and are restricted like ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.bounded_values import MAX_VALUES, BoundedValues
from spidertensor.estimator.columns.cells import (
    MISSING,
    Elements,
    Encoded,
    entry_of,
    single,
    spread,
    stated_of,
)
from spidertensor.estimator.columns.memory import NodeMemory
from spidertensor.estimator.ids import checked_ids
from spidertensor.estimator.inputs import Column
from spidertensor.faults import EntryError

_EXACT = 2.0**53  # whole floats below it are exact ints


class ValueCells(NamedTuple):
    """values: the stated cells, checked. mask: (n,) which are stated; None for all"""

    values: Column
    mask: NDArray[np.bool_] | None
    n: int

    def cut(self, start: int, stop: int) -> ValueCells:
        if self.mask is None:
            return ValueCells(self.values[start:stop], None, stop - start)
        first, mask = int(self.mask[:start].sum()), self.mask[start:stop]
        return ValueCells(self.values[first : first + int(mask.sum())], mask, stop - start)


class ValueState:
    """What a model keeps about a column of values."""

    dtype, missing = np.dtype(np.int32), MISSING

    def __init__(self, max_values: int = MAX_VALUES) -> None:
        self.values = BoundedValues(max_values)

    @property
    def n_rows(self) -> int:
        return self.values.n_rows

    def check(self, column: Column) -> ValueCells:
        stated, mask = stated_of(column)
        if isinstance(stated, list) and set(map(type, stated)) <= {str}:  # usual, and needs no check
            return ValueCells(stated, mask, len(column))
        if isinstance(stated, np.ndarray) and stated.dtype.kind == "f":
            finite = stated.astype(np.float64)
            if (np.abs(finite) < _EXACT).all() and (finite == np.trunc(finite)).all():
                stated = finite.astype(np.int64)  # ints among which some are missing: much faster as ints
        return ValueCells(checked_values(stated, partial(entry_of, mask)), mask, len(column))

    def encode(self, cells: ValueCells, *, learn: bool) -> Encoded:
        return Encoded(spread(cells.mask, self.values.rows(cells.values, add=learn), MISSING))

    def fitting(self, cells: ValueCells) -> int:
        """For how many entries, from the first on, there is room."""
        fit = self.values.fitting(cells.values)
        return cells.n if fit == len(cells.values) else entry_of(cells.mask, fit)

    def forget(self, rows: NDArray[np.int64], memory: NodeMemory | None) -> None:
        """Values were evicted from these rows: nodes do not have them any more."""
        if memory is not None:
            memory.forget(rows, self.n_rows)

    def move(self, moved: NDArray[np.int64], memory: NodeMemory | None) -> None:
        """Values are in other rows. moved: (rows,) the new row of each"""
        if memory is not None:
            codes = memory.codes
            memory.codes = np.where(codes >= 0, moved[codes], codes)

    def is_missing(self, codes: NDArray[Any]) -> NDArray[np.bool_]:
        return codes == MISSING

    def elements(self, encoded: Encoded) -> Elements:
        return single(encoded.codes)

    def tidy(self, memory: Any) -> None:
        """Nothing to tidy up."""

    def to_arrays(self, memory: Any) -> dict[str, NDArray[Any]]:
        return self.values.to_arrays()

    def read(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.values = BoundedValues.restored(arrays, self.values.limit)

    def possible(self, codes: NDArray[Any]) -> bool:
        """Whether codes from a file are rows of values, or MISSING."""
        return bool(np.isin(codes[codes != MISSING], self.values.row).all())


def checked_values(values: Column, entry: Callable[[int], int]) -> Column:
    """Values that are allowed, as `checked_ids` returns them. entry: place -> entry, for errors"""
    try:
        return checked_ids(values, "value")
    except EntryError as error:
        if isinstance(error.value, list | set | frozenset | dict):
            error.remedy = 'several values in a cell are a Many("tags"), which no Cross can have'
        raise error.but(row=None if error.row is None else entry(error.row), kind="attribute") from None
