"""Signals such as Ctrl-C that wait until what must happen together has happened."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# signals that Python programs handle by raising an exception
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signal, name)]


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Delay signals such as Ctrl-C to the end of the block. Only the main thread receives any."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread() or not handlers:
        yield
        return
    received: list[Any] = []
    for number in handlers:
        signal.signal(number, lambda *args: received.append(args))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in received[:1]:
            handlers[number](number, frame)
