"""Types for the cells of attributes, which text files do not have.

What a column is (a value, a number, ...) is decided once, by the model, from cells with types: see
estimator/columns/deciding.py. For the texts of a csv, an undecided column has whole numbers if all its texts
are plain ones, numbers if all are numbers, and texts otherwise. "042" is no number, as with ids. Once
decided, each text is read on its own: of a number as a number, of a value like an id, of a calendar as
seconds if it is a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spidertensor.sources.columns import MISSING, Wrong, plain_id, to_bin_numbers
from spidertensor.sources.source import BadRow, Chunk, Source
from spidertensor.sources.stream import Stream

_ZEROS_FIRST = re.compile("[-+]?0[0-9]+")  # a code, such as a postal code


def with_types(chunk: Chunk, kinds: Mapping[str, str], source: Source | Stream, names: list[str]) -> Chunk:
    """The chunk with typed attributes; rows with cells that their column cannot have are bad.

    kinds: what the model has decided so far, by column: value, number, many, calendar, undecided
    names: of the columns of ids, for bad rows
    """
    if not chunk.attributes or not len(chunk.rows):
        return chunk
    found, wrong = typed(chunk.attributes, kinds, source)
    if not wrong:
        return chunk._replace(attributes=found)
    good = np.delete(np.arange(len(chunk.rows)), list(wrong))
    return without(chunk, wrong, names)._replace(attributes={name: found[name][good] for name in found})


def typed(
    given: Mapping[str, NDArray[Any]], kinds: Mapping[str, str], source: Source | Stream
) -> tuple[dict[str, NDArray[Any]], Wrong]:
    """Typed columns, and by place the reasons for what they cannot have."""
    if not source.format.typed:
        return typed_texts(given, kinds, source.decimal)
    wrong: Wrong = {}
    for name, column in given.items():
        not_allowed = _not_allowed(column, kinds.get(name, "undecided"))
        wrong = {place: f"{name} {reason}" for place, reason in not_allowed.items()} | wrong
    return dict(given), wrong


def typed_texts(
    given: Mapping[str, NDArray[Any]], kinds: Mapping[str, str], decimal: str = "."
) -> tuple[dict[str, NDArray[Any]], Wrong]:
    """The same for columns of texts, None where missing."""
    columns: dict[str, NDArray[Any]] = {}
    wrong: Wrong = {}
    for name, column in given.items():
        columns[name], not_allowed = _of_texts(column, kinds.get(name, "undecided"), decimal)
        wrong = {place: f"{name} {reason}" for place, reason in not_allowed.items()} | wrong
    return columns, wrong


def _not_allowed(column: NDArray[Any], kind: str) -> Wrong:
    """What a column of a typed source cannot have. Other faults, such as long lists, the model finds."""
    if kind != "number":
        return {}
    if column.dtype.kind == "f":
        return {int(place): "is infinite" for place in np.flatnonzero(np.isinf(column))}
    if column.dtype != object:
        return {}
    wrong = {}
    for place, cell in enumerate(column.tolist()):
        if isinstance(cell, str | bytes | list | dict | date):
            wrong[place] = f"{cell!r:.40} is not a number"
        elif isinstance(cell, float) and cell == cell and not isfinite(cell):
            wrong[place] = "is infinite"
    return wrong


def _of_texts(column: NDArray[Any], kind: str, decimal: str) -> tuple[NDArray[Any], Wrong]:
    """A column of texts, None where missing."""
    if kind == "undecided":
        return _undecided(column, decimal), {}
    if kind == "number":
        return _numbers(column, decimal)
    if kind == "value":
        return _objects([None if each is None else plain_id(each) for each in column]), {}
    if kind == "calendar":
        first = next((each for each in column if each is not None), "")
        if type(plain_id(first)) is int:  # at once: cell by cell is slow
            seconds, wrong = _numbers(column, decimal)
            if not wrong:
                return seconds, {}
        times = [_time(each, decimal) for each in column]
        wrong = {
            place: f"{column[place]!r:.40} is not a time"
            for place, each in enumerate(times)
            if each is None and column[place] is not None
        }
        return _objects(times), wrong
    return column, {}


def _undecided(column: NDArray[Any], decimal: str) -> NDArray[Any]:
    texts = {each for each in column.tolist() if each is not None}
    if not texts:
        return column
    ids = {text: plain_id(text) for text in texts}
    if any(_ZEROS_FIRST.fullmatch(each) for each in texts):  # codes: no number, whatever the others are
        return _objects([None if each is None else ids[each] for each in column])
    if all(type(each) is int for each in ids.values()):
        found = [None if each is None else ids[each] for each in column]
        return np.array(found, np.int64) if None not in found else _objects(found)
    numbers, wrong = _numbers(column, decimal)
    if all(reason == "is infinite" for reason in wrong.values()):
        return numbers
    return _objects([None if each is None else ids[each] for each in column])


def _numbers(column: NDArray[Any], decimal: str) -> tuple[NDArray[np.float64], Wrong]:
    """NaN where missing; an infinite number stays infinite."""
    texts = pa.array(column.tolist(), pa.string())
    numbers, wrong = to_bin_numbers(texts, decimal)
    wrong = {place: reason for place, reason in wrong.items() if reason != MISSING}
    for place, reason in wrong.items():
        if reason.endswith("not finite"):
            wrong[place], numbers[place] = "is infinite", np.inf
    return numbers, wrong


def _time(text: str | None, decimal: str) -> Any:
    """A time, or seconds; None if missing, or no time."""
    if text is None:
        return None
    text = text.strip()
    try:
        return date.fromisoformat(text) if len(text) <= 10 else datetime.fromisoformat(text)
    except ValueError:
        pass
    seconds, wrong = _numbers(np.array([text], object), decimal)
    return None if wrong else float(seconds[0])


def _objects(cells: list[Any]) -> NDArray[Any]:
    return np.fromiter(cells, object, len(cells))


def without(chunk: Chunk, wrong: Wrong, names: list[str]) -> Chunk:
    """The chunk without these places, which become bad rows. names: see with_types"""
    found = []
    for place, reason in wrong.items():
        ids = {name: column[place] for name, column in zip(names, chunk.columns, strict=True)}
        raw = ids | {name: column[place] for name, column in chunk.attributes.items()}
        raw = {name: each.item() if isinstance(each, np.generic) else each for name, each in raw.items()}
        found.append(BadRow(int(chunk.rows[place]), reason, raw))
    good = np.ones(len(chunk.rows), bool)
    good[list(wrong)] = False
    records = chunk.records
    if isinstance(records, pa.Table):
        records = records.filter(pa.array(good))
    elif records is not None:
        records = [record for record, fine in zip(records, good, strict=True) if fine]
    return chunk._replace(
        columns=[column[good] for column in chunk.columns],
        attributes={name: column[good] for name, column in chunk.attributes.items()},
        values=None if chunk.values is None else chunk.values[good],
        rows=chunk.rows[good],
        records=records,
        bad=sorted([*chunk.bad, *found], key=lambda each: each.row),
    )
