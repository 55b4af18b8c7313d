"""Modes with a limited number of nodes: in a full mode a new id replaces the node least recently learned.

Recency follows the order of the entries, so it does not depend on how they are split into calls. An evicted
node is forgotten: its id becomes unknown, and its row is reset to the prior.

Ids are mapped for a whole call before its first entry is learned, so a row may belong to one id in the first
entries of a call and to another in later ones. A call is therefore learned in segments: no row has two ids
within a segment, and rows with a new id are reset at its start.

Used only if the model has a limit (`Fitted.bounded`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.ids import BLOCK, NodeIndex, id_of_key, key_of, keys_of
from spidertensor.estimator.inputs import Column
from spidertensor.estimator.parameters import Model
from spidertensor.method import Batch, Update, joined
from spidertensor.spider import events, posterior
from spidertensor.spider.committee import CommitteeState, updated
from spidertensor.spider.forecasts import MemberForecasts

State = TypeVar("State")


class BoundedIndex(NodeIndex):
    """A NodeIndex of at most `limit` nodes. The dict is ordered by recency, oldest first; no lookup table."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._numbers: OrderedDict[Any, int] = OrderedDict()  # pyright: ignore[reportIncompatibleVariableOverride]
        self._limit = limit
        # New ids of the latest call: entry, number, the key that had that number before (or None), new key
        self._new: list[tuple[int, int, Any, Any]] = []

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def ids(self) -> list[Any]:
        ids: list[Any] = [None] * len(self)
        for key, number in self._numbers.items():
            ids[number] = id_of_key(key)
        return ids

    def truncate(self, n: int) -> None:
        """Undo the latest `find_or_add`, except for the changed recency of known ids."""
        for _, number, old, new in reversed(self._new):
            del self._numbers[new]
            if old is not None:
                self._numbers[old] = number
                self._numbers.move_to_end(old, last=False)
                self.evicted -= 1
        self._new = []

    def evictions(self) -> NDArray[np.int64]:
        """(evictions in the latest call, 2) the entry that needed a row, and the row."""
        found = [(place, number) for place, number, old, _ in self._new if old is not None]
        return np.array(found, np.int64).reshape(-1, 2)

    def settle(self) -> None:
        """Commit the latest call: it can no longer be undone."""
        self._new = []

    def ids_at(self, numbers: NDArray[np.int64]) -> list[Any]:
        ids = self.ids
        return [ids[number] for number in numbers.tolist()]

    def without(self, numbers: set[int]) -> BoundedIndex:
        kept = [number for number in range(len(self)) if number not in numbers]
        moved = dict(zip(kept, range(len(kept)), strict=True))
        twin = BoundedIndex(self._limit)
        twin.evicted = self.evicted
        items = ((key, moved[number]) for key, number in self._numbers.items() if number in moved)
        twin._numbers = OrderedDict(items)
        return twin

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The ids, as in NodeIndex, their numbers in order of recency, and how many were evicted."""
        order = np.fromiter(self._numbers.values(), np.int64, len(self))
        return super().to_arrays() | {"order": order, "evicted": np.array(self.evicted, np.int64)}

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]], limit: int) -> BoundedIndex:
        """The inverse of `to_arrays`. ValueError for anything it does not write."""
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
        index._numbers = OrderedDict((key_of(ids[number]), number) for number in order.tolist())
        return index

    def _map(self, ids: Column, *, add: bool) -> NDArray[np.int64]:
        if add:
            self._new = []
        numbers = np.empty(len(ids), np.int64)
        for start in range(0, len(ids), BLOCK):
            block = ids[start : start + BLOCK]
            block = block.tolist() if isinstance(block, np.ndarray) else keys_of(block)
            found = self._see(block, start) if add else self._ask_dict(block, add=False)
            numbers[start : start + len(block)] = found
        return numbers

    def _see(self, keys: Sequence[Any], start: int) -> list[int]:
        """The numbers of the ids of a call from entry `start` on, adding new ids and updating recency."""
        get, move_to_end = self._numbers.get, self._numbers.move_to_end
        numbers = []
        for key in keys:
            number = get(key)
            if number is None:
                number = self._admit(key, start + len(numbers))
            else:
                move_to_end(key)
            numbers.append(number)
        return numbers

    def _admit(self, key: Any, place: int) -> int:
        known, old = self._numbers, None
        if len(known) < self._limit:
            number = len(known)
        else:
            old, number = known.popitem(last=False)
            self.evicted += 1
        known[key] = number
        self._new.append((place, number, old, key))
        return number


def limits_of(max_nodes: int | list[int | None] | None, n_modes: int) -> list[int | None]:
    """The limit of each mode from the parameter `max_nodes`; None is no limit."""
    limits = list(max_nodes) if isinstance(max_nodes, list) else [max_nodes] * n_modes
    if len(limits) != n_modes:
        raise ValueError(f"max_nodes has {len(limits)} limits, but the entries have {n_modes} modes")
    return limits


def empty_nodes(max_nodes: int | list[int | None] | None, n_modes: int) -> list[NodeIndex]:
    limits = limits_of(max_nodes, n_modes)
    return [NodeIndex() if limit is None else BoundedIndex(limit) for limit in limits]


class Segment(NamedTuple):
    """The entries of a call from `start` to the next segment; `reused`: rows with a new id, per mode, and
    rows of attribute tables that start afresh with them."""

    start: int
    reused: list[list[int]]


class Numbered(NamedTuple):
    """What a call has learned: its update, the (n, K) rows of its nodes, and where rows changed ids.

    With this, another model can learn the same entries without ids.
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
    """Split the entries just mapped to `index` into segments; [] if no row has changed ids.

    entries: number of entries learned before this call
    at_once: reset a row only at the entry that needs it, because events before it may draw the row, or nodes
             before it may remember it as recent

    A new segment begins when a row changes ids that an earlier entry of the segment uses under its old id.
    An engine that learns in batches must see the same batches however the stream is split into calls, so a
    segment ends within a batch only if that batch itself uses the row, and otherwise where the batch begins.
    """
    events, cuts = [], [Segment(0, [[] for _ in nodes])]
    for mode, each in enumerate(nodes):
        if isinstance(each, BoundedIndex) and len(found := each.evictions()):
            place, row = found.T
            last = place - 1 if at_once else _previous(index[:, mode])[place]
            # rows not used before in this call may be reset at its start
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
    """(n,) index of the previous occurrence of each row; -1 if there is none."""
    order = np.argsort(rows, kind="stable")
    same = rows[order[1:]] == rows[order[:-1]]
    previous = np.full(len(rows), -1)
    previous[order[1:][same]] = order[:-1][same]
    return previous


def learn(
    model: Model,
    state: CommitteeState,
    batch: Batch,
    parts: Sequence[Segment],
    forecasts: MemberForecasts | None = None,
) -> tuple[CommitteeState, Update]:
    """Update a model with the entries of a call, in one or more segments. forecasts: see CommitteeMethod"""
    done = 0

    def update(state: CommitteeState, part: Batch) -> tuple[CommitteeState, Update]:
        nonlocal done
        first, done = done, done + len(part.value)
        return updated(model.method, state, part, None if forecasts is None else forecasts.part(first, done))

    return in_segments(update, partial(start_afresh, model), state, batch, parts)


def in_segments(
    update_by: Callable[[State, Batch], tuple[State, Update]],
    start_afresh: Callable[[State, list[list[int]]], None],
    state: State,
    batch: Batch,
    parts: Sequence[Segment],
) -> tuple[State, Update]:
    """Update any state with the entries of a call, in segments.

    start_afresh: resets rows, given per mode, to the prior
    """
    updates, waiting = [], deque(parts)
    try:
        while waiting:
            start, reused = waiting.popleft()
            end = waiting[0].start if waiting else len(batch.value)
            start_afresh(state, reused)
            state, update = update_by(state, batch.part(start, end))
            updates.append(update)
    except BaseException:
        for part in waiting:  # not learned, but no id may keep the factors of another
            start_afresh(state, part.reused)
        raise
    return state, joined(updates)


def start_afresh(model: Model, state: CommitteeState, reused: list[list[int]]) -> None:
    """Reset rows, given per mode and attribute table, to the prior."""
    for member, own in zip(model.members, state.members, strict=True):
        for mode, rows in enumerate(reused):
            if rows:
                posterior.restart(own, member.network, member.prior, mode, np.array(rows))
    if model.rule and state.draws:
        for mode, rows in enumerate(reused):
            if rows:
                events.restart(state.draws, model.rule, mode, np.array(rows))
