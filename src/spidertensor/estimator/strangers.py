"""Somebody who is not in the model, described by attributes or by what they had."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns import FittedColumns
from spidertensor.estimator.columns.table_columns import RecentColumn
from spidertensor.estimator.fitted import Fitted
from spidertensor.faults import EntryError


def recent_columns(columns: FittedColumns | None) -> dict[str, int]:
    """The names of all Recent columns, and the mode whose nodes each remembers."""
    every = [] if columns is None else columns.columns
    return {each.spec.name: each.state.other for each in every if isinstance(each, RecentColumn)}


def described_modes(columns: FittedColumns, names: Collection[str]) -> set[int]:
    """The modes that have a column with one of these names."""
    return {
        column.mode
        for column in columns.columns
        if not {column.spec.name, *(holder.spec.name for holder in column.holders)}.isdisjoint(names)
    }


def descriptions(columns: FittedColumns | None, mode: int) -> list[str]:
    """The names of the columns by which somebody without an id in this mode can be described."""
    found: list[str] = []
    for column in [] if columns is None else columns.columns:
        if column.mode == mode:
            found += [holder.spec.name for holder in column.holders if holder.owner == mode]
            found += [column.spec.name] if isinstance(column, RecentColumn) else []
    return list(dict.fromkeys(found))


def stated_recent(fitted: Fitted, situation: Mapping[str, Any]) -> dict[str, NDArray[np.int64]]:
    """The nodes that a situation states for a Recent, as in {"recent(movie)": ["Alien", "Heat"]}."""
    found = {}
    for name, other in recent_columns(fitted.columns).items():
        if name not in situation or _is_empty(situation[name]):
            continue
        ids = situation[name]
        remedy = 'write a list of ids, the latest last, such as ["Alien", "Heat"]'
        if isinstance(ids, str | bytes | dict | set | frozenset) or not hasattr(ids, "__len__"):
            reason = f"{ids!r:.80} is not a list of ids"
            raise EntryError(reason, kind="attribute", column=name, value=ids, remedy=remedy)
        try:
            found[name] = fitted.nodes[other].find(ids)
        except EntryError as error:
            raise error.but(row=None, column=name, remedy=error.remedy or remedy) from None
    return found


def _is_empty(cell: Any) -> bool:
    """Whether this is the empty cell of a table."""
    return cell is None or (isinstance(cell, float) and cell != cell)
