"""The latest attribute of each node of a mode, as one code per node."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Changes:
    """What a call has changed so far, so that codes can be asked for as of an entry of the call.

    ready: the first entry of the call for which the column can be used (number.py)
    """

    def __init__(self) -> None:
        self.ready = self._entries = 0
        # in the order of time: entries, their nodes, the codes before, and from the entry on
        self._pieces: list[tuple[NDArray[Any], ...]] = []
        self._by_node: tuple[NDArray[Any], ...] | None = None

    def learned(
        self, nodes: NDArray[np.int64], before: NDArray[Any], after: NDArray[Any], ready: int
    ) -> None:
        """Further entries were learned. before: codes before all of these; ready: the same of these alone"""
        self._add(self._entries + np.arange(len(nodes)), nodes, before, after)
        self.ready = self._entries + ready if ready else self.ready
        self._entries += len(nodes)

    def cleared(self, nodes: NDArray[np.int64], before: NDArray[Any], missing: Any) -> None:
        """These nodes belong to other ids from the next entry on."""
        self._add(np.full(len(nodes), self._entries), nodes, before, np.full_like(before, missing))

    def passed(self, n: int) -> None:
        """Further entries were learned that state nothing."""
        self._entries += n

    def _add(self, *piece: NDArray[Any]) -> None:
        self._pieces.append(piece)
        self._by_node = None

    def undone(
        self, nodes: NDArray[np.int64], codes: NDArray[Any], entries: NDArray[np.int64]
    ) -> NDArray[Any]:
        """The codes of nodes as of these entries. codes: those that they have now"""
        if not self._pieces:
            return codes
        if self._by_node is None:
            parts = [np.concatenate(each) for each in zip(*self._pieces, strict=True)]
            order = np.argsort(parts[1], kind="stable")  # by node, then by time
            self._by_node = tuple(each[order] for each in parts)
        at, of, before, after = self._by_node
        n, size = len(of), self._entries + 1
        first = np.searchsorted(of, nodes)
        latest = np.searchsorted(of * size + at, nodes * size + entries, side="right") - 1
        changed = (first < n) & (of[np.minimum(first, n - 1)] == nodes)
        found = codes.copy()
        later, earlier = changed & (latest < first), changed & (latest >= first)
        found[later] = before[first[later]]
        found[earlier] = after[latest[earlier]]
        return found


class NodeMemory:
    """codes[node], `missing` for nodes that have none. Grows as needed."""

    def __init__(self, dtype: np.dtype[Any], missing: Any) -> None:
        self.missing, self._codes, self._n = missing, np.empty(0, dtype), 0

    @property
    def codes(self) -> NDArray[Any]:
        return self._codes[: self._n]

    @codes.setter
    def codes(self, codes: NDArray[Any]) -> None:
        self._codes, self._n = codes.astype(self._codes.dtype), len(codes)

    def read(self, nodes: NDArray[np.int64]) -> NDArray[Any]:
        """The code of each node; `missing` for -1 and for nodes never described."""
        known = (nodes >= 0) & (nodes < self._n)
        if known.all():
            return self._codes[nodes]
        found = np.full(len(nodes), self.missing, self._codes.dtype)
        found[known] = self._codes[nodes[known]]
        return found

    def get(self, node: int) -> Any:
        """`read` for one node."""
        return self._codes[node] if 0 <= node < self._n else self.missing

    def set(self, node: int, code: Any) -> None:
        """`store` for one node."""
        self._grow(node + 1)
        self._codes[node] = code

    def store(
        self, nodes: NDArray[np.int64], codes: NDArray[Any], stated: NDArray[np.bool_] | None = None
    ) -> None:
        """Remember the stated codes; of several for one node the last one stays."""
        if stated is not None:
            nodes, codes = nodes[stated], codes[stated]
        if not len(nodes):
            return
        self._grow(int(nodes.max()) + 1)
        self._codes[nodes] = codes

    def fill_and_store(
        self, nodes: NDArray[np.int64], codes: NDArray[Any], stated: NDArray[np.bool_]
    ) -> NDArray[Any]:
        """Store the stated codes. Return all codes, the missing ones as stored at the time of their entry."""
        if stated.all():
            self.store(nodes, codes)
            return codes
        source = latest_stated(nodes, stated)
        before = source < 0
        filled = codes[source].astype(self._codes.dtype)
        filled[before] = self.read(nodes[before])
        self.store(nodes, codes, stated)
        return filled

    def keep(self, keep: NDArray[np.bool_]) -> None:
        self.codes = self.codes[keep[: self._n]]

    def clear(self, nodes: NDArray[np.int64]) -> None:
        self._codes[nodes[nodes < self._n]] = self.missing

    def forget(self, codes: NDArray[np.int64], n_codes: int) -> None:
        """No node has these codes any more. n_codes: all are below it"""
        gone = np.zeros(n_codes + 1, bool)  # the last is for negative codes
        gone[codes] = True
        own = self._codes[: self._n]
        own[gone[np.maximum(own, -1)]] = self.missing

    def _grow(self, n: int) -> None:
        if n > len(self._codes):
            grown = np.full(max(n, len(self._codes) * 3 // 2), self.missing, self._codes.dtype)
            grown[: self._n] = self._codes[: self._n]
            self._codes = grown
        self._n = max(self._n, n)


def latest_stated(nodes: NDArray[np.int64], stated: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(n,) the latest entry up to each that states something about the same node; -1 if there is none."""
    order = np.argsort(nodes, kind="stable")
    ranks = np.arange(len(nodes))
    first = np.concatenate([[True], nodes[order[1:]] != nodes[order[:-1]]]) if len(nodes) else stated
    group = np.maximum.accumulate(np.where(first, ranks, 0))
    latest = np.maximum.accumulate(np.where(stated[order], ranks, -1))
    source = np.empty(len(nodes), np.int64)
    source[order] = np.where(latest >= group, order[latest], -1)
    return source
