"""Cross: the combination of columns as one value.

Each part has a code: the number of its value, or for an id a number that stays with the node while others are
removed and renumbered. Two codes are one number, which is looked up like an id; three are folded twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.cells import LEFT_OUT, MISSING, UNSEEN, Elements, single
from spidertensor.estimator.columns.value import MAX_VALUES, BoundedValues

_HALF = 2**31


class NodeCodes:
    """A code for each node of a mode that no other node ever gets."""

    def __init__(self) -> None:
        self.codes, self.next = np.empty(0, np.int64), 0

    def read(self, nodes: NDArray[np.int64], *, add: bool) -> NDArray[np.int64]:
        """The code of each node; UNSEEN for -1 and, unless `add`, for new nodes."""
        if add and len(nodes) and (n := int(nodes.max()) + 1) > len(self.codes):
            more = n - len(self.codes)
            self.codes = np.concatenate([self.codes, np.arange(self.next, self.next + more)])
            self.next += more
        known = (nodes >= 0) & (nodes < len(self.codes))
        found = np.full(len(nodes), UNSEEN, np.int64)
        found[known] = self.codes[nodes[known]]
        return found

    def keep(self, keep: NDArray[np.bool_]) -> None:
        self.codes = self.codes[keep[: len(self.codes)]]

    def clear(self, nodes: NDArray[np.int64]) -> None:
        nodes = np.unique(nodes[nodes < len(self.codes)])
        self.codes[nodes] = np.arange(self.next, self.next + len(nodes))
        self.next += len(nodes)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        return {"codes": self.codes.copy(), "next": np.array(self.next, np.int64)}

    def read_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of `to_arrays`. ValueError for anything it does not write."""
        if arrays.keys() != {"codes", "next"}:
            raise ValueError(f"unknown arrays {sorted(arrays)!s:.200}")
        codes, following = arrays["codes"], arrays["next"]
        if (codes.dtype, following.dtype, codes.ndim, following.ndim) != (np.int64, np.int64, 1, 0):
            raise ValueError("the codes of nodes are not numbers")
        good = 0 <= following < _HALF and (codes >= 0).all() and (codes < following).all()
        if not good or len(np.unique(codes)) < len(codes):
            raise ValueError("the codes of nodes are not possible")
        self.codes, self.next = codes.copy(), int(following)


class CrossState:
    """The combinations seen, at most `max_values`. Their rows are numbered by first appearance."""

    def __init__(self, n_parts: int, max_values: int = MAX_VALUES) -> None:
        self.max_values = max_values
        self.folds = [BoundedValues(max_values) for _ in range(n_parts - 1)]
        self.n_left_out = 0

    @property
    def n_rows(self) -> int:
        return len(self.folds[-1])

    def elements(self, parts: Sequence[NDArray[np.int64]], *, learn: bool) -> Elements:
        """The combination of each entry as one element; none if a part is missing or was left out."""
        stacked = np.stack(parts, dtype=np.int64)
        usable = (stacked >= 0).all(axis=0)
        row = np.where((stacked == UNSEEN).any(axis=0), UNSEEN, 0)
        row[(stacked == LEFT_OUT).any(axis=0)] = LEFT_OUT
        row[(stacked == MISSING).any(axis=0)] = MISSING
        row[usable] = self._fold(stacked[:, usable], learn=learn)
        self.n_left_out += int((row == LEFT_OUT).sum()) if learn else 0
        return single(row)

    def _fold(self, parts: NDArray[np.int64], *, learn: bool) -> NDArray[np.int64]:
        row = parts[0]
        for part, fold in zip(parts[1:], self.folds, strict=True):
            known = row >= 0
            folded = row.copy()
            folded[known] = fold.rows(row[known] * _HALF + part[known], add=learn)
            row = folded
        return row

    def combinations(self) -> NDArray[np.int64]:
        """(rows, parts) the codes of each combination."""
        found, row = [], np.arange(self.n_rows)
        for fold in reversed(self.folds):
            keys = np.array(fold.index.ids, np.int64)[row] if len(fold) else row
            row, part = keys // _HALF, keys % _HALF
            found.append(part)
        return np.stack([row, *reversed(found)], axis=1)

    def keep_with(self, part: int, codes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Remove combinations whose part has none of these codes. Return which rows stay, in order."""
        known = self.combinations()
        keep = np.isin(known[:, part], codes)
        if not keep.all():
            self._start_with(known[keep])
        return keep

    def _start_with(self, known: NDArray[np.int64]) -> None:
        self.folds = [BoundedValues(self.max_values) for _ in self.folds]
        self._fold(np.ascontiguousarray(known.T), learn=True)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        return {"combinations": self.combinations(), "left_out": np.array(self.n_left_out, np.int64)}

    def read_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        if arrays.keys() != {"combinations", "left_out"}:
            raise ValueError(f"unknown arrays {sorted(arrays)!s:.200}")
        known, left_out = arrays["combinations"], arrays["left_out"]
        shaped = known.dtype == np.int64 and known.ndim == 2 and known.shape[1] == len(self.folds) + 1
        if not shaped or (known < 0).any() or (known >= _HALF).any():
            raise ValueError("the combinations are not codes of their parts")
        if left_out.dtype != np.int64 or left_out.shape != () or left_out < 0:
            raise ValueError("the number of combinations left out is not a count")
        self._start_with(known)
        if self.n_rows != len(known):
            raise ValueError("a combination is there twice, or there are too many")
        self.n_left_out = int(left_out)
