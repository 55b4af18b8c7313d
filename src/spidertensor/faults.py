"""What is wrong with an input, in parts, so that whoever shows it can word it.

The library shows a fault in Python's terms: `str(error)`. The command takes the same parts and names its own
options as the remedy (`learner/remedies.py`). Nothing edits the text of another module.
"""

from __future__ import annotations

import copy
from typing import Any, Self


class Fault:
    """Mixed into an exception or a warning.

    reason: what is wrong, in words that hold in Python and on the command line
    row:    the zero-based row of the call that is wrong; None if it is not about one row
    kind:   a short name of what is wrong, for programs; "" if nobody has to tell it apart
    column: the name of the column, or the number of the mode if columns have no names
    value:  what stands there; with `of_value` the reason continues the sentence "value 3 ..."
    remedy: what to do about it, in Python's terms; "" if that is obvious
    rows:   all rows of the call that are wrong in the same way, where that is known
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
        # The other base is an exception, which is pickled with these arguments.
        super().__init__(reason, row)  # pyright: ignore[reportCallIssue]
        self.reason, self.row, self.kind = reason, row, kind
        self.column, self.value, self.remedy = column, value, remedy
        self.rows, self.of_value = rows, of_value

    def text(self, remedy: str | None = None) -> str:
        """The whole message; `remedy` takes the place of the one in Python's terms."""
        place = "" if self.row is None else f"row {self.row}: "
        if self.column is not None:
            place += f"mode {self.column}: " if isinstance(self.column, int) else f"column {self.column}: "
        if self.of_value:
            place += f"value {self.value:g} "
        remedy = self.remedy if remedy is None else remedy
        return f"{place}{self.reason}" + (f": {remedy}" if remedy else "")

    def but(self, **changes: Any) -> Self:
        """The same fault with other parts."""
        twin = copy.copy(self)
        vars(twin).update(changes)
        return twin

    def __str__(self) -> str:
        return self.text()


class EntryError(Fault, ValueError):
    """Entries that cannot be learned or predicted; see Fault for its parts. Nothing was changed."""


class SpiderWarning(Fault, UserWarning):
    """Something that works, but perhaps not as meant; see Fault for its parts."""
