"""Cross: the combination of columns as one value.

Each part has a code: the row of its value, or for an id a number that stays with the node while others are
removed and renumbered. Two codes are one number, which is looked up like an id; three are folded twice.

Combinations with an evicted id are not seen again, so they are among the next to be evicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.bounded_values import (
    MAX_VALUES,
    TRIED_ENTRIES,
    BoundedValues,
    moved_rows,
)
from spidertensor.estimator.columns.cells import (
    MISSING,
    UNSEEN,
    Elements,
    joined_elements,
    single,
    with_spare,
)
from spidertensor.estimator.ids import NodeIndex

HALF = 2**31

Restart = tuple[int, NDArray[np.int64]]  # from this entry on, these rows belong to nothing learned before


class NodeCodes:
    """A code for each node of a mode that no other node ever gets."""

    def __init__(self) -> None:
        self._codes, self._n, self.next = np.empty(0, np.int64), 0, 0

    @property
    def codes(self) -> NDArray[np.int64]:
        return self._codes[: self._n]

    def read(self, nodes: NDArray[np.int64], *, add: bool) -> NDArray[np.int64]:
        """The code of each node; UNSEEN for -1 and, unless `add`, for new nodes."""
        if add and len(nodes) and (n := int(nodes.max()) + 1) > self._n:
            fresh = self._fresh(n - self._n)
            self._codes = with_spare(self._codes, n)
            self._codes[self._n : n], self._n = fresh, n
        known = (nodes >= 0) & (nodes < self._n)
        found = np.full(len(nodes), UNSEEN, np.int64)
        found[known] = self._codes[nodes[known]]
        return found

    def _fresh(self, n: int) -> NDArray[np.int64]:
        if self.next + n > HALF:
            raise ValueError(
                f"a cross has had {self.next:,} ids of a mode, and cannot tell more apart: make a new model, "
                "or one without the cross"
            )
        self.next += n
        return np.arange(self.next - n, self.next)

    def keep(self, keep: NDArray[np.bool_]) -> None:
        self._codes = self.codes[keep[: self._n]]
        self._n = len(self._codes)

    def clear(self, nodes: NDArray[np.int64]) -> None:
        nodes = np.unique(nodes[nodes < self._n])
        self._codes[nodes] = self._fresh(len(nodes))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        return {"codes": self.codes.copy(), "next": np.array(self.next, np.int64)}

    def read_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of `to_arrays`. ValueError for anything it does not write."""
        if arrays.keys() != {"codes", "next"}:
            raise ValueError(f"unknown arrays {sorted(arrays)!s:.200}")
        codes, following = arrays["codes"], arrays["next"]
        if (codes.dtype, following.dtype, codes.ndim, following.ndim) != (np.int64, np.int64, 1, 0):
            raise ValueError("the codes of nodes are not numbers")
        good = 0 <= following <= HALF and (codes >= 0).all() and (codes < following).all()
        if not good or len(np.unique(codes)) < len(codes):
            raise ValueError("the codes of nodes are not possible")
        self._codes, self._n, self.next = codes.copy(), len(codes), int(following)


class CrossState:
    """The combinations seen, at most `max_values`.

    folds: for three or more parts, the combinations of the first two, three, ... parts, each as one code
    """

    def __init__(self, n_parts: int, max_values: int = MAX_VALUES) -> None:
        self.n_parts, self.values = n_parts, BoundedValues(max_values)
        self.folds = [NodeIndex() for _ in range(n_parts - 2)]

    @property
    def n_rows(self) -> int:
        return self.values.n_rows

    def elements(self, parts: Sequence[NDArray[np.int64]]) -> Elements:
        """The combination of each entry as one element; none if a part is missing."""
        stacked = np.stack(parts, dtype=np.int64)
        row = _without_combination(stacked)
        usable = row >= 0
        keys = self._keys(stacked[:, usable], add=False)
        row[usable] = np.where(keys >= 0, self.values.rows(keys, add=False), UNSEEN)
        return single(row)

    def learn(
        self, parts: Sequence[NDArray[np.int64]], *, bounded: bool = True
    ) -> tuple[Elements, list[Restart]]:
        """The same for entries that are learned; and which rows start afresh on the way.

        bounded: keep to the limit; else `bound` does later
        """
        stacked = np.stack(parts, dtype=np.int64)
        n, at, found, restarts = stacked.shape[1], 0, [], []
        while True:
            part = stacked[:, at : at + TRIED_ENTRIES]
            row = _without_combination(part)
            usable = np.flatnonzero(row >= 0)
            keys = self._keys(part[:, usable], add=True)
            fit = self.values.fitting(keys) if bounded else len(keys)
            stop = part.shape[1] if fit == len(keys) else int(usable[fit])
            row[usable[:fit]] = self.values.rows(keys[:fit], add=True)
            found.append(single(row[:stop]))
            self.values.use(found[-1])
            at += stop
            if at >= n:
                return joined_elements(found), restarts
            if fit < len(keys):
                restarts.append((at, self._remove(self.values.make_room(keys[fit : fit + 1]))))

    def _keys(self, parts: NDArray[np.int64], *, add: bool) -> NDArray[np.int64]:
        """The number that stands for each combination; negative if it has no fold."""
        code = parts[0]
        for fold, part in zip(self.folds, parts[1:-1], strict=True):
            known = code >= 0
            code = np.where(known, code * HALF + part, code)
            code[known] = fold.numbers(code[known], add=add)
        return np.where(code >= 0, code * HALF + parts[-1], code)

    def combinations(self) -> NDArray[np.int64]:
        """(combinations, parts) the codes of each, in the order in which they came."""
        found, code = [], np.array(self.values.index.ids, np.int64)
        for fold in reversed(self.folds):
            found.append(code % HALF)
            code = np.array(fold.ids, np.int64)[code // HALF] if len(code) else code
        return np.stack([code // HALF, code % HALF, *reversed(found)], axis=1)

    def _remove(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Remove combinations, and what only they need. Returns their rows, which are free now."""
        left = np.delete(self.combinations(), numbers, axis=0) if self.folds else None
        rows = self.values.remove(numbers)
        if left is not None:
            self._number(left)
        return rows

    def _number(self, known: NDArray[np.int64]) -> None:
        """Number these combinations from 0 on."""
        self.folds, self.values.index = [NodeIndex() for _ in self.folds], NodeIndex()
        self.values.index.find_or_add(self._keys(np.ascontiguousarray(known.T), add=True))

    def bound(self, seen: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Keep as many combinations as there may be; see Holder.bound."""
        numbers = self.values.rarest(seen)
        if not len(numbers):
            return None
        self._remove(numbers)
        return moved_rows(self.values.compact())

    def move(self, part: int, moved: NDArray[np.int64]) -> None:
        """The values of a part are in other rows. moved: (rows,) the new row of each"""
        known = self.combinations()
        known[:, part] = moved[known[:, part]]
        self._number(known)

    def drop(self, part: int, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Remove combinations whose part has one of these codes. Returns their rows, which are free now."""
        numbers = np.flatnonzero(np.isin(self.combinations()[:, part], codes))
        return self._remove(numbers) if len(numbers) else numbers

    def keep_with(self, part: int, codes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Remove combinations whose part has none of these codes. Return which rows stay, in order."""
        numbers = np.flatnonzero(~np.isin(self.combinations()[:, part], codes))
        if len(numbers):
            self._remove(numbers)
        return self.values.compact()

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        return {"combinations": self.combinations()} | self.values.recency()

    def read_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        arrays = dict(arrays)
        known = arrays.pop("combinations", None)
        if known is None:
            raise ValueError("the combinations are missing")
        shaped = known.dtype == np.int64 and known.ndim == 2 and known.shape[1] == self.n_parts
        if not shaped or (known < 0).any() or (known >= HALF).any():
            raise ValueError("the combinations are not codes of their parts")
        self._number(known)
        if len(self.values) != len(known):
            raise ValueError("a combination is there twice")
        self.values.read_recency(arrays)


def _without_combination(parts: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) MISSING or UNSEEN for entries of which a part is, 0 for the others."""
    row = np.where((parts == UNSEEN).any(axis=0), UNSEEN, 0)
    row[(parts == MISSING).any(axis=0)] = MISSING
    return row
