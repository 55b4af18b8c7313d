"""The latest attribute of each node of a mode, as one code per node."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Changes:
    """What a call has changed, so that codes can be asked for as of an entry of the call.

    nodes:  (n,) of its entries
    before: (n,) their codes before the call
    after:  (n,) their codes from the entry on
    """

    def __init__(self, nodes: NDArray[np.int64], before: NDArray[Any], after: NDArray[Any]) -> None:
        order = np.argsort(nodes, kind="stable")
        self._nodes, self._before, self._after = nodes[order], before[order], after[order]
        self._keys = self._nodes * len(nodes) + order  # by node, then by entry

    def undone(
        self, nodes: NDArray[np.int64], codes: NDArray[Any], entries: NDArray[np.int64]
    ) -> NDArray[Any]:
        """The codes of nodes as of these entries. codes: those that they have now"""
        n = len(self._nodes)
        if not n:
            return codes
        first = np.searchsorted(self._nodes, nodes)
        latest = np.searchsorted(self._keys, nodes * n + entries, side="right") - 1
        changed = (first < n) & (self._nodes[np.minimum(first, n - 1)] == nodes)
        found = codes.copy()
        later, earlier = changed & (latest < first), changed & (latest >= first)
        found[later] = self._before[first[later]]
        found[earlier] = self._after[latest[earlier]]
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
