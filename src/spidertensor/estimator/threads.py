"""An estimator may be shared by threads: one call at a time looks at it or changes it.

Compiled kernels release Python's global lock, and learning works in place, so without a lock of its own a
prediction or a save would see a state that is half of before and half of after.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any, Self, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


class Shared:
    """Every object has a lock of its own; a copy, a clone or a pickle gets a new one."""

    _lock: Any

    def __new__(cls, *_: Any, **__: Any) -> Self:
        # Not in __init__: a pickle does not call it, nor need the __init__ of a subclass.
        self = super().__new__(cls)
        self._lock = RLock()
        return self


def locked(method: F) -> F:
    """The method of a Shared object, called while no other thread is in another; half a microsecond."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return cast(F, call)
