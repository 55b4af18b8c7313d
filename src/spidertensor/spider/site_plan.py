"""How the sites of a history stay within bounds: mathematics.md section 20.

Entries of a part share sites, and nodes repeat in a part, so larger parts need fewer sites. Where the
largest are not enough, the nodes that come most often store none and give back a share of what they know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_BYTES = 8 * 2**30  # of the sites of all members
FEWEST_LARGE_PARTS = 25  # as few as this were no worse
OFTEN = (1_000, 100, 1)  # entries of a node from which on it stores no sites: the first that suffices
NEVER = np.iinfo(np.int64).max
ELEMENT_BYTES = 4  # two numbers of 16 bits


class SitePlan(NamedTuple):
    """part_entries: how many entries a part has
    n_parts:      how many there are
    often:        nodes with at least so many entries store no sites
    rows:         per table, rows with sites that are expected, of all parts together
    """

    part_entries: int
    n_parts: int
    often: int
    rows: tuple[float, ...]

    @property
    def all_by_share(self) -> bool:
        return self.often == OFTEN[-1]

    def n_bytes(self, row_elements: Sequence[int], weights: int) -> int:
        """How large the sites are, if rows of the tables and the network have these numbers of elements."""
        elements = sum(n * each for n, each in zip(self.rows, row_elements, strict=True))
        return round(ELEMENT_BYTES * (elements + self.n_parts * weights))


def planned(
    counts: Sequence[NDArray[np.int64]],
    row_elements: Sequence[int],
    weights: int,
    n_entries: int,
    part_entries: int,
) -> SitePlan:
    """The smallest parts whose sites are not too large.

    counts:       per table, how often each row comes
    row_elements: per table, elements of a row, of all members
    weights:      elements of the networks, of all members
    part_entries: of the smallest parts
    """
    size, sizes = part_entries, [part_entries]
    while n_entries // (2 * size) >= FEWEST_LARGE_PARTS:
        size *= 2
        sizes.append(size)
    choices = [*((size, NEVER) for size in sizes), *((sizes[-1], often) for often in OFTEN[:-1])]
    plans = (_plan(counts, n_entries, *choice) for choice in choices)
    fitting = (plan for plan in plans if plan.n_bytes(row_elements, weights) <= MOST_BYTES)
    return next(fitting, _plan(counts, n_entries, sizes[0], OFTEN[-1]))


def _plan(counts: Sequence[NDArray[np.int64]], n_entries: int, part_entries: int, often: int) -> SitePlan:
    n_parts = -(-n_entries // part_entries)
    rows = tuple(_expected_rows(times[times < often], n_parts) for times in counts)
    return SitePlan(part_entries, n_parts, often, rows)


def _expected_rows(times: NDArray[np.int64], n_parts: int) -> float:
    """Rows of all parts together, if entries fall into parts at random; fewer if those of a node are near."""
    return float((n_parts * -np.expm1(times * np.log1p(-1 / n_parts))).sum()) if n_parts > 1 else len(times)
