"""The cells of one column of the input: which are missing, and what all kinds of columns make of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.inputs import Column
from spidertensor.faults import EntryError

# Codes of cells that name no known node
UNSEEN = -1  # a value that the model has not learned
MISSING = -2  # not stated

NEVER_MISSING = frozenset({int, bool, str, bytes, list, tuple, set, frozenset, dict, np.ndarray})


class Encoded(NamedTuple):
    """A code for each cell. ready: the first entry for which the column can be used (number.py). extra: what
    codes refer to that is not kept (many.py)"""

    codes: NDArray[Any]
    ready: int = 0
    extra: Any = None


class Elements(NamedTuple):
    """The elements of n entries in one table: how many each has, then the row and weight of all, in order."""

    size: NDArray[np.int64]  # (n,)
    row: NDArray[np.int64]
    weight: NDArray[np.float32]


def no_elements(n: int) -> Elements:
    return Elements(np.zeros(n, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))


def joined_elements(parts: Sequence[Elements]) -> Elements:
    """The elements of entries, given in parts."""
    if len(parts) == 1:
        return parts[0]
    return Elements(*map(np.concatenate, zip(*parts, strict=True)))


def with_spare(array: NDArray[Any], n: int, fill: Any = 0) -> NDArray[Any]:
    """The array, or a longer copy with `fill` at its end. It grows by half, so small steps stay cheap."""
    if n <= len(array):
        return array
    grown = np.full(max(n, len(array) * 3 // 2), fill, array.dtype)
    grown[: len(array)] = array
    return grown


def single(codes: NDArray[np.int64]) -> Elements:
    """One element of weight 1 for each code that is a row or UNSEEN, none for the others."""
    used = codes >= UNSEEN
    row = codes if used.all() else codes[used]
    return Elements(used.astype(np.int64), row.astype(np.int64), np.ones(len(row), np.float32))


def stated_of(column: Column) -> tuple[Column, NDArray[np.bool_] | None]:
    """The cells that are not missing, and the (n,) mask of them; None if all are there."""
    if isinstance(column, np.ma.MaskedArray):
        column = column.tolist()
    if isinstance(column, np.ndarray):
        if column.ndim != 1:
            raise EntryError(f"a column is 1-D, got shape {column.shape}")
        if column.dtype.kind in "biuUS":
            return column, None
        if column.dtype.kind in "fmM":
            mask = ~(np.isnan(column) if column.dtype.kind == "f" else np.isnat(column))
            return (column, None) if mask.all() else (column[mask], mask)
        if column.dtype.kind in "cV":
            raise EntryError(f"{column.dtype} cannot be used")
        column = column.tolist()
    kinds = set(map(type, column))
    if kinds <= NEVER_MISSING:
        return column, None
    if kinds <= NEVER_MISSING | {type(None)}:
        there = [cell is not None for cell in column]
    else:
        there = [not is_missing(cell) for cell in column]
    mask = np.array(there, bool)
    return (column, None) if mask.all() else ([c for c, t in zip(column, there, strict=True) if t], mask)


def is_missing(cell: Any) -> bool:
    """None, NaN, NaT or pandas' NA."""
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):  # from pandas, without importing it
        return True
    if isinstance(cell, float | np.floating):
        return bool(cell != cell)
    return isinstance(cell, np.datetime64 | np.timedelta64) and bool(np.isnat(cell))


def entry_of(mask: NDArray[np.bool_] | None, place: int) -> int:
    """The entry of a stated cell."""
    return place if mask is None else int(np.flatnonzero(mask)[place])


def spread(mask: NDArray[np.bool_] | None, stated: NDArray[Any], missing: Any) -> NDArray[Any]:
    """(n,) the stated cells at their entries, and `missing` at the others."""
    if mask is None:
        return stated
    whole = np.full(len(mask), missing, stated.dtype)
    whole[mask] = stated
    return whole
