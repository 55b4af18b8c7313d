"""The column `time`: it orders a history, and is not a mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.inputs import Column, Columns
from spidertensor.faults import EntryError


def apart(X: Any, name: str) -> tuple[Any, Column | None]:
    """X without this column, if it has names, and the column, if it is there."""
    if isinstance(X, Columns):
        names, given = X.names or (), dict(X.given)
        column = given.pop(name, None)
        kept = [mode for mode, each in enumerate(names) if each != name]
        if len(kept) < len(names):
            column = X.ids[names.index(name)]
            X = replace(X, ids=[X.ids[mode] for mode in kept], names=tuple(names[mode] for mode in kept))
        return replace(X, given=given), column
    if isinstance(X, Mapping):
        return {key: each for key, each in X.items() if key != name}, X.get(name)
    if isinstance(X, list | tuple):
        if X and all(isinstance(row, Mapping) and name in row for row in X):
            rows = [{key: each for key, each in row.items() if key != name} for row in X]
            return rows, [row[name] for row in X]
        return X, None
    if isinstance(X, np.ndarray):
        return X, None
    import narwhals as nw  # imported here: arrays and lists do not need it

    try:
        frame = nw.from_native(X, eager_only=True)
    except TypeError:
        return X, None
    if name not in frame.columns:
        return X, None
    return frame.drop(name).to_native(), frame[name].to_list()


def sortable(column: Column | None, name: str) -> NDArray[Any]:
    """The times as an array that can be sorted; EntryError if one is missing or unlike the others."""
    if column is None:
        raise EntryError(
            f"no column {name!r}, which time names",
            kind="time",
            remedy=f"pass a data frame or a dict with {name!r}, or leave out time",
        )
    for row, each in enumerate(column):
        if each is None or each != each:
            raise EntryError("a time is missing", row, column=name, kind="time", remedy="leave out the row")
    times = np.asarray(column)
    if times.dtype == object:
        try:
            times = np.asarray(column, np.datetime64)
        except ValueError:
            raise EntryError("times must be all numbers, all dates or all text", column=name) from None
    return times
