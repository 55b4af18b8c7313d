"""Requests that describe nodes: a table of attributes of one mode, one row per node.

In the journal such a request is in order with those to learn: a line about it, then its body as sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from spidertensor.estimator.inputs import Column
from spidertensor.faults import EntryError, Fault
from spidertensor.learner.attributes import attribute_columns, refused
from spidertensor.learner.learner import Learner
from spidertensor.service.bodies import BodyFields, Entries, entries, short
from spidertensor.service.errors import ServiceError
from spidertensor.sources.attributes import typed_texts

ATTRIBUTES = "application/x-spider-attributes"  # never accepted from a client
_REMEDY = "send a value of the column's kind, or null"


def check_mode(learner: Learner, mode: str) -> list[str]:
    """The attributes of the nodes of a mode; ServiceError if they cannot be described."""
    if learner.estimator._schema is None:
        reason = f"{learner.path.name} has no attributes"
        remedy = "make a model whose modes have columns, such as user+age, and serve it"
        raise ServiceError(409, "no attributes", reason, remedy=remedy)
    remedy = f"the modes with ids are {', '.join(learner.id_columns)}"
    if mode not in learner.modes:
        raise ServiceError(404, "mode", f"no mode {mode!r:.80}", remedy=remedy)
    if mode not in learner.id_columns:
        reason = f"{mode} describes entries, not nodes: it has no ids"
        remedy = f"send its columns with each row to learn or predict; {remedy}"
        raise ServiceError(422, "mode", reason, remedy=remedy)
    if names := attribute_columns(learner.estimator, mode):
        return names
    raise ServiceError(422, "mode", f"the nodes of {mode} have no attributes")


def table(body: bytes, media_type: str, learner: Learner, mode: str, max_rows: int) -> Entries:
    """Parse a table of attributes. ServiceError if anything is wrong with it."""
    names = check_mode(learner, mode)
    found = entries(
        body, media_type, BodyFields([mode], None, learner.estimator.likelihood_, max_rows, attributes=names)
    )
    if found.bad:
        first = found.bad[0]
        if len(found.bad) == found.n_rows and all(each.kind == "missing" for each in found.bad):
            reason, remedy = f"no column {mode!r}", "name each node by its id in this column"
            raise ServiceError(422, "column", reason, column=mode, remedy=remedy)
        raise ServiceError(422, first.kind, first.reason, others=found.bad)
    if found.n_rows and not found.given:
        remedy = f"the attributes of {mode} are {', '.join(names)}"
        raise ServiceError(422, "column", f"no attribute of {mode}", remedy=remedy)
    return found


def bad_cells(learner: Learner, found: Entries, error: EntryError) -> list[Fault]:
    """One fault for each row whose attributes the model refuses, as it did with `error`."""
    if error.column not in found.given:
        return []
    faults: list[Fault] = []
    for place, each in refused(learner.estimator, found.given, len(found.rows)).items():
        value = short(_plain(found.given[str(each.column)][place]))
        faults.append(each.but(row=int(found.rows[place]), value=value, remedy=_REMEDY))
    return faults


def with_types(learner: Learner, found: Entries) -> Entries:
    """Entries whose attributes are texts with types instead, as the model's columns have them."""
    given, wrong = typed_texts(found.given, learner.kinds)
    faults = [
        EntryError(reason, int(found.rows[place]), kind="attribute", remedy=_REMEDY)
        for place, reason in wrong.items()
    ]
    return found._replace(given=given).without(list(wrong), faults) if wrong else found._replace(given=given)


def body_of(mode: str, columns: Mapping[str, Column]) -> bytes:
    """A table that was read elsewhere, as the body of a request, a line for each node."""
    lines = []
    for row in zip(*map(_cells, columns.values()), strict=True):
        try:
            lines.append(orjson.dumps(dict(zip(columns, row, strict=True))))
        except TypeError:
            reason = "a cell that JSON does not have, such as bytes"
            raise EntryError(reason, len(lines), kind="attribute", remedy="write it as text") from None
    return b"\n".join(lines)


def _cells(column: Any) -> list[Any]:
    if isinstance(column, np.ndarray) and column.dtype.kind == "M" and column.dtype != "M8[D]":
        return column.astype("M8[us]").tolist()  # of finer ones Python makes numbers
    return column.tolist() if isinstance(column, np.ndarray) else list(column)


def packed(body: bytes, media_type: str, mode: str) -> bytes:
    """Encode a request for the journal."""
    return json.dumps({"mode": mode, "media_type": media_type}).encode() + b"\n" + body


def unpacked(packed: bytes) -> tuple[bytes, str, str]:
    """The body, its media type and the mode."""
    line, _, body = packed.partition(b"\n")
    about: dict[str, Any] = json.loads(line)
    return body, about["media_type"], about["mode"]


def _plain(cell: Any) -> Any:
    return cell.item() if isinstance(cell, np.generic) else cell
