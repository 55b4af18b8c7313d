"""The tables passed to `recommend_many`, checked: given ids, candidates, exclusions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.ids import NodeIndex, checked_ids, key_of, keys_of
from spidertensor.estimator.inputs import Column, by_name
from spidertensor.faults import EntryError
from spidertensor.missing import MISSING_ID

Modes = Callable[[str | int], int]  # turns the name or number of a mode into its number


class Candidates:
    """The nodes to rank.

    over:    their mode
    ids:     their raw ids, each once; or None for nodes, whose ids are listed only if asked for
    nodes:   the known nodes of that mode
    numbers: by mode, the node of each candidate, -1 for an unseen id: for mode `over` and for modes that
             depend on it, as the category of a product does
    given:   by name, columns with an attribute of each candidate
    """

    def __init__(
        self,
        over: int,
        nodes: NodeIndex,
        ids: Sequence[Any] | None,
        numbers: dict[int, NDArray[np.int64]],
        given: dict[str, list[Any]] | None = None,
    ) -> None:
        self.over, self.numbers, self.given = over, numbers, given or {}
        self._nodes, self._ids = nodes, ids

    def __len__(self) -> int:
        return len(self.numbers[self.over])

    @property
    def ids(self) -> Sequence[Any]:
        return self.ids_at(np.arange(len(self))) if self._ids is None else self._ids

    def ids_at(self, places: NDArray[np.int64]) -> list[Any]:
        """The ids at these positions."""
        if self._ids is None:
            return self._nodes.ids_at(self.numbers[self.over][places])
        return [self._ids[place] for place in places.tolist()]

    @cached_property
    def _places(self) -> dict[Any, int]:
        return {key: place for place, key in enumerate(keys_of(self.ids))}

    def places(self, ids: Sequence[Any], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sorted positions of these ids and of the nodes with these numbers; others are ignored."""
        if self._ids is None:  # then all are known nodes
            numbers = np.concatenate([numbers, self._nodes.numbers(ids, add=False)])
            found = set()
        else:
            found = {self._places.get(key, -1) for key in keys_of(ids)} if ids else set()
        of_numbers = np.isin(self.numbers[self.over], numbers[numbers >= 0]).nonzero()[0]
        return np.union1d(of_numbers, np.array(sorted(found - {-1}), np.int64))


def candidates_of(
    table: Any,
    over: int,
    nodes: Sequence[NodeIndex],
    mode_of: Modes,
    attributes: Mapping[str, Column] | None = None,
) -> Candidates:
    """Candidates from None (all known nodes), ids of mode `over`, or columns by mode, including `over`.

    attributes: of the candidates in the table, by name; then each is listed once
    """
    given = {name: _listed(column) for name, column in (attributes or {}).items()}
    if table is None:
        known = np.arange(len(nodes[over]))
        return Candidates(over, nodes[over], None, {over: known[known != nodes[over].number_of(MISSING_ID)]})
    ids, numbers = _listed_once(table, over, nodes, mode_of, given)
    missing = [place for place, raw in enumerate(ids) if type(raw) is tuple and raw == MISSING_ID]
    for place in missing:
        ids = [*ids[:place], *ids[place + 1 :]]
        numbers = {mode: np.delete(each, place) for mode, each in numbers.items()}
        given = {name: [*each[:place], *each[place + 1 :]] for name, each in given.items()}
    return Candidates(over, nodes[over], ids, numbers, given)


def _listed_once(
    table: Any, over: int, nodes: Sequence[NodeIndex], mode_of: Modes, given: Mapping[str, list[Any]]
) -> tuple[list[Any], dict[int, NDArray[np.int64]]]:
    """The ids and numbers of Candidates, without duplicates."""
    columns = _by_mode(table, over, mode_of, "candidates")
    numbers = _numbers(columns, nodes, "candidates")
    ids = _plain(columns[over])
    if any(len(column) != len(ids) for column in given.values()):
        raise EntryError("columns of candidates differ in length")
    keys = keys_of(ids)
    if len(first := _first_places(keys)) < len(ids):
        if given:
            place = next(place for place, key in enumerate(keys) if first[key] != place)
            remedy = "keep one row for each"
            raise EntryError(f"candidate {ids[place]!r:.40} is listed twice", place, remedy=remedy)
        others = {mode: _plain(columns[mode]) for mode in columns if mode != over}
        _check_repeated(ids, others, [first[key] for key in keys])
        kept = np.array(sorted(first.values()))
        ids, numbers = [ids[place] for place in kept], {mode: each[kept] for mode, each in numbers.items()}
    return ids, numbers


class Excluded:
    """What not to recommend.

    table: None; ids of mode `over`, excluded always; or columns of ids by mode, including `over`: a row's
           id is excluded only where its ids in other modes are given
    """

    def __init__(
        self, table: Any, over: int, given: Mapping[int, Column], nodes: Sequence[NodeIndex], mode_of: Modes
    ) -> None:
        columns = {} if table is None else _by_mode(table, over, mode_of, "exclude")
        self.modes = [mode for mode in columns if mode != over]
        if strange := [mode for mode in self.modes if mode not in given]:
            raise ValueError(
                f"exclude can name the ranked mode and modes that are given, not mode {strange[0]}"
            )
        _numbers(columns, nodes, "exclude")  # only to check the ids
        self._of: dict[Any, list[Any]] = {}
        ids = _plain(columns[over]) if columns else []
        others = [_plain(columns[mode]) for mode in self.modes]
        for raw, *key in zip(ids, *others, strict=True):
            self._of.setdefault(key_of(tuple(key)), []).append(raw)

    def of(self, ids: Mapping[int, Any]) -> list[Any]:
        """The ids excluded for the given ids, which are by mode."""
        return self._of.get(key_of(tuple(_plain([ids[mode] for mode in self.modes]))), [])


def given_columns(table: Any, mode_of: Modes) -> dict[int, list[Any]]:
    """The column of given ids for each mode; EntryError if they differ in length."""
    columns = {mode_of(name): _listed(column) for name, column in by_name(table, "given").items()}
    if len(lengths := {len(column) for column in columns.values()}) > 1:
        raise EntryError(f"columns of given differ in length: {sorted(lengths)}")
    return columns


def is_sequence(table: Any) -> bool:
    """Whether this is a sequence of ids rather than a table."""
    of_arrow = hasattr(table, "to_pylist") and not hasattr(table, "columns")
    return isinstance(table, list | tuple | set | frozenset | range) or getattr(table, "ndim", of_arrow) == 1


def _by_mode(table: Any, over: int, mode_of: Modes, what: str) -> dict[int, Column]:
    """Columns by the number of their mode; a plain sequence is a column of `over`."""
    if isinstance(table, str | bytes):
        raise ValueError(f"{what} must be ids or columns of ids, not one {type(table).__name__}")
    if is_sequence(table):
        table = {over: list(table) if isinstance(table, set | frozenset | range) else table}
    columns = {mode_of(name): column for name, column in by_name(table, what).items()}
    if over not in columns:
        raise ValueError(f"{what} must have a column of the mode that is ranked")
    if len(lengths := {len(column) for column in columns.values()}) > 1:
        raise EntryError(f"columns of {what} differ in length: {sorted(lengths)}")
    return columns


def _numbers(
    columns: Mapping[int, Column], nodes: Sequence[NodeIndex], what: str
) -> dict[int, NDArray[np.int64]]:
    """The nodes of all ids, -1 for unseen ones; EntryError if something cannot be an id."""
    numbers = {}
    for mode, column in columns.items():
        try:
            numbers[mode] = nodes[mode].find(column)
        except EntryError as error:
            raise error.but(reason=f"{what}: {error.reason}", column=mode) from None
    return numbers


def _listed(column: Column) -> list[Any]:
    return column.tolist() if isinstance(column, np.ndarray) else list(column)


def _plain(column: Column) -> list[Any]:
    """Raw ids as plain Python objects."""
    return _listed(checked_ids(column))


def _first_places(keys: Sequence[Any]) -> dict[Any, int]:
    first: dict[Any, int] = {}
    for place, key in enumerate(keys):
        first.setdefault(key, place)
    return first


def _check_repeated(ids: list[Any], others: dict[int, list[Any]], first: Sequence[int]) -> None:
    """EntryError if a candidate is listed twice with different ids in the `others` modes.

    first: where each candidate was listed first
    """
    for place, (raw, before) in enumerate(zip(ids, first, strict=True)):
        for mode, column in others.items():
            if column[place] != column[before]:
                reason = (
                    f"candidate {raw!r:.40} has two ids: {column[before]!r:.40} and {column[place]!r:.40}"
                )
                raise EntryError(reason, place, column=mode)
