"""Many: several values in a cell, n values of weight 1 / sqrt(n), or weights given in a dict.

The code of a cell is the number of a bag in a pool, which nodes share if one call describes them alike.
Bags that no node has any more are removed when they take more than half of the pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.cells import (
    LEFT_OUT,
    MISSING,
    Elements,
    Encoded,
    entry_of,
    is_missing,
    stated_of,
)
from spidertensor.estimator.columns.memory import NodeMemory
from spidertensor.estimator.columns.pool import Pool
from spidertensor.estimator.columns.value import MAX_VALUES, BoundedValues, as_value_error, values_from
from spidertensor.estimator.ids import checked_ids
from spidertensor.estimator.inputs import Column
from spidertensor.faults import EntryError

MOST_IN_CELL = 1000
_FEWEST_TIDIED = 4096  # elements of a pool before it is searched for unused bags


class ManyCells(NamedTuple):
    """codes: (n,) which distinct cell each is, MISSING for none. size, values, weight: the distinct cells in
    order of first appearance: how many values each has, and all of them one after the other"""

    codes: NDArray[np.int64]
    size: NDArray[np.int64]
    values: Column
    weight: NDArray[np.float64]

    @property
    def n(self) -> int:
        return len(self.codes)

    def cut(self, start: int, stop: int) -> ManyCells:
        codes = self.codes[start:stop]
        used = np.zeros(len(self.size), bool)
        used[codes[codes >= 0]] = True
        if used.all():
            return self._replace(codes=codes)
        chosen = np.repeat(used, self.size)
        values = self.values
        if isinstance(values, np.ndarray):
            values = values[chosen]
        else:
            values = [value for value, take in zip(values, chosen.tolist(), strict=True) if take]
        codes = np.where(codes >= 0, (np.cumsum(used) - 1)[codes] if len(used) else codes, codes)
        return ManyCells(codes, self.size[used], values, self.weight[chosen])


class ManyState:
    """What a model keeps about a column of several values. remembers: whether nodes have these attributes"""

    dtype, missing = np.dtype(np.int64), MISSING

    def __init__(self, sep: str | None, max_values: int = MAX_VALUES, *, remembers: bool = True) -> None:
        self.sep, self.remembers, self.values = sep, remembers, BoundedValues(max_values)
        self.pool, self._tidy_at = Pool(), _FEWEST_TIDIED

    @property
    def n_rows(self) -> int:
        return len(self.values)

    @property
    def n_left_out(self) -> int:
        return self.values.n_left_out

    def check(self, column: Column) -> ManyCells:
        stated, mask = stated_of(column.tolist() if isinstance(column, np.ndarray) else column)
        seen: dict[Any, int] = {}
        cells: list[tuple[Sequence[Any], Any]] = []
        codes = np.empty(len(stated), np.int64)
        for place, cell in enumerate(stated):
            try:
                codes[place] = self._number_of(cell, seen, cells)
            except EntryError as error:
                raise error.but(row=entry_of(mask, place), kind="attribute") from None
        size = np.array([len(values) for values, _ in cells], np.int64)
        weight = np.repeat(1 / np.sqrt(np.maximum(size, 1)), size)
        starts = np.cumsum(size) - size
        for number, (_, own) in enumerate(cells):
            if own is not None:
                weight[starts[number] : starts[number] + size[number]] = own
        flat = self._checked([value for values, _ in cells for value in values], mask, size, codes)
        whole = np.full(len(column), MISSING, np.int64)
        whole[slice(None) if mask is None else mask] = codes
        return ManyCells(whole, size, flat, weight)

    def _number_of(self, cell: Any, seen: dict[Any, int], cells: list[tuple[Sequence[Any], Any]]) -> int:
        """The number of a distinct cell, MISSING for an empty text. A new one is added to `cells`."""
        key = cell if type(cell) is str else tuple(cell) if type(cell) in (list, tuple) else None
        if key is not None:
            try:
                known = seen.get(key)
            except TypeError:
                raise EntryError(f"{cell!r:.80} has a value that cannot be used") from None
            # 1 and 1.0 are one value, but (1, 2) and ("1", ...) never meet: equal cells have equal values
            if known is not None:
                return known
        if type(cell) is str and not cell.strip():
            return MISSING
        cells.append(read_cell(cell, self.sep))
        if key is not None:
            seen[key] = len(cells) - 1
        return len(cells) - 1

    def _checked(
        self,
        flat: list[Any],
        mask: NDArray[np.bool_] | None,
        size: NDArray[np.int64],
        codes: NDArray[np.int64],
    ) -> Column:
        try:
            return checked_ids(flat)
        except EntryError as error:
            if error.row is None:
                raise as_value_error(error, None) from None
            number = int(np.searchsorted(np.cumsum(size), error.row, side="right"))
            raise as_value_error(error.but(row=int((codes == number).argmax())), mask) from None

    def encode(self, cells: ManyCells, *, learn: bool) -> Encoded:
        rows = self.values.rows(cells.values, add=learn)
        count, weight = cells.size, cells.weight
        if learn and (out := rows == LEFT_OUT).any():
            lost = np.bincount(np.repeat(np.arange(len(count)), count)[out], minlength=len(count))
            used = np.bincount(cells.codes[cells.codes >= 0], minlength=len(count))
            self.values.n_left_out += int((lost * used).sum())
            count, rows, weight = count - lost, rows[~out], weight[~out]
        codes = np.where(cells.codes >= 0, cells.codes + self.pool.n_bags, MISSING)
        extra = None if learn and self.remembers else Pool()
        (extra or self.pool).append(count, rows, weight)
        return Encoded(codes, extra=extra)

    def is_missing(self, codes: NDArray[Any]) -> NDArray[np.bool_]:
        return codes == MISSING

    def elements(self, encoded: Encoded) -> Elements:
        codes, pool = encoded.codes, self.pool
        count = np.zeros(len(codes), np.int64)
        kept, added = (codes >= 0) & (codes < pool.n_bags), codes >= pool.n_bags
        old = pool.take(codes[kept])
        count[kept] = old.size
        if encoded.extra is None or not added.any():
            return old._replace(size=count)
        new = encoded.extra.take(codes[added] - pool.n_bags)
        count[added] = new.size
        from_new = np.repeat(added, count)
        row, weight = np.empty(len(from_new), np.int64), np.empty(len(from_new), np.float32)
        row[from_new], weight[from_new] = new.row, new.weight
        row[~from_new], weight[~from_new] = old.row, old.weight
        return Elements(count, row, weight)

    def tidy(self, memory: NodeMemory | None) -> None:
        """Remove bags that no node has, if there may be many."""
        if memory is not None and self.pool.n_bags + self.pool.n_elements >= self._tidy_at:
            self.pool, memory.codes = self._tidied(memory)
            self._plan_to_tidy()

    def _plan_to_tidy(self) -> None:
        self._tidy_at = max(_FEWEST_TIDIED, 2 * (self.pool.n_bags + self.pool.n_elements))

    def _tidied(self, memory: NodeMemory) -> tuple[Pool, NDArray[np.int64]]:
        """The bags in use in order of their numbers, and the codes of the nodes in these terms."""
        codes, pool = memory.codes, Pool()
        used = np.unique(codes[codes >= 0])
        pool.append(*self.pool.take(used))
        return pool, np.where(codes >= 0, np.searchsorted(used, codes), codes)

    def to_arrays(self, memory: NodeMemory | None) -> dict[str, NDArray[Any]]:
        left_out = np.array(self.n_left_out, np.int64)
        arrays = {"left_out": left_out} | {
            f"values/{name}": array for name, array in self.values.index.to_arrays().items()
        }
        if memory is not None:
            pool, arrays["memory"] = self._tidied(memory)
            arrays |= {"start": pool.start, "row": pool.row, "weight": pool.weight}
        return arrays

    def read(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        arrays = dict(arrays)
        if self.remembers:
            if not {"start", "row", "weight"} <= arrays.keys():
                raise ValueError("the bags of the nodes are missing")
            start, row, weight = (arrays.pop(name) for name in ("start", "row", "weight"))
            self.values = values_from(arrays, self.values.max_values)
            self.pool = Pool.from_arrays(start, row, weight, self.n_rows)
            self._plan_to_tidy()
        else:
            self.values = values_from(arrays, self.values.max_values)

    def possible(self, codes: NDArray[Any]) -> bool:
        return bool(((codes == MISSING) | ((codes >= 0) & (codes < self.pool.n_bags))).all())


def read_cell(cell: Any, sep: str | None) -> tuple[Sequence[Any], Any]:
    """The distinct values of a cell, and their weights; None if all weigh the same."""
    if isinstance(cell, str):
        if sep is None:
            reason = f"{cell!r:.80} is a text, not a list of values"
            raise EntryError(
                reason, value=cell, remedy='pass a list, or a separator as in Many("tags", sep="|")'
            )
        cell = [part for part in map(str.strip, cell.split(sep)) if part]
    if isinstance(cell, Mapping):
        return _weighted(cell)
    if isinstance(cell, set | frozenset):
        cell = sorted(cell, key=repr)  # the order of a set of texts changes from run to run
    if isinstance(cell, np.ndarray):
        cell = cell.tolist() if cell.ndim == 1 else cell
    if not isinstance(cell, list | tuple):
        raise EntryError(
            f"{cell!r:.80} is not a list of values", value=cell, remedy="pass a list, set or dict"
        )
    _check_size(len(cell))
    cell = [value for value in cell if not is_missing(value)] if any(map(is_missing, cell)) else cell
    try:
        if len(set(cell)) == len(cell):
            return cell, None
    except TypeError:
        raise EntryError(f"{cell!r:.80} has a value that cannot be used", value=cell) from None
    weights: dict[Any, float] = {}
    for value in cell:
        weights[value] = weights.get(value, 0) + 1 / sqrt(len(cell))
    return list(weights), list(weights.values())


def _check_size(n: int) -> None:
    if n > MOST_IN_CELL:
        raise EntryError(
            f"{n} values in one cell, {MOST_IN_CELL} are allowed", remedy="keep the most important"
        )


def _weighted(cell: Mapping[Any, Any]) -> tuple[Sequence[Any], Any]:
    """The values of a dict and their weights, scaled to length 1."""
    _check_size(len(cell))
    weights = {}
    for value, weight in cell.items():
        if not _is_finite(weight):
            raise EntryError(
                f"the weight {weight!r:.80} of {value!r:.80} is not a finite number", value=weight
            )
        if weight and not is_missing(value):
            weights[value] = float(weight)
    largest = max(map(abs, weights.values()), default=1.0)
    shares = [weight / largest for weight in weights.values()]  # squares of the weights could overflow
    length = sqrt(sum(share * share for share in shares))
    return list(weights), [share / length for share in shares]


def _is_finite(weight: Any) -> bool:
    try:
        return isinstance(weight, int | float | np.integer | np.floating) and isfinite(weight)
    except OverflowError:  # a huge int
        return False
