"""Errors of requests: an HTTP status and the parts of a Fault, always in the same JSON shape."""

from __future__ import annotations

import errno
import math
from collections.abc import Sequence
from typing import Any

from spidertensor.faults import Fault
from spidertensor.learner.remedies import for_service
from spidertensor.service.exact_json import sendable

MAX_LISTED = 100  # errors listed per request; the rest are only counted
MAX_VALUE_CHARS = 200  # of a value in an error


class ServiceError(Fault, Exception):
    """An error answered with `status`. others: all errors of the request, if several; retry: seconds"""

    def __init__(
        self,
        status: int,
        kind: str,
        reason: str,
        *,
        retry: int | None = None,
        others: Sequence[Fault] = (),
        **parts: Any,
    ) -> None:
        super().__init__(reason, kind=kind, **parts)
        self.status, self.retry, self.others = status, retry, others

    def body(self) -> dict[str, Any]:
        faults = self.others or [self]
        return {
            "error": record(faults[0]),
            "errors": [record(each) for each in faults[:MAX_LISTED]],
            "count": len(faults),
        }


def record(fault: Fault) -> dict[str, Any]:
    """A fault as JSON. row: counted from 0 within the request"""
    return {
        "kind": fault.kind or "input",
        "message": f"value {fault.value:g} {fault.reason}" if fault.of_value else fault.reason,
        "row": fault.row,
        "column": fault.column,
        "value": shown(fault.value),
        "remedy": for_service(fault),
    }


def as_notes(found: Sequence[Warning]) -> list[dict[str, Any]]:
    """Warnings of the library as the notes of an answer."""
    return [
        {"kind": each.kind, "message": each.text(""), "remedy": for_service(each)}
        if isinstance(each, Fault)
        else {"kind": "", "message": str(each), "remedy": ""}
        for each in found
    ]


def is_full(error: Exception) -> bool:
    """Whether a file could not be written because there is no room for it."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    name = getattr(error, "sqlite_errorname", "")
    return name in ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE")


def shown(value: Any) -> Any:
    """A value as JSON, truncated if long."""
    if value is None or isinstance(value, bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, int) and abs(value) < 2**53:
        return value
    try:
        text = value if isinstance(value, str) else str(value)
    except ValueError:  # an int of thousands of digits
        text = f"<{type(value).__name__}>"
    return sendable(text[:MAX_VALUE_CHARS])
