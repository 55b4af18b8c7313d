"""Rings: the last few nodes of another mode that each node occurred with, oldest first.

ring:   (nodes, size) the slots of each node
first:  (nodes,) the oldest slot
length: (nodes,) slots in use; a slot of -1 has been emptied and counts for nothing
"""

from __future__ import annotations

import numpy as np

from spidertensor.spider.compiled import COMPILE, kernel


@kernel(**COMPILE)
def read_and_push(ring, first, length, own, other, place, count, row, weight):
    """Write the bag of each entry, then push its node, entry by entry. Return the number of elements.

    own:    (n,) nodes that have rings; -1 or beyond the rings for none
    other:  (n,) nodes to push; empty to push nothing
    place:  (nodes of the other mode,) scratch, all -1, as it is left
    count:  (n,) elements of each entry; row, weight: all of them, with room for the longest rings
    """
    total, size = 0, ring.shape[1]
    for entry in range(len(own)):
        node = own[entry]
        if node < 0 or node >= len(length):
            count[entry] = 0
            continue
        begin, filled = total, 0
        for i in range(length[node]):
            seen = ring[node, (first[node] + i) % size]
            if seen < 0:
                continue
            filled += 1
            if place[seen] < 0:
                place[seen], row[total], weight[total] = total, seen, 0
                total += 1
            weight[place[seen]] += 1
        for i in range(begin, total):
            place[row[i]] = -1
            weight[i] /= np.sqrt(filled)
        count[entry] = total - begin
        if len(other):
            if length[node] < size:
                ring[node, (first[node] + length[node]) % size] = other[entry]
                length[node] += 1
            else:
                ring[node, first[node]] = other[entry]
                first[node] = (first[node] + 1) % size
    return total
