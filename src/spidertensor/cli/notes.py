"""PrintedNotes next to a command's result: lines on standard error, and a list for --json."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from spidertensor.cli import output
from spidertensor.cli.errors import worded
from spidertensor.faults import Fault
from spidertensor.learner.remedies import for_command
from spidertensor.learner.warned import warned


class PrintedNotes:
    """The notes of one run. Each kind is printed once, so that an endless stream does not fill a log."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, Any], dict[str, str]] = {}
        self._others: set[tuple[str, str]] = set()  # (class, text) of warnings of other packages

    def tell(self, note: Fault) -> None:
        key = (note.kind, note.column)
        if key not in self._records:
            text = worded(note)
            self._records[key] = {"kind": note.kind, "text": text, "remedy": for_command(note)}
            output.note(f"note: {text}")

    @contextmanager
    def of_warnings(self) -> Iterator[None]:
        """Print warnings of the library as notes, unless the block raises."""
        with warned() as found:
            yield
        self.tell_warnings(found)

    def tell_warnings(self, found: Sequence[Warning]) -> None:
        for each in found:
            if isinstance(each, Fault):
                self.tell(each)
            elif (key := (type(each).__name__, str(each))) not in self._others:
                self._others.add(key)
                output.note(f"note: {each}")

    @property
    def records(self) -> list[dict[str, str]]:
        return list(self._records.values())
