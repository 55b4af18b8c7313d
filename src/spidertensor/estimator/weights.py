"""`sample_weight`: how many observations each entry counts as. mathematics.md section 27."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.eviction import Numbered
from spidertensor.estimator.inputs import NO_NUMBERS, Columns
from spidertensor.estimator.times import in_order
from spidertensor.faults import EntryError

Rows = NDArray[np.int64]

LEAST = 1e-30  # less is 0: it could not be told from 0 in the float32 of the engines
MOST = 1e6  # entries of more would leave nothing of the others
# Of the vectorized engine. It takes one step for all entries of a batch, which goes too far if a node has
# thousands of observations in it.
MOST_AT_ONCE = 30.0


def checked(given: Any, n: int, most: float) -> NDArray[np.float64] | None:
    """The weights of n entries; None if each counts once. EntryError names the first that is impossible.

    most: the largest weight that the engine can learn
    """
    if given is None:
        return None
    try:
        weight = _numbers(given)
    except (TypeError, ValueError):
        raise EntryError("sample_weight must be numbers, one per entry", kind="sample_weight") from None
    if weight.shape != (n,):
        reason = f"sample_weight must be 1-D with {n} weights, one per entry, got shape {weight.shape}"
        raise EntryError(reason, kind="sample_weight")
    wrong = np.flatnonzero(~((weight >= 0) & (weight <= most)))
    if len(wrong):
        row = int(wrong[0])
        raise EntryError(
            f"sample_weight {weight[row]:g} is not a number from 0 to {most:g}",
            row,
            kind="sample_weight",
            value=float(weight[row]),
            remedy="give an entry that should not count the weight 0, and divide all weights by their mean",
            rows=tuple(wrong.tolist()),
        )
    weight[weight < LEAST] = 0
    return None if (weight == 1).all() else weight


def _numbers(given: Any) -> NDArray[np.float64]:
    """A copy as numbers. TypeError for what is none, although NumPy would take it for one: see inputs"""
    if isinstance(given, np.ma.MaskedArray):
        given = np.ma.filled(given.astype(np.float64), np.nan)
    raw = np.asarray(given)
    kinds = set(map(type, raw.ravel().tolist())) if raw.dtype == object else {raw.dtype.type}
    if any(issubclass(kind, (*NO_NUMBERS, complex)) for kind in kinds):
        raise TypeError
    return np.array(raw, np.float64)


def rows_to_learn(weight: NDArray[np.float64] | None) -> Rows | None:
    """The rows with a weight above 0; None if these are all."""
    return None if weight is None or weight.all() else np.flatnonzero(weight)


def columns_at(columns: Columns, rows: Rows) -> Columns:
    """Some entries, in this order."""
    ids = [None if each is None else in_order(each, rows) for each in columns.ids]
    return replace(
        columns, ids=ids, given={name: in_order(each, rows) for name, each in columns.given.items()}
    )


@contextmanager
def rows_as_given(rows: Rows | None) -> Iterator[None]:
    """Context for learning some entries: an error about one names the row that the caller knows."""
    try:
        yield
    except EntryError as error:
        if rows is None:
            raise
        row = None if error.row is None else int(rows[error.row])
        raise error.but(row=row, rows=tuple(rows[list(error.rows)].tolist())) from None


def of_all(learned: Numbered, rows: Rows, n: int) -> Numbered:
    """What was learned of these rows among n: NaN for the others, which have no nodes."""

    def spread(part: NDArray[Any], blank: Any) -> NDArray[Any]:
        whole = np.full((n, *part.shape[1:]), blank)
        whole[rows] = part
        return whole

    update = learned.update
    parts = {
        name: spread(part, np.nan) for name, part in update._asdict().items() if isinstance(part, np.ndarray)
    }
    return Numbered(update._replace(**parts), spread(learned.nodes, -1))
