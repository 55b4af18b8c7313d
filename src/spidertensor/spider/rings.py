"""Rings: the last few nodes of another mode that each node occurred with, oldest first.

ring:   (nodes, size) the slots of each node
first:  (nodes,) the oldest slot
length: (nodes,) slots in use
age:    (nodes, size) the generation that the node in a slot had when it was pushed

generation: (nodes of the other mode,) counts how often a number was given to another id

A slot is void, and counts for nothing, if it is -1 or if its node has a later generation.
"""

from __future__ import annotations

import numpy as np

from spidertensor.spider.compiled import COMPILE, HOT, kernel


@kernel(**HOT)
def _find(row, begin, end, node):
    for i in range(begin, end):
        if row[i] == node:
            return i
    return -1


@kernel(**COMPILE)
def read_and_push(ring, age, first, length, generation, own, other, place, count, row, weight):
    """Write the bag of each entry, then push its node, entry by entry. Return the number of elements.

    own:    (n,) nodes that have rings; -1 or beyond the rings for none
    other:  (n,) nodes to push; empty to push nothing
    place:  (nodes of the other mode,) scratch, all -1; empty to search instead (few entries)
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
            slot = (first[node] + i) % size
            seen = ring[node, slot]
            if seen < 0 or age[node, slot] != generation[seen]:
                continue
            filled += 1
            found = place[seen] if len(place) else _find(row, begin, total, seen)
            if found < 0:
                found, row[total], weight[total] = total, seen, 0
                total += 1
                if len(place):
                    place[seen] = found
            weight[found] += 1
        for i in range(begin, total):
            weight[i] /= np.sqrt(filled)
            if len(place):
                place[row[i]] = -1
        count[entry] = total - begin
        if len(other):
            slot = (first[node] + length[node]) % size  # in a full ring, the oldest
            ring[node, slot], age[node, slot] = other[entry], generation[other[entry]]
            if length[node] < size:
                length[node] += 1
            else:
                first[node] = (first[node] + 1) % size
    return total
