"""The columns `time` and `known_at`, which are no modes: when entries are predicted and values known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.cells import stated_of
from spidertensor.estimator.inputs import Column, Columns
from spidertensor.faults import EntryError

NUMBER, UNZONED, ZONED, TEXT = "a number", "a time without a zone", "a time with a zone", "a text"
NEXT_ENTRY = "next entry"  # the error of a prediction made just before its entry is learned
# in which people name a delay: name, seconds, and from how many of them on
UNITS = (("days", 86_400, 2), ("hours", 3600, 5), ("minutes", 60, 2), ("seconds", 1, 0))


class Times(NamedTuple):
    """When entries are predicted and, if later, when their values are known.

    asked, known: (n,) numbers; dates in seconds; without `known` also texts, which are only sorted
    kind:         what they were written as
    """

    asked: NDArray[Any]
    kind: str
    known: NDArray[Any] | None = None

    def at(self, rows: NDArray[np.int64] | slice) -> Self:
        return self._replace(asked=self.asked[rows], known=None if self.known is None else self.known[rows])


def case(delay: float, unit: str) -> str:
    """Which error predictions have whose values are known so much later, in words.

    unit: "entries", "seconds", or "" for numbers of which nothing is known
    """
    if unit == "seconds":
        unit, size, _ = next(each for each in UNITS if delay >= each[1] * each[2])
        delay /= size
    number = f"{delay:,.0f}" if delay >= 100 else f"{delay:.3g}"
    return f"values known after {number} {unit}".rstrip() + " (median)"


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


def sortable(column: Column | None, name: str) -> Times:
    """The times as an array that can be sorted; EntryError if one is missing or unlike the others.

    Texts are numbers if all of them are; else they are sorted as texts, as dates like 2026-11-18 can be.
    """
    stated = _stated(column, name, "time")
    try:
        if isinstance(stated, np.ndarray):
            if stated.dtype.kind in "iuf":
                return Times(stated, NUMBER)
            stated = stated.tolist() if stated.dtype.kind in "US" else stated
        kinds = [_kind(cell) for cell in stated]
        if len(set(kinds)) > 1:
            reason = "times must be all numbers, all dates or all text, and this one is unlike the others"
            raise _unlike(kinds, reason)
        if "text" in kinds:
            return _of_texts(list(stated))
    except EntryError as error:
        raise error.but(column=name) from None
    return instants(stated, name)


def clock(asked: Column | None, known: Column | None, time: str, known_at: str) -> Times:
    """When entries are predicted and when their values are known; EntryError if a value is known before it is
    asked for."""
    when = instants(_stated(asked, time, "time"), time)
    later = instants(_stated(known, known_at, "known_at"), known_at)
    if len(when.asked) != len(later.asked):
        raise EntryError(
            f"{len(when.asked)} times in {time} but {len(later.asked)} in {known_at}", column=known_at
        )
    if when.kind != later.kind and len(when.asked):
        reason = f"{known_at} has {later.kind}, but {time} has {when.kind}"
        raise EntryError(reason, column=known_at, kind="time", remedy="write both in the same way")
    early = np.flatnonzero(later.asked < when.asked)
    if len(early):
        reason = f"the value is known before {time}, when it is predicted"
        raise _wrong(reason, early.tolist(), "leave out the row, or mend its times").but(column=known_at)
    return when._replace(known=later.asked)


def instants(stated: Any, name: str) -> Times:
    """Numbers, dates or texts of them as points in time; EntryError for one that is none or unlike others."""
    if isinstance(stated, np.ndarray) and stated.dtype.kind in "iuM":
        if stated.dtype.kind == "M":
            return Times(stated.astype("M8[us]").astype(np.int64) / 1e6, UNZONED)
        return Times(stated, NUMBER)
    found, kinds, bad = [], [], {}
    for row, cell in enumerate(stated):
        try:
            number, kind = instant(cell)
            found.append(number)
            kinds.append(kind)
        except ValueError as error:
            bad[row] = str(error)
    try:
        if bad:
            raise _wrong(f"the time {next(iter(bad.values()))}", list(bad), "leave out the row")
        if len(set(kinds)) > 1:
            raise _unlike(kinds, "this time is unlike the others, of which most are {usual}")
    except EntryError as error:
        raise error.but(column=name) from None
    whole = all(type(each) is int and abs(each) < 2**63 for each in found)
    return Times(np.array(found, np.int64 if whole else np.float64), kinds[0] if kinds else "")


def instant(cell: Any) -> tuple[int | float, str]:
    """A time as a number, in seconds if it is a date, and its kind; ValueError if it cannot be ordered."""
    if isinstance(cell, str):
        for read in (int, float, datetime.fromisoformat):
            with suppress(ValueError):
                cell = read(cell.strip())
                break
        else:
            raise ValueError(f"{cell!r:.40} is neither a number nor an ISO timestamp")
    if isinstance(cell, np.generic):
        cell = cell.astype("M8[us]").item() if isinstance(cell, np.datetime64) else cell.item()
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        if not math.isfinite(cell):
            raise ValueError(f"{cell} is not finite")
        return cell, NUMBER
    if isinstance(cell, date):  # or a datetime, a subclass
        full = cell if isinstance(cell, datetime) else datetime(cell.year, cell.month, cell.day)
        if full.tzinfo is None:
            return full.replace(tzinfo=UTC).timestamp(), UNZONED
        return full.timestamp(), ZONED
    raise ValueError(f"is a {type(cell).__name__}, which cannot be ordered")


def _stated(column: Column | None, name: str, parameter: str) -> Any:
    """The cells of a column; EntryError if there is no such column, or if one is missing."""
    if column is None:
        raise EntryError(
            f"no column {name!r}, which {parameter} names",
            kind="time",
            remedy=f"pass a data frame with {name!r}, or leave out {parameter}",
        )
    stated, mask = stated_of(column)
    if mask is not None:
        missing = np.flatnonzero(~mask).tolist()
        raise _wrong("a time is missing", missing, "leave out the row").but(column=name)
    return stated


def _unlike(kinds: list[str], reason: str) -> EntryError:
    usual = max(set(kinds), key=kinds.count)
    rows = [row for row, kind in enumerate(kinds) if kind != usual]
    return _wrong(reason.format(usual=usual), rows, "leave out the row")


def _wrong(reason: str, rows: list[int], remedy: str) -> EntryError:
    return EntryError(reason, rows[0], kind="time", rows=tuple(rows), remedy=remedy)


def _kind(cell: Any) -> str:
    if isinstance(cell, str):
        return "text"
    return "number" if isinstance(cell, int | float | np.number) and not isinstance(cell, bool) else "date"


def _of_texts(cells: Sequence[str]) -> Times:
    numbers = [_number(text) for text in cells]
    unlike = [row for row, number in enumerate(numbers) if number is None]
    if len(unlike) > len(cells) / 2:
        unlike = [row for row, number in enumerate(numbers) if number is not None]
        if not unlike:
            return Times(np.array(cells), TEXT)
    if unlike:
        reason = "some times are numbers and some are not, and this one is unlike the others"
        raise _wrong(reason, unlike, "leave out the row")
    return Times(np.array(numbers), NUMBER)


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
