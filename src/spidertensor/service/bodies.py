"""Parse request bodies into checked entries, in columns, without looking at the model.

Formats: JSON (a list of objects), NDJSON (one object per line), or an Arrow stream. Types are kept: 42 and
"42" are different ids, as in JSON lines files. Other columns are ignored. Rows are counted from 0; blank
lines are not rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from spidertensor.faults import EntryError, Fault
from spidertensor.service.arrow_stream import read_arrow
from spidertensor.service.cells import cells_of
from spidertensor.service.errors import MAX_VALUE_CHARS, ServiceError
from spidertensor.service.exact_json import exact, lossy
from spidertensor.sources.columns import Wrong, is_text, to_ids, to_labels, to_numbers
from spidertensor.spider.likelihoods import Likelihood

JSON, NDJSON, ARROW = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"
MEDIA_TYPES = {JSON: JSON, NDJSON: NDJSON, "application/jsonl": NDJSON, ARROW: ARROW}
MAX_ID_CHARS = 1000  # or bytes
FORECAST = "_forecast"  # column of rows to learn: the id of a forecast (forecasts.py)


class BodyFields(NamedTuple):
    """What a body must have.

    modes:      the columns of ids
    value:      None for predictions, which need none, and for events, which are all 1
    attributes: columns that a body may have
    forecasts:  rows may have ids of forecasts, in the column FORECAST
    labels:     the texts for the values 0 and 1, if the values are labels
    """

    modes: Sequence[str]
    value: str | None
    likelihood: Likelihood
    max_rows: int
    events: bool = False
    attributes: Sequence[str] = ()
    forecasts: bool = False
    labels: tuple[str, str] | None = None

    @property
    def columns(self) -> list[str]:
        return [*self.modes, *([] if self.value is None else [self.value])]


class Entries(NamedTuple):
    """The good rows in columns, and the faults of the others."""

    columns: list[NDArray[Any]]
    values: NDArray[np.float64]  # empty for a prediction
    rows: NDArray[np.int64]  # the numbers of the good rows in the request
    n_rows: int
    bad: list[Fault]
    given: Mapping[str, NDArray[Any]] = MappingProxyType({})  # attributes by name, those that are there

    def without(self, places: Sequence[int], faults: Sequence[Fault]) -> Entries:
        good = np.ones(len(self.rows), bool)
        good[list(places)] = False
        columns = [column[good] for column in self.columns]
        values = self.values[good] if len(self.values) else self.values
        given = {name: column[good] for name, column in self.given.items()}
        return Entries(columns, values, self.rows[good], self.n_rows, [*self.bad, *faults], given)

    def without_rows(self, faults: Sequence[Fault]) -> Entries:
        """The entries without the rows of these faults."""
        places = {row: place for place, row in enumerate(self.rows.tolist())}
        return self.without([places[fault.row] for fault in faults if fault.row is not None], faults)


def entries(body: bytes, media_type: str, wanted: BodyFields) -> Entries:
    """Parse a body. ServiceError if it is not a list of rows at all; single bad rows go to `bad`."""
    bad: list[Fault] = []
    if wanted.forecasts and FORECAST.encode() in body:
        wanted = wanted._replace(attributes=(*wanted.attributes, FORECAST))
    if media_type == ARROW:
        raw, others, n = read_arrow(body, wanted.columns, wanted.attributes, wanted.max_rows, MAX_ID_CHARS)
        rows = np.arange(n)
    else:
        objects, rows, n, bad = _objects(body, media_type, wanted)
        raw, others = _columns(objects, wanted)
        if any(map(lossy, [*raw[: len(wanted.modes)], *others.values()])):
            objects, rows, n, bad = _objects(body, media_type, wanted, exact)
            raw, others = _columns(objects, wanted)
    wrong: dict[int, Fault] = {}
    columns = []
    for name, column in zip(wanted.modes, raw, strict=False):
        ids, of_ids = _ids(column)
        columns.append(ids)
        wrong = _faults(of_ids, "id", name, column, rows) | wrong
    values = np.ones(len(rows) if wanted.events else 0)
    if wanted.value is not None:
        if wanted.labels is None:
            values, of_values = _numbers(raw[-1], wanted.likelihood)
        else:
            values, of_values = to_labels(raw[-1], wanted.labels)
        wrong = _faults(of_values, "value", wanted.value, raw[-1], rows) | wrong
    given = {}
    for name, column in others.items():
        given[name], of_cells = cells_of(column)
        wrong = _faults(of_cells, "attribute", name, column, rows) | wrong
    found = Entries(columns, values, rows, n, bad, given)
    if wrong:
        found = found.without(list(wrong), list(wrong.values()))
        found.bad.sort(key=lambda fault: fault.row or 0)
    return found


def _objects(
    body: bytes, media_type: str, wanted: BodyFields, loads: Any = orjson.loads
) -> tuple[list[dict[str, Any]], NDArray[np.int64], int, list[Fault]]:
    if media_type == JSON:
        try:
            parsed: list[Any] = loads(body)
        except (ValueError, RecursionError) as error:
            raise ServiceError(400, "not json", f"the body is not JSON: {error}") from None
        if not isinstance(parsed, list):
            remedy = 'send [{"column": ...}, ...], or one object per line as application/x-ndjson'
            raise ServiceError(400, "not a list", "the body is not a list of objects", remedy=remedy)
    else:
        parsed = [line for line in body.split(b"\n") if line.strip()]
    check_rows(len(parsed), wanted.max_rows)
    bad: list[Fault] = []
    if media_type == NDJSON:
        parsed = [_line(line, row, loads, bad) for row, line in enumerate(parsed)]
    if set(map(type, parsed)) <= {dict}:
        return parsed, np.arange(len(parsed), dtype=np.int64), len(parsed), bad
    rows = [row for row, each in enumerate(parsed) if isinstance(each, dict)]
    for row, each in enumerate(parsed):
        if not isinstance(each, dict) and each is not _BAD:
            bad.append(EntryError("is not an object", row, kind="not an object", value=short(each)))
    return [parsed[row] for row in rows], np.array(rows, np.int64), len(parsed), bad


_BAD = object()


def _line(line: bytes, row: int, loads: Any, bad: list[Fault]) -> Any:
    try:
        return loads(line)
    except (ValueError, RecursionError):
        value = line[:MAX_VALUE_CHARS].decode(errors="replace")
        bad.append(EntryError("is not JSON", row, kind="not json", value=value))
        return _BAD


def check_rows(n: int, limit: int) -> None:
    if n > limit:
        remedy = f"send at most {limit:,} rows per request"
        raise ServiceError(413, "too many rows", f"{n:,} rows in one request", remedy=remedy)


def _columns(
    objects: list[dict[str, Any]], wanted: BodyFields
) -> tuple[list[list[Any]], dict[str, list[Any]]]:
    """The columns of ids and values, and by name the attributes that are there."""
    there = {name for each in objects for name in each} if wanted.attributes else set()
    others = {name: [each.get(name) for each in objects] for name in wanted.attributes if name in there}
    return [[each.get(name) for each in objects] for name in wanted.columns], others


def _ids(column: Any) -> tuple[NDArray[Any], Wrong]:
    kinds = set(map(type, column)) if isinstance(column, list) else set()
    if kinds == {int}:
        try:
            return np.array(column, np.int64), {}
        except OverflowError:
            pass
    if kinds == {str}:
        ids, wrong = np.fromiter(column, object, len(column)), {}
    else:
        ids, wrong = to_ids(column, find_ints=False, empty_is_missing=False)
        if ids.dtype.kind in "iu":  # one integer type, so that requests can be joined
            fits = ids.dtype != np.uint64 or ids.max(initial=0) < 2**63
            ids = ids.astype(np.int64) if fits else np.fromiter(ids.tolist(), object, len(ids))
    if ids.dtype == object and (not kinds or kinds & {str, bytes}):
        long = (n for n, raw in enumerate(ids) if isinstance(raw, str | bytes) and len(raw) > MAX_ID_CHARS)
        wrong |= dict.fromkeys(long, f"is longer than {MAX_ID_CHARS} characters")
    return ids, wrong


def _numbers(column: Any, likelihood: Likelihood) -> tuple[NDArray[np.float64], Wrong]:
    if isinstance(column, list) and set(map(type, column)) <= {int, float}:
        try:
            values = np.array(column, np.float64)
        except OverflowError:
            return to_numbers(column, likelihood)
        if likelihood.allows(values).all():
            return values, {}
    if not isinstance(column, list) and is_text(column.type):  # in a typed format a text is not a number
        column = column.to_pylist()
    return to_numbers(column, likelihood)


def _faults(wrong: Wrong, kind: str, name: str, column: Any, rows: NDArray[np.int64]) -> dict[int, Fault]:
    faults: dict[int, Fault] = {}
    for place, reason in wrong.items():
        raw = column[place].as_py() if isinstance(column, pa.Array) else column[place]
        what = "missing" if reason == "is missing" else kind
        faults[place] = EntryError(
            f"{name} {reason}", int(rows[place]), kind=what, column=name, value=short(raw)
        )
    return faults


def short(raw: Any) -> Any:
    """A value for an error."""
    return raw if isinstance(raw, str | int | float | None) else repr(raw)[:MAX_VALUE_CHARS]
