"""Decide what a column given only by its name is, from its first values."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.cells import stated_of
from spidertensor.estimator.columns.specs import Calendar, Many, Number, Spec, Value
from spidertensor.estimator.ids import keys_of
from spidertensor.estimator.inputs import Column

MOST_VALUES = 32  # more different whole numbers are a number, not a value

_SEVERAL = (list, tuple, set, frozenset, dict, np.ndarray)
_TIMES = (dt.date, np.datetime64)
_TEXTS = (str, bytes)
_FLOATS = (float, np.floating, Decimal)
_INTS = (int, np.integer)
_ISO = re.compile(r"\d{4}-\d\d-\d\d")


def decide(name: str, column: Column) -> Spec | None:
    """Text, category, bool: Value. Float: Number. Whole numbers: Number if they differ much, else Value.
    Lists, sets, dicts, arrays: Many. Dates and times, also as ISO texts such as 2024-05-31: Calendar. None if
    all cells are missing.

    Missing cells change nothing: whole numbers stored as floats because some are missing are whole numbers.
    """
    if isinstance(column, np.ndarray) and column.ndim == 2:
        return Many(name)
    stated, mask = stated_of(column)
    if not len(stated):
        return None
    if isinstance(stated, np.ndarray) and stated.dtype.kind in "US":
        stated = stated.tolist()
    if isinstance(stated, np.ndarray):
        return _of_array(stated, with_missing=mask is not None)(name)
    kinds = set(map(type, stated))

    def any_of(classes: tuple[type, ...]) -> bool:
        return any(issubclass(kind, classes) for kind in kinds)

    if any_of(_SEVERAL):
        return Many(name)
    if any_of(_TIMES):
        return Calendar(name)
    if any_of(_TEXTS):
        return (Calendar if all(map(_is_iso_time, stated)) else Value)(name)
    if any_of(_FLOATS):
        try:
            numbers = np.array(stated, np.float64)
        except OverflowError:  # a huge int, which is refused as a number
            return Number(name)
        return _of_array(numbers, with_missing=mask is not None)(name)
    if kinds <= {bool, np.bool_} or not any_of(_INTS):
        return Value(name)
    return (Number if len(set(keys_of(stated))) > MOST_VALUES else Value)(name)


def _is_iso_time(cell: Any) -> bool:
    if not isinstance(cell, str) or not _ISO.match(cell):
        return False
    try:
        return dt.datetime.fromisoformat(cell) is not None
    except ValueError:
        return False


def _of_array(stated: NDArray, *, with_missing: bool) -> type[Value | Number | Calendar]:
    kind = stated.dtype.kind
    if kind == "M":
        return Calendar
    whole = kind in "iu" or (kind == "f" and with_missing and bool((stated == np.trunc(stated)).all()))
    if kind == "f" and not whole:
        return Number
    return Number if whole and len(np.unique(stated)) > MOST_VALUES else Value
