"""Answers in JSON: everything but the dashboard, the metrics and the model file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from spidertensor.service.bodies import Entries
from spidertensor.service.errors import ServiceError
from spidertensor.service.exact_json import encoded, sendable


def reply(content: Any, status: int = 200) -> Response:
    body = content if isinstance(content, bytes) else encoded(content)
    return Response(body, status, media_type="application/json")


def refusal(error: ServiceError) -> Response:
    answer = reply(error.body(), error.status)
    if error.retry is not None:
        answer.headers["Retry-After"] = str(error.retry)
    if error.status == 401:
        answer.headers["WWW-Authenticate"] = 'Bearer realm="spider", Basic realm="spider", charset="UTF-8"'
    return answer


def in_rows(columns: Mapping[str, Sequence[Any]], found: Entries) -> list[dict[str, Any] | None]:
    """Turn columns of the good rows into one object per row of the request; None for a bad row."""
    objects: list[dict[str, Any] | None] = [
        dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
    ]
    if not found.bad:
        return objects
    every: list[dict[str, Any] | None] = [None] * found.n_rows
    for row, each in zip(found.rows.tolist(), objects, strict=True):
        every[row] = each
    return every


def id_of(raw: Any) -> Any:
    """An id as JSON; as a string if JSON has no type for it, such as bytes."""
    if isinstance(raw, bool | float) or (isinstance(raw, int) and -(2**63) <= raw < 2**64):
        return raw
    if isinstance(raw, int):
        return hex(raw)  # str() refuses thousands of digits
    return sendable(raw if isinstance(raw, str) else str(raw))
