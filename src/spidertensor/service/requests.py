"""Requests to learn, and their answers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from spidertensor.learner.first_batch import first_alone
from spidertensor.learner.learner import Learner
from spidertensor.method import Prediction
from spidertensor.service import attributes
from spidertensor.service.bodies import Entries, Wanted, entries
from spidertensor.service.cells import joined_cells
from spidertensor.service.errors import ServiceError, record
from spidertensor.service.from_stream import MESSAGES, Messages, unpacked
from spidertensor.service.journal import Row
from spidertensor.service.replies import in_rows
from spidertensor.spider.likelihoods import Likelihood

Outcome = bytes | ServiceError
Given = Mapping[str, NDArray[Any]]  # attributes by name


class Request(NamedTuple):
    """A request to learn or to describe nodes, checked as far as possible without the model."""

    entries: Entries
    body: bytes
    media_type: str
    skip: bool = False
    key: str | None = None
    messages: Messages | None = None  # if it came from a stream
    mode: str | None = None  # of the nodes that it describes (attributes.py); None if it is to learn

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(b"%d %s\n" % (self.skip, self.media_type.encode()) + self.body).digest()


def journaled(row: Row, wanted: Wanted, learner: Learner) -> Request:
    """Rebuild a request from its row in the journal. wanted: by a request to learn"""
    if row.media_type == attributes.ATTRIBUTES:
        body, media_type, mode = attributes.unpacked(row.body)
        found = attributes.table(body, media_type, learner, mode, wanted.max_rows)
        return Request(found, row.body, row.media_type, row.skip, row.key, mode=mode)
    if row.media_type == MESSAGES:
        found, messages = unpacked(row.body, wanted)
        return Request(found, row.body, row.media_type, row.skip, row.key, messages)
    found = entries(row.body, row.media_type, wanted)
    return Request(found, row.body, row.media_type, row.skip, row.key)


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
    found: Entries, predicted: Prediction, likelihood: Likelihood, total: int, notes: list[dict[str, Any]]
) -> bytes:
    """The answer to a request, as JSON.

    predicted: for the good rows, before they were learned
    total:     entries of the model, including these
    """
    columns = {likelihood.mean_name: likelihood.expected(*predicted[:2]).tolist()}
    if likelihood.intervals:
        columns["std"] = likelihood.std(*predicted).tolist()
    reply = {"learned": len(found.rows), "entries": total, "predictions": in_rows(columns, found)}
    return orjson.dumps(reply | {"skipped": skipped(found), "notes": notes})


def skipped(found: Entries) -> list[dict[str, Any]]:
    """The faults of bad rows, without their values, since answers are stored."""
    return [record(each) | {"value": None} for each in found.bad]
