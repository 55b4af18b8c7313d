"""A stop that loses nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """By a signal, while waiting."""


class Signals:
    """SIGINT and SIGTERM: at once while waiting for input, else after the chunk at hand.

    A second one acts as it always does: the model file is never half written.
    """

    def __init__(self) -> None:
        self.caught: int | None = None
        self.waiting = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup, or a job in the background of a script
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: Any) -> None:
        self.caught = number
        signal.signal(number, self._before[number])
        if self.waiting:
            raise Stopped

    def next(self, chunks: Iterator[T]) -> T | None:
        """The next chunk, with a wait that a signal ends; None after the last."""
        self.waiting = True
        try:
            return next(chunks, None)
        finally:
            self.waiting = False
