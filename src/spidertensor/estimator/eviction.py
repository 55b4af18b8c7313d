"""Modes with room for so many nodes: a new id takes the place of the node that was longest unseen.

Seen means learned; the order is that of the entries, so it does not matter how they are cut into calls. A
node that goes is forgotten: its id is unknown, and its row is again what it was before any entry.

Ids are mapped for a whole call before its first entry is learned, and a row may have one id in the first
entries of a call and another in later ones. So a call is learned in segments: the rows that change their ids
are started afresh where a segment begins, and no row has two ids inside one.

Learning comes here only if the model has a limit (`Fitted.bounded`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.ids import BLOCK, NodeIndex
from spidertensor.estimator.inputs import Column
from spidertensor.estimator.parameters import Model
from spidertensor.method import Batch, Update, joined
from spidertensor.spider import events, posterior
from spidertensor.spider.committee import CommitteeState

State = TypeVar("State")


class BoundedIndex(NodeIndex):
    """At most `limit` nodes. The dict has the longest unseen first; there is no table beside it."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._numbers: OrderedDict[Any, int] = OrderedDict()  # pyright: ignore[reportIncompatibleVariableOverride]
        self._limit = limit
        # New ids of the latest call: where in it each came, its number, the id that had it (or None), itself
        self._new: list[tuple[int, int, Any, Any]] = []

    @property
    def ids(self) -> list[Any]:
        ids: list[Any] = [None] * len(self)
        for raw, number in self._numbers.items():
            ids[number] = raw
        return ids

    def truncate(self, n: int) -> None:
        """Undo the latest `find_or_add`, as there; but ids that were known stay where it moved them to."""
        for _, number, old, new in reversed(self._new):
            del self._numbers[new]
            if old is not None:
                self._numbers[old] = number
                self._numbers.move_to_end(old, last=False)
                self.evicted -= 1
        self._new = []

    def evictions(self) -> NDArray[np.int64]:
        """(evictions of the latest call, 2) the entry that needed a row, and that row."""
        found = [(place, number) for place, number, old, _ in self._new if old is not None]
        return np.array(found, np.int64).reshape(-1, 2)

    def settle(self) -> None:
        """The latest call stands: it will not be undone, and what it evicted has been dealt with."""
        self._new = []

    def without(self, numbers: set[int]) -> BoundedIndex:
        kept = [number for number in range(len(self)) if number not in numbers]
        moved = dict(zip(kept, range(len(kept)), strict=True))
        twin = BoundedIndex(self._limit)
        twin.evicted = self.evicted
        items = ((raw, moved[number]) for raw, number in self._numbers.items() if number in moved)
        twin._numbers = OrderedDict(items)
        return twin

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """As there, and the numbers from the longest unseen on, and how many were evicted."""
        order = np.fromiter(self._numbers.values(), np.int64, len(self))
        return super().to_arrays() | {"order": order, "evicted": np.array(self.evicted, np.int64)}

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]], limit: int) -> BoundedIndex:
        """The inverse of `to_arrays`. ValueError for anything that it does not write."""
        rest = dict(arrays)
        if not {"order", "evicted"} <= rest.keys():
            raise ValueError("does not say in which order the nodes were seen")
        order, evicted = rest.pop("order"), rest.pop("evicted")
        ids = NodeIndex.from_arrays(rest).ids
        if len(ids) > limit:
            raise ValueError(f"{len(ids)} nodes, but room for {limit}")
        if order.dtype != np.int64 or not np.array_equal(np.sort(order), np.arange(len(ids))):
            raise ValueError("the order of the nodes does not have each of them once")
        if evicted.dtype != np.int64 or evicted.shape != () or evicted < 0:
            raise ValueError("the number of evicted nodes is not a count")
        index = cls(limit)
        index.evicted = int(evicted)
        index._numbers = OrderedDict((ids[number], number) for number in order.tolist())
        return index

    def _map(self, ids: Column, *, add: bool) -> NDArray[np.int64]:
        if add:
            self._new = []
        numbers = np.empty(len(ids), np.int64)
        for start in range(0, len(ids), BLOCK):
            block = ids[start : start + BLOCK]
            block = block.tolist() if isinstance(block, np.ndarray) else block
            found = self._see(block, start) if add else self._ask_dict(block, add=False)
            numbers[start : start + len(block)] = found
        return numbers

    def _see(self, ids: Sequence[Any], start: int) -> list[int]:
        """The numbers of ids that stand in a call from entry `start` on; each is the latest seen now."""
        get, move_to_end = self._numbers.get, self._numbers.move_to_end
        numbers = []
        for raw in ids:
            number = get(raw)
            if number is None:
                number = self._admit(raw, start + len(numbers))
            else:
                move_to_end(raw)
            numbers.append(number)
        return numbers

    def _admit(self, raw: Any, place: int) -> int:
        known, old = self._numbers, None
        if len(known) < self._limit:
            number = len(known)
        else:
            old, number = known.popitem(last=False)
            self.evicted += 1
        known[raw] = number
        self._new.append((place, number, old, raw))
        return number


def limits_of(max_nodes: int | list[int | None] | None, n_modes: int) -> list[int | None]:
    """The parameter `max_nodes` for each mode; None is no limit."""
    limits = list(max_nodes) if isinstance(max_nodes, list) else [max_nodes] * n_modes
    if len(limits) != n_modes:
        raise ValueError(f"max_nodes names {len(limits)} modes, the entries have {n_modes}")
    return limits


def empty_nodes(max_nodes: int | list[int | None] | None, n_modes: int) -> list[NodeIndex]:
    limits = limits_of(max_nodes, n_modes)
    return [NodeIndex() if limit is None else BoundedIndex(limit) for limit in limits]


class Segment(NamedTuple):
    """Entries of a call from `start` to the next segment; `reused`: per mode, the rows that get new ids."""

    start: int
    reused: list[list[int]]


class Numbered(NamedTuple):
    """What a call has learned: its update, the (n, K) rows of its nodes, and where rows changed their ids.

    With this another model can learn the same entries, which then needs no ids.
    """

    update: Update
    nodes: NDArray[np.int64]
    parts: Sequence[Segment] = ()


def segments(
    nodes: Sequence[NodeIndex],
    index: NDArray[np.int64],
    entries: int,
    batch_size: int,
    *,
    at_once: bool = False,
) -> list[Segment]:
    """How to learn the entries that were just mapped to `index`; [] if no row has changed its id.

    entries: how many were learned before this call
    at_once: a row must not start afresh before the entry that needs it, because others may draw it (events)

    A row that an earlier entry of the segment touches under its old id ends the segment. An engine that
    learns batch by batch must find the same batches however the stream is cut, so a segment ends inside a
    batch only if that batch itself touches the row, else where that batch begins.
    """
    events, cuts = [], [Segment(0, [[] for _ in nodes])]
    for mode, each in enumerate(nodes):
        if isinstance(each, BoundedIndex) and len(found := each.evictions()):
            place, row = found.T
            last = place - 1 if at_once else _previous(index[:, mode])[place]
            # rows that this call has not touched before may start afresh at once
            cuts[0].reused[mode].extend(row[last < 0].tolist())
            later = np.stack([place, np.full_like(place, mode), row, last], axis=1)[last >= 0]
            events.extend(later.tolist())
    for place, mode, row, last in sorted(events):
        start = cuts[-1].start
        batch = max(start, place - (entries + place) % batch_size)
        if last >= start:
            cuts.append(Segment(place if last >= batch else batch, [[] for _ in nodes]))
        cuts[-1].reused[mode].append(row)
    for each in nodes:
        if isinstance(each, BoundedIndex):
            each.settle()
    return cuts if len(cuts) > 1 or any(cuts[0].reused) else []


def _previous(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) where each row stood last before; -1 if nowhere."""
    order = np.argsort(rows, kind="stable")
    same = rows[order[1:]] == rows[order[:-1]]
    previous = np.full(len(rows), -1)
    previous[order[1:][same]] = order[:-1][same]
    return previous


def learn(
    model: Model, state: CommitteeState, batch: Batch, parts: Sequence[Segment]
) -> tuple[CommitteeState, Update]:
    """The update of a model by the entries of a call, in these segments, of which there is at least one."""
    return in_segments(model.method.update, partial(_start_afresh, model), state, batch, parts)


def in_segments(
    update_by: Callable[[State, Batch], tuple[State, Update]],
    start_afresh: Callable[[State, list[list[int]]], None],
    state: State,
    batch: Batch,
    parts: Sequence[Segment],
) -> tuple[State, Update]:
    """The update of any state by the entries of a call, in these segments.

    start_afresh: makes rows, given per mode, what they were before any entry
    """
    updates, waiting = [], deque(parts)
    try:
        while waiting:
            start, reused = waiting.popleft()
            end = waiting[0].start if waiting else len(batch.value)
            start_afresh(state, reused)
            state, update = update_by(state, Batch(batch.index[start:end], batch.value[start:end]))
            updates.append(update)
    except BaseException:
        for part in waiting:  # these entries are not learned, but no id may have the factors of another
            start_afresh(state, part.reused)
        raise
    return state, joined(updates)


def _start_afresh(model: Model, state: CommitteeState, reused: list[list[int]]) -> None:
    for member, own in zip(model.members, state.members, strict=True):
        for mode, rows in enumerate(reused):
            if rows:
                posterior.restart(own, member.network, member.prior, mode, np.array(rows))
    if model.rule and state.draws:
        for mode, rows in enumerate(reused):
            if rows:
                events.restart(state.draws, model.rule, mode, np.array(rows))
