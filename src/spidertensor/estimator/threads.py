"""A lock per estimator, so that threads can share it: one call at a time reads or changes it.

Compiled kernels release Python's global lock and learning works in place, so without this lock a prediction
or a save could see a half-updated state.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any, NoReturn, Self, TypeVar, cast
from weakref import WeakSet

F = TypeVar("F", bound=Callable[..., Any])

_all: WeakSet[Shared] = WeakSet()


class Shared:
    """An object with its own lock; copies, clones and pickles get a new one."""

    _lock: Any

    def __new__(cls, *_: Any, **__: Any) -> Self:
        # Not in __init__: unpickling does not call it, and a subclass's __init__ may not either.
        self = super().__new__(cls)
        self._lock = RLock()
        _all.add(self)
        return self


class _HalfUpdated:
    """Replaces a lock that another thread held when the process was forked, since nobody will release it."""

    def __enter__(self) -> NoReturn:
        raise RuntimeError(
            "this process was forked while another thread was using the model, which may be half updated "
            "here: load it from a file, or start processes by 'spawn' or 'forkserver'"
        )

    def __exit__(self, *_: object) -> None: ...


def _after_fork() -> None:
    for shared in _all:
        if shared._lock.acquire(blocking=False):
            shared._lock.release()
        else:
            shared._lock = _HalfUpdated()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def locked(method: F) -> F:
    """Decorator for methods of a Shared object: hold its lock. Costs half a microsecond per call."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return cast(F, call)
