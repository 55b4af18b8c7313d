"""What a command has to tell beside its result: a line each on standard error, and a list for --json."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from spidertensor.cli import output
from spidertensor.cli.errors import worded
from spidertensor.faults import Fault
from spidertensor.learner.remedies import for_command
from spidertensor.learner.warned import warned


class Notes:
    """The notes of one run. Each kind is told once: an endless stream must not fill a log."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, Any], dict[str, str]] = {}
        self._others: set[tuple[str, str]] = set()  # warnings of other packages

    def tell(self, note: Fault) -> None:
        key = (note.kind, note.column)
        if key not in self._told:
            text = worded(note)
            self._told[key] = {"kind": note.kind, "text": text, "remedy": for_command(note)}
            output.note(f"note: {text}")

    @contextmanager
    def of_warnings(self) -> Iterator[None]:
        """Tells what the library warns of; nothing if it raises an error in the end."""
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
        return list(self._told.values())
