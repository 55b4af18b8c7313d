"""What goes wrong with a request: a status and the parts of a Fault, always told in the same JSON."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from spidertensor.faults import Fault

TOLD = 100  # errors of one request that are listed; the rest is only counted
SHOWN = 200  # characters of a value that is told

# By the kind of a fault of the library, whose remedies are in Python's terms.
REMEDIES = {
    "too far": "leave it out, or start the model with a fitting --scaling SHIFT,SCALE",
    "unclipped": "leave it out, or start the model with a fitting --scaling SHIFT,SCALE",
    "clipped": "look at the values",
    "refused": "look at the values, or start the model with a fitting --scaling SHIFT,SCALE",
    "no scale": "if that is wrong, start the model with --scaling SHIFT,SCALE",
    "steady": "compare with a model of continuous values, without --counts",
    "0 or 1": "start the model with --binary",
    "id": "send a number, a text or a truth value",
}


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
        "remedy": REMEDIES.get(fault.kind, fault.remedy),
    }


@contextmanager
def noted() -> Iterator[list[dict[str, Any]]]:
    """What the library warns of in the block, as notes of an answer; filled at its end."""
    notes: list[dict[str, Any]] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield notes
    for each in caught:
        message = each.message
        if isinstance(message, Fault):
            remedy = REMEDIES.get(message.kind, message.remedy)
            notes.append({"kind": message.kind, "message": message.text(""), "remedy": remedy})
        else:
            notes.append({"kind": "", "message": str(message), "remedy": ""})


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
