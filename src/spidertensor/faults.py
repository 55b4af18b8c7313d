"""Structured descriptions of input errors and warnings, worded where they are shown.

In Python, `str(error)` names parameters in the remedy. The command uses the same parts and names its own
options instead (`learner/remedies.py`).
"""

from __future__ import annotations

import copy
from typing import Any, Self


class Fault:
    """Mixed into an exception or a warning.

    reason: what is wrong, in words valid for both Python and the command line
    row:    zero-based row of the call; None if not about a single row
    kind:   short machine-readable name; "" if not needed
    column: name of the column, or number of the mode if columns have no names
    value:  the bad value; with `of_value`, the reason continues the sentence "value 3 ..."
    remedy: what to do about it, in Python terms; "" if obvious
    rows:   all rows of the call with the same fault, if known
    """

    def __init__(
        self,
        reason: str,
        row: int | None = None,
        *,
        kind: str = "",
        column: str | int | None = None,
        value: Any = None,
        remedy: str = "",
        rows: tuple[int, ...] = (),
        of_value: bool = False,
    ) -> None:
        # The other base class is an exception, which is pickled with these arguments.
        super().__init__(reason, row)  # pyright: ignore[reportCallIssue]
        self.reason, self.row, self.kind = reason, row, kind
        self.column, self.value, self.remedy = column, value, remedy
        self.rows, self.of_value = rows, of_value

    def text(self, remedy: str | None = None) -> str:
        """The whole message. remedy: replaces the Python remedy"""
        place = "" if self.row is None else f"row {self.row}: "
        if self.column is not None:
            place += f"mode {self.column}: " if isinstance(self.column, int) else f"column {self.column}: "
        if self.of_value:
            place += f"value {self.value:g} "
        remedy = self.remedy if remedy is None else remedy
        return f"{place}{self.reason}" + (f": {remedy}" if remedy else "")

    def but(self, **changes: Any) -> Self:
        """A copy with some parts changed."""
        twin = copy.copy(self)
        vars(twin).update(changes)
        return twin

    def __str__(self) -> str:
        return self.text()


class EntryError(Fault, ValueError):
    """Entries that cannot be learned or predicted. Nothing was changed. See Fault for the attributes."""


class SpiderWarning(Fault, UserWarning):
    """Something that works, but may not be intended. See Fault for the attributes."""
