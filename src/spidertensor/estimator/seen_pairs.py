"""Which nodes of one mode were seen with which of another, exactly, in 8 bytes a pair.

A pair is one number, first * 2**32 + second. They are kept sorted; new ones wait in a short list beside them
until there are enough to be merged, so that a pair costs a copy of all only now and then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_HALF = np.uint64(32)
_PIECES = 64
_LEAST = 4096  # new pairs to be merged at once; more where there are many, for which merging takes longer


class SeenPairs:
    def __init__(self, pairs: NDArray[np.uint64] | None = None) -> None:
        """pairs: sorted, each once"""
        self._sorted = np.empty(0, np.uint64) if pairs is None else pairs
        self._new: list[NDArray[np.uint64]] = []
        self._waiting = 0

    def add(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> None:
        pairs = (first.astype(np.uint64) << _HALF) | second.astype(np.uint64)
        self._new.append(pairs)
        self._waiting += len(pairs)
        if len(self._new) > _PIECES:  # of single events; to look at each of them would take long
            self._new = [np.unique(np.concatenate(self._new))]
            self._waiting = len(self._new[0])
        if self._waiting > max(_LEAST, len(self._sorted) // 8):
            self.pairs()

    def pairs(self) -> NDArray[np.uint64]:
        """All pairs, sorted, each once."""
        if self._new:
            self._sorted = np.union1d(self._sorted, np.concatenate(self._new))
            self._new, self._waiting = [], 0
        return self._sorted

    def with_first(self, first: int) -> NDArray[np.int64]:
        """The second nodes that were seen with this one, sorted."""
        low, high = np.uint64(first) << _HALF, np.uint64(first + 1) << _HALF
        begin, end = np.searchsorted(self._sorted, np.array([low, high]))
        found = [self._sorted[begin:end], *(new[(new >= low) & (new < high)] for new in self._new)]
        return np.unique(np.concatenate(found) & np.uint64(2**32 - 1)).astype(np.int64)

    def without(self, numbers: NDArray[np.bool_], *, of_first: bool) -> SeenPairs:
        """Those of the nodes to keep, which move up. numbers: (nodes,) whether to keep each of one mode."""
        first, second = self.pairs() >> _HALF, self.pairs() & np.uint64(2**32 - 1)
        moved = np.cumsum(numbers) - 1
        own = (first if of_first else second).astype(np.int64)
        kept = numbers[own]
        new = moved[own[kept]].astype(np.uint64)
        if of_first:
            return SeenPairs((new << _HALF) | second[kept])
        return SeenPairs((first[kept] << _HALF) | new)
