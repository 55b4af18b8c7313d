"""Several passes over a history of events, with other negatives in each: mathematics.md section 20.

A part of such a history touches other rows at each visit. So it keeps, beside its sites, the rows that it
spoke to. At the next visit it takes back all it said to them, and then learns its events with new negatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Batch
from spidertensor.spider import popularity
from spidertensor.spider.event_bags import EventBags
from spidertensor.spider.events import Draws, Made, Rule, commit, made
from spidertensor.spider.parts import History, Part
from spidertensor.spider.posterior import State
from spidertensor.spider.sites import keep
from spidertensor.spider.visitor import Elements, Visitor, elements_of


class Negatives(NamedTuple):
    """What they are drawn from.

    draws:      the model's own
    key:        that of the draws, the seed of the model
    attributes: makes the bags of negatives, if the model has attributes
    """

    rule: Rule
    draws: Draws
    key: int
    attributes: EventBags | None = None


class EventHistory(History):
    """Events to be learned several times.

    The first pass draws as a stream would, and counts the events in `draws`. Later passes draw from all nodes
    of these events, and count nothing. `counts` are what a later pass is expected to have, rounded up.
    """

    def __init__(
        self,
        read: Callable[[int, int], Batch],
        n_entries: int,
        batch_size: int,
        n_tables: int,
        negatives: Negatives,
    ) -> None:
        self._negatives, self._first = negatives, int(negatives.draws.events)
        self.made_entries = 1 + negatives.rule.negatives
        super().__init__(read, n_entries, batch_size, n_tables)

    def _entries(self, number: int, visit: int) -> Batch:
        """The events of a part and their negatives; for the first time only once, and in order."""
        events = super()._entries(number, visit)
        rule, draws, key, attributes = self._negatives
        if visit == 0:
            entries = made(draws, rule, key, events.index)
            commit(draws, rule, events.index)
        else:
            entries = self._redrawn(events.index, number, visit)
        return entries.like(events, attributes)

    def _redrawn(self, index: NDArray[np.int64], number: int, visit: int) -> Made:
        (rule, _, key, _), seen = self._negatives, np.array([len(nodes) for nodes in self._known])
        for mode, nodes in zip(rule.over, self._known, strict=True):
            # to their places among those with events
            index[:, mode] = np.searchsorted(nodes, index[:, mode])
        draws = Draws(np.array(self._first + number * self.part_entries), seen, self._popularity)
        entries = made(draws, rule, key, index, visit)
        for mode, nodes in zip(rule.over, self._known, strict=True):
            entries.batch.index[:, mode] = nodes[entries.batch.index[:, mode]]
        return entries

    def _counted(self, n_tables: int) -> tuple[list[NDArray[np.int64]], list[NDArray[Any]]]:
        events, by_weight = super()._counted(n_tables)
        rule = self._negatives.rule
        self._known = [np.flatnonzero(events[mode]) for mode in rule.over]
        of = [events[mode][nodes] for mode, nodes in zip(rule.over, self._known, strict=True)]
        self._popularity = tuple(popularity.from_times(each, rule.power) for each in of if rule.power)
        counts = [np.ceil(each).astype(np.int64) for each in self._expected(events, events)]
        return counts, counts if by_weight is events else self._expected(events, by_weight)

    def _expected(
        self, events: list[NDArray[np.int64]], times: list[NDArray[Any]]
    ) -> list[NDArray[np.float64]]:
        """How often the rows of each table count in events and negatives, if in events they count `times`."""
        rule, draws, _, attributes = self._negatives
        n_tables = len(events)
        each_mode = rule.negatives / len(rule.over)  # negatives with another node there, in the mean
        n_modes = n_tables - (0 if attributes is None else len(attributes.table_modes))
        modes = [*range(n_modes), *(() if attributes is None else attributes.table_modes.tolist())]
        counts = [
            own.astype(np.float64) * (self.made_entries - each_mode * (mode in rule.over))
            for own, mode in zip(times, modes, strict=True)
        ]
        for mode, seen in zip(rule.over, draws.seen.tolist(), strict=True):
            others, shares = times[mode].sum() - times[mode], popularity.draw_shares(events[mode], rule.power)
            drawn = each_mode * others * shares[:-1]
            drawn = np.append(drawn, np.zeros(max(0, seen - len(drawn))))  # seen before this history
            counts[mode] = _sum(counts[mode], drawn)
            if attributes is not None:
                for table, own in attributes.times(mode, drawn).items():
                    counts[n_modes + table] = _sum(counts[n_modes + table], own)
        return counts


def _sum(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of two arrays, the shorter one filled up with zeros."""
    total = np.zeros(max(len(one), len(other)))
    total[: len(one)] += one
    total[: len(other)] += other
    return total


class EventVisitor(Visitor):
    """A Visitor that keeps for each part which rows it touched last, and its sites there.

    What is stored of a part: how many rows of each table, the rows, and the sites; rows as int32.
    """

    def _elements(self, state: State, part: Part) -> list[Elements]:
        """All rows that the part touched at its last visit or touches now."""
        stored, now = self.sites.get(part.number), self._with_sites(part)
        if stored is None:
            return elements_of(self._places(state, now), None)
        last, sites = self._unpacked(stored)
        either = [np.union1d(*rows) for rows in zip(last, now, strict=True)]
        found = elements_of(self._places(state, either), None)
        before = elements_of(self._places(state, last), sites)
        for element, old in zip(found, before, strict=True):
            element.site[np.searchsorted(element.rows, old.rows)] = old.site
        return found

    def _keep(self, part: Part, elements: list[Elements]) -> None:
        rows, sites, touched = [], [], self._with_sites(part)
        for table, each in enumerate(elements):
            now = touched[table] if table < len(touched) else each.rows
            is_now = np.isin(each.rows, now, assume_unique=True)
            site = np.ascontiguousarray(each.site[is_now])
            others = np.ascontiguousarray(each.others[:, is_now])
            keep(*each[:2], each.rows[is_now], *each[3:5], site, others)
            each.site[is_now] = site
            # The others were taken back and have no site any more, but for elements that had no cavity.
            stays = np.isnan(each.others[0]) & ~is_now[:, None]
            each.site[~is_now] *= stays[~is_now][:, None]
            left = is_now | stays.any(axis=1)
            rows.append(each.rows[left])
            sites.append(each.site[left].reshape(-1))
        rows = rows[: len(touched)]
        numbers = np.concatenate([[len(each) for each in rows], *rows]).astype(np.int32)
        self.sites.put(part.number, np.concatenate([numbers.view(np.uint16), *sites]))

    def _unpacked(self, stored: NDArray[np.uint16]) -> tuple[list[NDArray[np.int64]], NDArray[np.uint16]]:
        """Rows of each table, and the sites of all tables and layers."""
        n = len(self._by_share)
        lengths = stored[: 2 * n].view(np.int32)
        end = n + int(lengths.sum())
        rows = stored[2 * n : 2 * end].view(np.int32).astype(np.int64)
        return np.split(rows, np.cumsum(lengths)[:-1]), stored[2 * end :]
