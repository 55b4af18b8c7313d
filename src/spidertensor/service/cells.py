"""Cells of attribute columns in request bodies: texts, numbers, booleans, lists, objects or times.

What a column is, the model decides (estimator/columns). Here only sizes are limited, since clients are not
trusted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spidertensor.sources.columns import Wrong

MAX_CELL_CHARS = 10_000  # of a text, which may be a list of values
MAX_VALUE_CHARS = 1000  # of a text in a list or object


def cells_of(column: Any) -> tuple[NDArray[Any], Wrong]:
    """A column of JSON values or an Arrow array; missing cells are None, NaN or NaT."""
    cells = _objects_of(column) if isinstance(column, list) else _of_arrow(column)
    if cells.dtype != object:
        return cells, {}
    found = ((place, _too_long(cell)) for place, cell in enumerate(cells))
    return cells, {place: reason for place, reason in found if reason}


def joined_cells(columns: list[tuple[NDArray[Any] | None, int]]) -> NDArray[Any]:
    """Join the columns of several requests; None for a request without it. With them, numbers of rows."""
    parts = [np.full(n, None, object) if column is None else column for column, n in columns]
    if len({part.dtype for part in parts}) > 1:
        # By iteration: astype would turn times that Python has no datetime for into integers.
        times = [np.fromiter(part, object, len(part)) if part.dtype.kind == "M" else part for part in parts]
        parts = [part.astype(object) for part in times]
    return np.concatenate(parts)


def _objects_of(column: list[Any]) -> NDArray[Any]:
    kinds = set(map(type, column))
    try:
        if kinds in ({int}, {float}):
            return np.array(column, np.int64 if kinds == {int} else np.float64)
    except OverflowError:
        pass
    return np.fromiter(column, object, len(column))  # np.array would split lists


def _of_arrow(array: pa.Array) -> NDArray[Any]:
    kind = array.type
    if pa.types.is_floating(kind) or (pa.types.is_integer(kind) and not array.null_count):
        return array.to_numpy(zero_copy_only=False)
    if pa.types.is_date(kind):
        return array.cast(pa.date32()).to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(kind):
        wall: Any = array if kind.tz is None else pc.local_timestamp(array)  # pyright: ignore[reportAttributeAccessIssue]
        return wall.cast(pa.timestamp("us"), safe=kind.unit != "ns").to_numpy(zero_copy_only=False)
    return _objects_of(array.to_pylist())


def _too_long(cell: Any) -> str:
    if isinstance(cell, str | bytes) and len(cell) > MAX_CELL_CHARS:
        return f"is longer than {MAX_CELL_CHARS:,} characters"
    if isinstance(cell, list | dict) and any(
        isinstance(value, str | bytes) and len(value) > MAX_VALUE_CHARS for value in cell
    ):
        return f"has a text of more than {MAX_VALUE_CHARS:,} characters"
    return ""
