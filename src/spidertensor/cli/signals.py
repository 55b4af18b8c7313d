"""Handling of SIGINT and SIGTERM: stop without losing anything."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """A signal arrived."""


class Signals:
    """Stop at once while waiting for input, else after the current chunk.

    A second signal has its usual effect; model files are never half written.
    """

    def __init__(self) -> None:
        self.caught: int | None = None
        self.waiting = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:  # ignored by nohup, or for a background job
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
        """The next chunk, or None after the last; a signal ends the wait."""
        self.waiting = True
        try:
            if self.caught:  # caught while saving; do not wait for input that may never come
                raise Stopped
            return next(chunks, None)
        finally:
            self.waiting = False
