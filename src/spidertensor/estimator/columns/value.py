"""Value: one node per value. Values compare and are restricted like ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.cells import (
    LEFT_OUT,
    MISSING,
    Elements,
    Encoded,
    entry_of,
    single,
    spread,
    stated_of,
)
from spidertensor.estimator.ids import NodeIndex, checked_ids
from spidertensor.estimator.inputs import Column
from spidertensor.faults import EntryError

MAX_VALUES = 1_000_000  # of a column
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


class BoundedValues:
    """Values and their rows, at most `max_values`; once it is full, new values are left out and counted."""

    def __init__(self, max_values: int = MAX_VALUES) -> None:
        self.index, self.max_values, self.n_left_out = NodeIndex(), max_values, 0

    def __len__(self) -> int:
        return len(self.index)

    def rows(self, values: Column, *, add: bool) -> NDArray[np.int64]:
        """The row of each checked value; UNSEEN or, with `add`, LEFT_OUT if it has none."""
        rows = self.index.numbers(values, add=add)
        if len(self.index) > self.max_values:
            self.index.truncate(self.max_values)
            rows[rows >= self.max_values] = LEFT_OUT
        return rows


class ValueState:
    """What a model keeps about a column of values."""

    dtype, missing = np.dtype(np.int32), MISSING

    def __init__(self, max_values: int = MAX_VALUES) -> None:
        self.values = BoundedValues(max_values)

    @property
    def n_rows(self) -> int:
        return len(self.values)

    @property
    def n_left_out(self) -> int:
        return self.values.n_left_out

    def check(self, column: Column) -> ValueCells:
        stated, mask = stated_of(column)
        if isinstance(stated, list) and set(map(type, stated)) <= {str}:  # usual, and needs no check
            return ValueCells(stated, mask, len(column))
        if isinstance(stated, np.ndarray) and stated.dtype.kind == "f":
            finite = stated.astype(np.float64)
            if (np.abs(finite) < _EXACT).all() and (finite == np.trunc(finite)).all():
                stated = finite.astype(np.int64)  # ints among which some are missing: much faster as ints
        try:
            return ValueCells(checked_ids(stated), mask, len(column))
        except EntryError as error:
            raise as_value_error(error, mask) from None

    def encode(self, cells: ValueCells, *, learn: bool) -> Encoded:
        rows = self.values.rows(cells.values, add=learn)
        self.values.n_left_out += int((rows == LEFT_OUT).sum()) if learn else 0
        return Encoded(spread(cells.mask, rows, MISSING))

    def is_missing(self, codes: NDArray[Any]) -> NDArray[np.bool_]:
        return codes == MISSING

    def elements(self, encoded: Encoded) -> Elements:
        return single(encoded.codes)

    def tidy(self, memory: Any) -> None:
        """Nothing to tidy up."""

    def to_arrays(self, memory: Any) -> dict[str, NDArray[Any]]:
        left_out = np.array(self.n_left_out, np.int64)
        return {"left_out": left_out} | {f"values/{k}": a for k, a in self.values.index.to_arrays().items()}

    def read(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.values = values_from(arrays, self.values.max_values)

    def possible(self, codes: NDArray[Any]) -> bool:
        """Whether codes from a file are rows, MISSING or LEFT_OUT."""
        known = (codes >= 0) & (codes < self.n_rows)
        return bool((known | (codes == MISSING) | (codes == LEFT_OUT)).all())


def values_from(arrays: Mapping[str, NDArray[Any]], max_values: int) -> BoundedValues:
    """Values from the arrays of a file: `values/...` and `left_out`."""
    own = {name.removeprefix("values/"): a for name, a in arrays.items() if name.startswith("values/")}
    rest = arrays.keys() - {f"values/{name}" for name in own}
    left_out = arrays.get("left_out")
    if rest != {"left_out"} or left_out is None or left_out.dtype != np.int64 or left_out.shape != ():
        raise ValueError(f"unknown arrays {sorted(rest)!s:.200}")
    values = BoundedValues(max_values)
    values.index, values.n_left_out = NodeIndex.from_arrays(own), int(left_out)
    if len(values) > max_values or values.n_left_out < 0:
        raise ValueError(f"{len(values)} values, but room for {max_values}")
    return values


def as_value_error(error: EntryError, mask: NDArray[np.bool_] | None) -> EntryError:
    """An error about an id, worded for a value, with the row of its entry."""
    reason = error.reason.replace("an id", "a value").replace("id nested", "value nested")
    reason = reason.replace("infinite id", "infinite value").replace("missing id", "missing value")
    row = None if error.row is None else entry_of(mask, error.row)
    return error.but(reason=reason, row=row, kind="attribute")
