"""The set of pairs of nodes of two modes that were seen together, exact, at 8 bytes per pair.

A pair is one number, first * 2**32 + second, in a sorted array. New pairs are collected in a short list and
merged when there are enough of them, so that the array is rarely copied.

While nothing is added, threads may read: merging replaces array and list together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_HALF = np.uint64(32)
_MOST_PIECES = 64  # arrays of new pairs before they are joined
_FEWEST_MERGED = 4096  # new pairs to merge at once; more if the sorted array is long


class SeenPairs:
    """A set of pairs (node of the first mode, node of the second mode)."""

    def __init__(self, pairs: NDArray[np.uint64] | None = None) -> None:
        """pairs: sorted, without duplicates"""
        self._known: tuple[NDArray[np.uint64], list[NDArray[np.uint64]]] = (
            np.empty(0, np.uint64) if pairs is None else pairs,
            [],  # those that are to be merged
        )
        self._waiting = 0  # how many they are

    def add(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> None:
        pairs = (first.astype(np.uint64) << _HALF) | second.astype(np.uint64)
        merged, new = self._known
        new.append(pairs)
        self._waiting += len(pairs)
        if len(new) > _MOST_PIECES:  # single events; searching many small arrays is slow
            new[:] = [np.unique(np.concatenate(new))]
            self._waiting = len(new[0])
        if self._waiting > max(_FEWEST_MERGED, len(merged) // 8):
            self.pairs()

    def pairs(self) -> NDArray[np.uint64]:
        """All pairs, sorted, without duplicates."""
        merged, new = self._known
        if new:
            merged = np.union1d(merged, np.concatenate(new))
            self._known, self._waiting = (merged, []), 0
        return merged

    def with_first(self, first: int) -> NDArray[np.int64]:
        """The second nodes seen with this first node, sorted."""
        low, high = np.uint64(first) << _HALF, np.uint64(first + 1) << _HALF
        merged, new = self._known
        begin, end = np.searchsorted(merged, np.array([low, high]))
        found = [merged[begin:end], *(each[(each >= low) & (each < high)] for each in new)]
        return np.unique(np.concatenate(found) & np.uint64(2**32 - 1)).astype(np.int64)

    def with_second(self, second: int) -> NDArray[np.int64]:
        """The first nodes seen with this second node, sorted."""
        pairs = self.pairs()
        return (pairs[pairs & np.uint64(2**32 - 1) == np.uint64(second)] >> _HALF).astype(np.int64)

    def without(self, numbers: NDArray[np.bool_], *, of_first: bool) -> SeenPairs:
        """The pairs of nodes to keep, renumbered. numbers: (nodes,) whether to keep each node of a mode"""
        first, second = self.pairs() >> _HALF, self.pairs() & np.uint64(2**32 - 1)
        moved = np.cumsum(numbers) - 1
        own = (first if of_first else second).astype(np.int64)
        kept = numbers[own]
        new = moved[own[kept]].astype(np.uint64)
        if of_first:
            return SeenPairs((new << _HALF) | second[kept])
        return SeenPairs((first[kept] << _HALF) | new)
