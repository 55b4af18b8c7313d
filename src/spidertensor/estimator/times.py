"""The column `time`: it orders a history, and is not a mode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.calendar import to_codes
from spidertensor.estimator.columns.cells import stated_of
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
    """The times as an array that can be sorted; EntryError if one is missing or unlike the others.

    Texts are numbers if all of them are; else they are sorted as texts, as dates like 2026-11-18 can be.
    """
    if column is None:
        raise EntryError(
            f"no column {name!r}, which time names",
            kind="time",
            remedy=f"pass a data frame or a dict with {name!r}, or leave out time",
        )
    try:
        stated, mask = stated_of(column)
        if mask is not None:
            row = int(mask.argmin())
            raise EntryError("a time is missing", row, kind="time", remedy="leave out the row")
        if isinstance(stated, np.ndarray):
            if stated.dtype.kind in "iuf":
                return stated
            stated = stated.tolist() if stated.dtype.kind in "US" else stated
        kinds = [_kind(cell) for cell in stated]
        if len(set(kinds)) > 1:
            usual = max(set(kinds), key=kinds.count)
            rows = tuple(row for row, kind in enumerate(kinds) if kind != usual)
            reason = "times must be all numbers, all dates or all text, and this one is unlike the others"
            raise EntryError(reason, rows[0], kind="time", rows=rows, remedy="leave out the row")
        if "text" in kinds:
            return _of_texts(list(stated))
        return to_codes(stated) if "date" in kinds else np.asarray(stated)
    except EntryError as error:
        raise error.but(column=name) from None


def clock(
    asked: Column | None, known: Column | None, time: str, known_at: str
) -> tuple[NDArray[Any], NDArray[Any]]:
    """When entries are predicted and when their values are known, as numbers of one kind; EntryError if a
    value is known before it is asked for."""
    columns = {time: asked, known_at: known}
    found = {name: sortable(column, name) for name, column in columns.items()}
    dates = [
        name for name, times in found.items() if times.dtype.kind not in "iuf" or _are_dates(columns[name])
    ]
    if len(dates) == 1:
        reason = f"{time} and {known_at} must both be numbers, or both dates"
        raise EntryError(reason, column=known_at, kind="time", remedy="write both in the same way")
    for name in dates:
        try:
            found[name] = to_codes(columns[name])  # pyright: ignore[reportArgumentType]
        except EntryError as error:
            raise error.but(column=name) from None
    when, later = found[time], found[known_at]
    if len(when) != len(later):
        raise EntryError(f"{len(when)} times in {time} but {len(later)} in {known_at}", column=known_at)
    early = np.flatnonzero(later < when)
    if len(early):
        reason = f"the value is known before {time}, when it is predicted"
        remedy = "leave out the row, or mend its times"
        raise EntryError(
            reason, int(early[0]), column=known_at, kind="time", rows=tuple(early.tolist()), remedy=remedy
        )
    return when, later


def _are_dates(column: Any) -> bool:
    stated, _ = stated_of(column)
    if isinstance(stated, np.ndarray):
        return stated.dtype.kind == "M"
    return any(_kind(cell) == "date" for cell in stated[:1])


def _kind(cell: Any) -> str:
    if isinstance(cell, str):
        return "text"
    return "number" if isinstance(cell, int | float | np.number) and not isinstance(cell, bool) else "date"


def _of_texts(cells: Sequence[str]) -> NDArray[Any]:
    numbers = [_number(text) for text in cells]
    unlike = [row for row, number in enumerate(numbers) if number is None]
    if len(unlike) > len(cells) / 2:
        unlike = [row for row, number in enumerate(numbers) if number is not None]
        if not unlike:
            return np.array(cells)
    if unlike:
        reason = "some times are numbers and some are not, and this one is unlike the others"
        raise EntryError(reason, unlike[0], kind="time", rows=tuple(unlike), remedy="leave out the row")
    return np.array(numbers)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def in_order(column: Any, order: NDArray[np.int64]) -> Any:
    """The rows of a column in another order."""
    if hasattr(column, "__array__"):
        return np.asarray(column)[order]
    return [column[row] for row in order]
