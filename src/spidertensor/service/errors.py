"""What goes wrong with a request: a status and the parts of a Fault, always told in the same JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from spidertensor.faults import Fault
from spidertensor.learner.remedies import for_service

TOLD = 100  # errors of one request that are listed; the rest is only counted
SHOWN = 200  # characters of a value that is told


class ServiceError(Fault, Exception):
    """Answered with `status`. others: further errors of the same request; retry: seconds to wait."""

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
        told = {"error": record(faults[0]), "errors": [record(each) for each in faults[:TOLD]]}
        return told | {"count": len(faults)}


def record(fault: Fault) -> dict[str, Any]:
    """The one shape of an error. row: counted from 0 in the rows of the request."""
    return {
        "kind": fault.kind or "input",
        "message": f"value {fault.value:g} {fault.reason}" if fault.of_value else fault.reason,
        "row": fault.row,
        "column": fault.column,
        "value": shown(fault.value),
        "remedy": for_service(fault),
    }


def as_notes(found: Sequence[Warning]) -> list[dict[str, Any]]:
    """What the library has warned of, as an answer has it."""
    return [
        {"kind": each.kind, "message": each.text(""), "remedy": for_service(each)}
        if isinstance(each, Fault)
        else {"kind": "", "message": str(each), "remedy": ""}
        for each in found
    ]


def shown(value: Any) -> Any:
    """A value of a request as JSON can hold it, cut if it is long."""
    if value is None or isinstance(value, bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, int) and abs(value) < 2**53:
        return value
    try:
        text = value if isinstance(value, str) else str(value)
    except ValueError:  # an int of thousands of digits
        text = f"<{type(value).__name__}>"
    return text[:SHOWN].encode(errors="replace").decode()
