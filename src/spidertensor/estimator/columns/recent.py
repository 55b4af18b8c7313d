"""Recent: the last n nodes of another mode that a node occurred with, before the entry.

Each counts 1 / sqrt(length); duplicates are merged. The table has one row per node of the other mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.cells import Elements, with_spare
from spidertensor.spider.rings import read_and_push

_NO_PUSH = np.empty(0, np.int64)


class RecentState:
    """A ring of the last `size` nodes of mode `other` for each node of mode `own`."""

    def __init__(self, own: int, other: int, size: int) -> None:
        self.own, self.other, self.size, self.n_rows = own, other, size, 0
        # Zeros take no memory before they are used; `_length` says which slots are.
        self._ring, self._age = np.zeros((0, size), np.int32), np.zeros((0, size), np.uint8)
        self._generation = np.zeros(0, np.uint8)
        self._first, self._length = np.zeros(0, np.int32), np.zeros(0, np.int32)

    @property
    def n_rings(self) -> int:
        """Number of the last node with a filled ring, plus 1."""
        filled = np.flatnonzero(self._length)
        return int(filled[-1]) + 1 if len(filled) else 0

    def learn(self, own: NDArray[np.int64], other: NDArray[np.int64]) -> Elements:
        """The bags of the entries, each as of before it; then its node of the other mode is the latest."""
        if not len(own):
            return self._run(own, _NO_PUSH)
        self._grow(int(own.max()) + 1)
        self._know(int(other.max()) + 1)
        return self._run(own, other.copy())

    def read(self, own: NDArray[np.int64]) -> Elements:
        return self._run(own, _NO_PUSH)

    def stated(self, other: NDArray[np.int64], n: int) -> Elements:
        """The bags of n entries of somebody whose latest nodes of the other mode are these; unknown ones, -1,
        are left out."""
        row = other[(other >= 0) & (other < self.n_rows)][-self.size :]
        weight = np.full(len(row) * n, 1 / np.sqrt(max(len(row), 1)), np.float32)
        return Elements(np.full(n, len(row)), np.tile(row, n), weight)

    def _run(self, own: NDArray[np.int64], other: NDArray[np.int64]) -> Elements:
        own = own.copy()  # contiguous, so that one compilation serves all
        known = own[(own >= 0) & (own < len(self._length))]
        room = self._room(known) if len(other) else int(self._length[known].sum())
        count, row = np.empty(len(own), np.int64), np.empty(room, np.int64)
        weight = np.empty(room, np.float32)
        place = np.full(self.n_rows if self.n_rows < room else 0, -1, np.int64)
        used = read_and_push(*self._arrays(), own, other, place, count, row, weight)
        return Elements(count, row[:used], weight[:used])

    def _room(self, own: NDArray[np.int64]) -> int:
        """The most elements possible: rings grow by one with each entry of their node."""
        order = np.argsort(own, kind="stable")
        ranks = np.arange(len(own))
        new = np.concatenate([[True], own[order[1:]] != own[order[:-1]]])
        before = ranks - np.maximum.accumulate(np.where(new, ranks, 0))
        return int(np.minimum(self._length[own[order]] + before, self.size).sum())

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return self._ring, self._age, self._first, self._length, self._generation

    def _know(self, n_rows: int) -> None:
        """Make room for nodes of the other mode."""
        if n_rows > self.n_rows:
            self._generation, self.n_rows = with_spare(self._generation, n_rows), n_rows

    def keep_own(self, keep: NDArray[np.bool_]) -> None:
        """Nodes with rings were removed."""
        own = np.flatnonzero(keep[: len(self._length)])  # rings have spare room beyond the nodes
        self._ring, self._age = self._ring[own], self._age[own]
        self._first, self._length = self._first[own], self._length[own]

    def keep_other(self, keep: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Nodes in the rings were removed. Return which rows of the table stay, in order."""
        rows = keep[: self.n_rows]
        if self.n_rows:
            self._void()
            moved = np.where(rows, np.cumsum(rows) - 1, -1).astype(np.int32)
            self._ring = np.where(self._ring >= 0, moved[self._ring], np.int32(-1))
        self.n_rows, self._generation = int(rows.sum()), self._generation[: self.n_rows][rows]
        return rows

    def clear_own(self, nodes: NDArray[np.int64]) -> None:
        self._length[nodes[nodes < len(self._length)]] = 0

    def clear_other(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Nodes in the rings now belong to other ids. Return the rows of the table to start afresh."""
        nodes = np.unique(nodes[nodes < self.n_rows])
        if len(nodes) and self._generation[nodes].max() == np.iinfo(np.uint8).max:
            self._void()  # before the count begins again
        self._generation[nodes] += 1
        return nodes

    def _void(self) -> None:
        """Mark all void slots with -1, and count generations from 0 again."""
        known = self._ring >= 0
        self._ring[known & (self._age != self._generation[np.where(known, self._ring, 0)])] = -1
        self._age[:], self._generation[:] = 0, 0

    def _grow(self, n: int) -> None:
        room = len(self._length)
        if n > room:
            more = max(n, room * 3 // 2)
            for name in ("_ring", "_age", "_first", "_length"):
                old = getattr(self, name)
                grown = np.zeros((more, *old.shape[1:]), old.dtype)
                grown[:room] = old
                setattr(self, name, grown)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The filled slots of all rings, oldest first, and how many each node has."""
        n = self.n_rings
        slots = (self._first[:n, None] + np.arange(self.size)) % self.size
        inside = np.arange(self.size) < self._length[:n, None]
        nodes, age = (np.take_along_axis(a[:n], slots, axis=1)[inside] for a in (self._ring, self._age))
        if self.n_rows:
            nodes[age != self._generation[nodes]] = -1  # void; what is -1 already stays so
        return {"length": self._length[:n].copy(), "nodes": nodes, "rows": np.array(self.n_rows, np.int64)}

    def read_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        if arrays.keys() != {"length", "nodes", "rows"}:
            raise ValueError(f"unknown arrays {sorted(arrays)!s:.200}")
        length, nodes, rows = (arrays[name] for name in ("length", "nodes", "rows"))
        typed = (length.dtype, nodes.dtype, rows.dtype) == (np.int32, np.int32, np.int64)
        if not typed or (length.ndim, nodes.ndim, rows.ndim) != (1, 1, 0):
            raise ValueError("the rings are not rings")
        if (length < 0).any() or (length > self.size).any() or length.sum(dtype=np.int64) != len(nodes):
            raise ValueError("the rings do not match their lengths")
        if rows < 0 or (nodes < -1).any() or (nodes >= rows).any():
            raise ValueError("a ring has a node that is not known")
        self._know(int(rows))
        self._grow(len(length))
        self._length[: len(length)] = length
        self._ring[: len(length)][np.arange(self.size) < length[:, None]] = nodes
