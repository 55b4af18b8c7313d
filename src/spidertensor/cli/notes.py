"""What a command has to tell beside its result: a line each on standard error, and a list for --json."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spidertensor.cli import output
from spidertensor.cli.errors import REMEDIES, told
from spidertensor.faults import Fault


class Notes:
    """The notes of one run. Each kind is told once: an endless stream must not fill a log."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, Any], dict[str, str]] = {}
        self._others: set[tuple[str, str]] = set()  # warnings of other packages

    def tell(self, note: Fault) -> None:
        key = (note.kind, note.column)
        if key not in self._told:
            remedy = REMEDIES.get(note.kind, note.remedy)
            self._told[key] = {"kind": note.kind, "text": told(note), "remedy": remedy}
            output.note(f"note: {told(note)}")

    @contextmanager
    def of_warnings(self) -> Iterator[None]:
        """Tells what the library warns of; nothing if it raises an error in the end."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        for each in caught:
            if isinstance(each.message, Fault):
                self.tell(each.message)
            elif (key := (each.category.__name__, str(each.message))) not in self._others:
                self._others.add(key)
                output.note(f"note: {each.message}")

    @property
    def records(self) -> list[dict[str, str]]:
        return list(self._told.values())
