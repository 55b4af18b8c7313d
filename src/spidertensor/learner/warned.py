"""Warnings as values, so that a command can print them and a service can put them into an answer."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def warned() -> Iterator[list[Warning]]:
    """Collect the warnings of the block; the list is filled at its end, and stays empty if it raises."""
    found: list[Warning] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    found += [each.message for each in caught if isinstance(each.message, Warning)]
