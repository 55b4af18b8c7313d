"""The attributes of negatives: those of the event, with the drawn node's in place of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Bags
from spidertensor.spider.bags import taken

# (mode, nodes, events) -> the attributes of these nodes of the mode, each as of the event with this number
AttributesOfNodes: TypeAlias = Callable[[int, NDArray[np.int64], NDArray[np.int64]], Bags]


class EventBags:
    """Makes the bags of events and their negatives.

    table_modes: the mode of each attribute table
    """

    def __init__(self, table_modes: Sequence[int], of_nodes: AttributesOfNodes) -> None:
        self.table_modes, self._of_nodes = np.array(table_modes, np.int64), of_nodes

    def times(self, mode: int, nodes: NDArray[np.float64]) -> dict[int, NDArray[np.float64]]:
        """Per attribute table of a mode, how often each row comes if the nodes come this often."""
        number = np.arange(len(nodes))
        bags = self._of_nodes(mode, number, 0 * number)
        each, found = np.repeat(nodes, np.diff(bags.start)), {}
        for table in np.flatnonzero(self.table_modes == mode).tolist():
            own = bags.table == table
            found[table] = np.bincount(bags.row[own], each[own])
        return found

    def made(
        self,
        bags: Bags,
        event: NDArray[np.int64],
        replaced: NDArray[np.int64],
        index: NDArray[np.int64],
        first: int,
    ) -> Bags:
        """The bags of made entries.

        bags:     of the events
        event:    (n,) the event of each entry
        replaced: (n,) the mode whose node was drawn, -1 for the events themselves
        index:    (n, K) the nodes of the entries
        first:    the number of the first event
        """
        own = taken(bags, event)
        entry = np.repeat(np.arange(len(event)), np.diff(own.start))
        stays = self.table_modes[own.table] != replaced[entry]
        entries, parts = [entry[stays]], [[each[stays] for each in own[1:]]]
        for mode in np.unique(replaced[replaced >= 0]).tolist():
            rows = np.flatnonzero(replaced == mode)
            drawn = self._of_nodes(mode, index[rows, mode], first + event[rows])
            entries.append(np.repeat(rows, np.diff(drawn.start)))
            parts.append(list(drawn[1:]))
        entry = np.concatenate(entries)
        order = np.argsort(entry, kind="stable")
        start = np.concatenate([[0], np.cumsum(np.bincount(entry, minlength=len(event)))])
        return Bags(start, *(np.concatenate(each)[order] for each in zip(*parts, strict=True)))
