"""Requests to learn, and their answers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from spidertensor.estimator.forecast import Forecast
from spidertensor.estimator.inputs import Column
from spidertensor.learner.first_batch import first_alone
from spidertensor.learner.forecasts import Remembered, row_size
from spidertensor.learner.learner import Learner
from spidertensor.method import Prediction
from spidertensor.service import attributes
from spidertensor.service.bodies import FORECAST, NDJSON, BodyFields, Entries, entries
from spidertensor.service.cells import joined_cells
from spidertensor.service.errors import ServiceError, record
from spidertensor.service.from_stream import MESSAGES, JournaledMessages, unpacked
from spidertensor.service.journal import Row
from spidertensor.service.replies import in_rows
from spidertensor.spider.likelihoods import Likelihood

FORECASTS = "application/x-spider-forecasts"  # in the journal; never accepted from a client
Outcome = bytes | ServiceError
Given = Mapping[str, NDArray[Any]]  # attributes by name


class Request(NamedTuple):
    """A request to learn or to describe nodes, checked as far as possible without the model."""

    entries: Entries
    body: bytes
    media_type: str
    skip: bool = False
    key: str | None = None
    messages: JournaledMessages | None = None  # if it came from a stream
    mode: str | None = None  # of the nodes that it describes (attributes.py); None if it is to learn
    remembered: Remembered | None = None  # forecasts that its rows name, by their places in FORECAST
    unknown: int = 0  # rows that name a forecast which is not known

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(b"%d %s\n" % (self.skip, self.media_type.encode()) + self.body).digest()


def describing(mode: str, columns: Mapping[str, Column], learner: Learner) -> Request:
    """A request for a table that did not come from a client. EntryError if a cell cannot be sent."""
    body = attributes.body_of(mode, columns)
    found = attributes.table(body, NDJSON, learner, mode, len(body))
    whole = attributes.packed(body, NDJSON, mode)
    return Request(found, whole, attributes.ATTRIBUTES, mode=mode)


def with_forecasts(request: Request, found: Remembered | None) -> Request:
    """The request with the forecasts that its rows name. found: for each of its rows"""
    entries = request.entries
    ids = entries.given[FORECAST]
    known = np.zeros(len(ids), bool) if found is None else found.given
    named = np.array([each is not None and each == each for each in ids.tolist()], bool)
    places = np.where(known, np.arange(len(ids)), -1)
    entries = entries._replace(given={**entries.given, FORECAST: places})
    return request._replace(entries=entries, remembered=found, unknown=int((named & ~known).sum()))


def without_forecasts(request: Request) -> tuple[Entries, tuple[Remembered | None, int]]:
    """Its entries without the column of forecasts; and the forecasts, with the number of entries."""
    entries, found = request.entries, None
    if FORECAST in entries.given:
        given = {name: column for name, column in entries.given.items() if name != FORECAST}
        if request.remembered is not None:
            found = request.remembered.at(entries.given[FORECAST])
        entries = entries._replace(given=given)
    return entries, (found, len(entries.rows))


def to_journal(request: Request, sequence: int, cut: int) -> Row:
    """The request as a row of the journal, with the forecasts that it uses: these may be gone at a replay."""
    media_type, body = request.media_type, request.body
    if request.remembered is not None:
        forecast, _, late = request.remembered
        about = {"media_type": media_type, "shape": forecast.numbers.shape, "model": forecast.model}
        numbers = np.column_stack([request.remembered.rows, late]).astype("<f8")
        media_type, body = FORECASTS, orjson.dumps(about) + b"\n" + numbers.tobytes() + body
    return Row(sequence, cut, request.key, media_type, request.skip, body)


def _from_journal(packed: bytes) -> tuple[bytes, str, Remembered]:
    """The inverse: the body, its media type, and the forecasts."""
    line, _, rest = packed.partition(b"\n")
    about = orjson.loads(line)
    n, *of_entry = about["shape"]
    like = Forecast(np.empty((0, *of_entry)), *about["model"])
    end = 8 * n * (row_size(like) + 1)
    numbers = np.frombuffer(rest[:end], "<f8").reshape(n, row_size(like) + 1)
    return rest[end:], about["media_type"], Remembered.of_rows(like, numbers[:, :-1], numbers[:, -1])


def journaled(row: Row, wanted: BodyFields, learner: Learner) -> Request:
    """Rebuild a request from its row in the journal. wanted: by a request to learn"""
    if row.media_type == attributes.ATTRIBUTES:
        body, media_type, mode = attributes.unpacked(row.body)
        found = attributes.table(body, media_type, learner, mode, wanted.max_rows)
        return Request(found, row.body, row.media_type, row.skip, row.key, mode=mode)
    if row.media_type == MESSAGES:
        found, messages = unpacked(row.body, wanted)
        return Request(found, row.body, row.media_type, row.skip, row.key, messages)
    body, media_type, remembered = row.body, row.media_type, None
    if row.media_type == FORECASTS:
        body, media_type, remembered = _from_journal(row.body)
    request = Request(entries(body, media_type, wanted), body, media_type, row.skip, row.key)
    return with_forecasts(request, remembered) if FORECAST in request.entries.given else request


def unrepeated(requests: Sequence[Request]) -> Iterator[list[Request]]:
    """Split before a repeated key, so that its first request is answered before."""
    group: list[Request] = []
    keys: set[str] = set()
    for request in requests:
        if request.key is not None and request.key in keys:
            yield group
            group, keys = [], set()
        group.append(request)
        keys |= set() if request.key is None else {request.key}
    yield group


def in_cuts(requests: Sequence[Request], *, is_new: bool) -> list[Sequence[Request]]:
    """Group waiting requests, each group for one call. A description, and the first to learn, are alone."""
    cuts: list[Sequence[Request]] = []
    for mode, group in groupby(requests, lambda request: request.mode):
        if mode is not None:
            cuts += [[request] for request in group]
        else:
            cuts += first_alone(list(group), is_new=is_new)
            is_new = False
    return cuts


def joined(parts: Sequence[Entries]) -> tuple[list[NDArray[Any]], NDArray[np.float64], Given]:
    """Join the columns of ids, the values and the attributes of several requests."""
    if len(parts) == 1:
        return parts[0].columns, parts[0].values, parts[0].given
    columns = []
    for column in zip(*(part.columns for part in parts), strict=True):
        same = len({each.dtype for each in column}) == 1
        columns.append(np.concatenate(column if same else [each.astype(object) for each in column]))
    names = dict.fromkeys(name for part in parts for name in part.given)
    given = {name: joined_cells([(part.given.get(name), len(part.rows)) for part in parts]) for name in names}
    return columns, np.concatenate([part.values for part in parts]), given


def answer(
    request: Request, predicted: Prediction, likelihood: Likelihood, total: int, notes: list[dict[str, Any]]
) -> bytes:
    """The answer to a request, as JSON.

    predicted: for the good rows, before they were learned
    total:     entries of the model, including these
    """
    found, more = request.entries, {}
    if FORECAST in found.given:
        scored = int((found.given[FORECAST] >= 0).sum())
        more["forecasts"] = {"scored": scored, "unknown": request.unknown}
        if request.unknown:
            rows = f"{request.unknown} row{'s' * (request.unknown > 1)}"
            message = f"{rows} learned without the forecast named, which is not known, or no longer"
            remedy = "remember forecasts for as long as values may take"
            notes = [*notes, {"kind": "forecast", "message": message, "remedy": remedy}]
    columns = {likelihood.mean_name: likelihood.expected(*predicted[:3]).tolist()}
    if likelihood.intervals or likelihood.ordinal:
        columns["std"] = likelihood.std(*predicted).tolist()
    reply = {"learned": len(found.rows), "entries": total, "predictions": in_rows(columns, found)}
    return orjson.dumps(reply | more | {"skipped": skipped(found), "notes": notes})


def skipped(found: Entries) -> list[dict[str, Any]]:
    """The faults of bad rows, without their values, since answers are stored."""
    return [record(each) | {"value": None} for each in found.bad]
