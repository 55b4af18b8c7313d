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


def stated_recent(fitted: Fitted, situation: Mapping[str, Any]) -> dict[str, NDArray[np.int64]]:
    """The nodes that a situation states for a Recent, as in {"recent(movie)": ["Alien", "Heat"]}."""
    found = {}
    for name, other in recent_columns(fitted.columns).items():
        if name in situation:
            ids = situation[name]
            if isinstance(ids, str | bytes) or not hasattr(ids, "__len__"):
                reason = f"{name} is a list of ids, the latest last, got {ids!r:.80}"
                raise EntryError(reason, kind="attribute")
            found[name] = fitted.nodes[other].find(ids)
    return found
