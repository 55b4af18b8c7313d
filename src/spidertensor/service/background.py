"""Work in a thread of its own, which another thread looks after."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Background(threading.Thread):
    """A function that is called in a thread of its own.

    outcome: what it returned, or its error; only once it `has_ended`
    """

    def __init__(self, name: str, work: Callable[[], Any], on_end: Callable[[], None] | None = None) -> None:
        super().__init__(name=name)
        self._work, self._on_end = work, on_end
        self.outcome: Any = None
        self.has_ended = False
        try:
            self.start()
        except RuntimeError:  # the system allows no more threads
            self.run()

    def run(self) -> None:
        try:
            self.outcome = self._work()
        except Exception as error:
            self.outcome = error
        self.has_ended = True
        if self._on_end is not None:
            self._on_end()
