"""Decorator for methods that learn: one call at a time, and no sample_weight."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from spidertensor.faults import EntryError

F = TypeVar("F", bound=Callable[..., Any])


def learns(method: F) -> F:
    """`threads.locked` for a method that learns; also explains why sample_weight is not supported.

    sample_weight is not in the method's signature, since scikit-learn would then assume support.
    """

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs and kwargs.pop("sample_weight", None) is not None:
            raise EntryError(
                "sample_weight is not supported: an entry is learned once, as one observation",
                kind="sample_weight",
                remedy="pass an entry twice to count it twice, and leave out what should not count",
            )
        with self._lock:
            return method(self, *args, **kwargs)

    return cast(F, call)
