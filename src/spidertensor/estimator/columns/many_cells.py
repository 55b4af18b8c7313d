"""The cells of a column of several values: lists, sets, dicts of weights, or texts to split.

Equal cells, such as the genres of films, are read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.cells import (
    MISSING,
    NEVER_MISSING,
    entry_of,
    is_missing,
    spread,
    stated_of,
)
from spidertensor.estimator.columns.value import checked_values
from spidertensor.estimator.ids import id_of_key, keys_of
from spidertensor.estimator.inputs import Column
from spidertensor.faults import EntryError

MOST_IN_CELL = 1000
_COMPARED = frozenset({str, int, float, bool, bytes, type(None)})
_TRIED = 10_000  # cells after which lists are no longer compared if most of them differ


class ManyCells(NamedTuple):
    """codes: (n,) which distinct cell each is, MISSING for none. The distinct cells are in order of first
    appearance: cell c has the values and weights start[c] to start[c + 1]"""

    codes: NDArray[np.int64]
    start: NDArray[np.int64]
    values: Column
    weight: NDArray[np.float64]

    @property
    def n(self) -> int:
        return len(self.codes)

    def cut(self, start: int, stop: int) -> ManyCells:
        codes = self.codes[start:stop]
        used, first, which = np.unique(codes[codes >= 0], return_index=True, return_inverse=True)
        order = np.argsort(first)  # as values are added in the order of the entries
        used = used[order]
        begin, size = self.start[used], self.start[used + 1] - self.start[used]
        ends = np.concatenate([[0], np.cumsum(size)])
        place = np.repeat(begin - ends[:-1], size) + np.arange(ends[-1])
        if isinstance(self.values, np.ndarray):
            values = self.values[place]
        else:
            values = [self.values[each] for each in place.tolist()]
        codes = spread(codes >= 0, np.argsort(order)[which], MISSING)
        return ManyCells(codes, ends, values, self.weight[place])


class _Reader:
    """Reads cell after cell, each distinct one once."""

    def __init__(self, sep: str | None) -> None:
        self.sep, self.n_read = sep, 0
        self.values: list[Sequence[Any]] = []  # of each distinct cell
        self.weights: dict[int, list[float]] = {}  # of distinct cells whose values do not weigh the same
        self._seen: dict[Any, int] = {}

    def number_of(self, cell: Any) -> int:
        """The number of the distinct cell; MISSING for an empty text."""
        self.n_read += 1
        key = cell if type(cell) is str else None
        if type(cell) is list and (self.n_read < _TRIED or 2 * len(self.values) < self.n_read):
            key = _key_of(cell)
        if key is not None and (known := self._seen.get(key)) is not None:
            return known
        if type(cell) is str and not cell.strip():
            return MISSING
        values, weights = read_cell(cell, self.sep)
        number = len(self.values)
        self.values.append(values)
        if weights is not None:
            self.weights[number] = weights
        if key is not None:
            self._seen[key] = number
        return number


def _key_of(cell: list[Any]) -> Any:
    """What stands for a cell in a dict; None for a cell that is not compared.

    A text has a hash with a secret. Numbers in a tuple could be chosen to share one (ids.py).
    """
    kinds = set(map(type, cell))
    if kinds <= {str}:
        return tuple(cell)
    try:
        return (0, repr(cell)) if kinds <= _COMPARED else None
    except ValueError:  # an int of thousands of digits
        return None


def cells_of(column: Column, sep: str | None) -> ManyCells:
    """Read and check all cells."""
    stated, mask = stated_of(column.tolist() if isinstance(column, np.ndarray) else column)
    reader, found = _Reader(sep), []
    for place, cell in enumerate(stated):
        try:
            found.append(reader.number_of(cell))
        except EntryError as error:
            raise error.but(row=entry_of(mask, place), kind="attribute") from None
    codes = np.array(found, np.int64)
    size = np.array([len(values) for values in reader.values], np.int64)
    start = np.concatenate([[0], np.cumsum(size)])
    weight = np.repeat(1 / np.sqrt(np.maximum(size, 1)), size)
    for number, own in reader.weights.items():
        weight[start[number] : start[number + 1]] = own

    def entry(place: int) -> int:
        cell = int(np.searchsorted(start, place, side="right")) - 1
        return entry_of(mask, found.index(cell))

    flat = checked_values([value for values in reader.values for value in values], entry)
    return ManyCells(spread(mask, codes, MISSING), start, flat, weight)


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
    if not set(map(type, cell)) <= NEVER_MISSING:
        cell = [value for value in cell if not is_missing(value)]
    keys = keys_of(cell)
    try:
        if len(set(keys)) == len(cell):
            return cell, None
    except TypeError:
        raise _unusable(cell) from None
    weights: dict[Any, float] = {}
    for key in keys:
        weights[key] = weights.get(key, 0) + 1 / sqrt(len(cell))
    return list(map(id_of_key, weights)), list(weights.values())


def _unusable(cell: Any) -> EntryError:
    return EntryError(
        f"{cell!r:.80} has a value that cannot be used", value=cell, remedy="use texts or numbers"
    )


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
