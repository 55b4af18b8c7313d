"""How often each node was seen, for draws in proportion to a power of that: mathematics.md section 16.

A node's weight is times ** power, rounded to a multiple of 1/UNIT: sums are exact and do not depend on the
order of summation. A Fenwick tree holds the sums, so updates and searches take log2(nodes) steps.
tree[i - 1] is the sum over the last i & -i of the first i weights.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.spider.compiled import COMPILE, kernel

UNIT = 2.0**20
GROWTH = 1.5  # spare room when the arrays grow


class Popularity(NamedTuple):
    times: NDArray[np.int64]  # (room,)
    tree: NDArray[np.int64]  # (room,)


def empty() -> Popularity:
    return Popularity(np.zeros(0, np.int64), np.zeros(0, np.int64))


def grown(known: Popularity, nodes: int) -> Popularity:
    """The same popularity with room for `nodes` nodes."""
    if nodes <= len(known.times):
        return known
    times, tree = np.zeros((2, int(nodes * GROWTH)), np.int64)
    times[: len(known.times)], tree[: len(known.tree)] = known
    _extend(tree, len(known.tree))
    return Popularity(times, tree)


def from_times(times: NDArray[np.int64], power: float) -> Popularity:
    """Build the popularity from how often each node was seen."""
    return Popularity(times, _tree(times, power))


def draw_shares(times: NDArray[np.int64], power: float) -> NDArray[np.float64]:
    """(nodes + 1,) each node's share of the draws for events of other nodes: section 16's q_i.

    An event of node j draws i with probability w_i / (W - w_j). The last element, for unknown nodes, is 0.
    """
    w = np.append(np.where(times, times.astype(np.float64) ** power, 0.0), 0.0)
    p = np.append(times.astype(np.float64), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = p / (w.sum() - w)
        share = w * (each.sum() - each) / (p.sum() - p)
    return np.nan_to_num(share, nan=0.0, posinf=0.0)


@kernel(**COMPILE)
def weight(times, power):
    return np.int64(UNIT * times**power) if times else np.int64(0)


@kernel(**COMPILE)
def _tree(times, power):
    tree = np.empty(len(times), np.int64)
    for i in range(len(times)):
        tree[i] = weight(times[i], power)
    for i in range(1, len(tree) + 1):
        parent = i + (i & -i)
        if parent <= len(tree):
            tree[parent - 1] += tree[i - 1]
    return tree


@kernel(**COMPILE)
def _extend(tree, known):
    """Fill in the tree for new nodes of weight 0 after the first `known`."""
    for i in range(known + 1, len(tree) + 1):
        low, j = i - (i & -i), i - 1
        while j > low:
            tree[i - 1] += tree[j - 1]
            j -= j & -j


@kernel(**COMPILE)
def set_times(times, tree, node, power, new):
    """Set how often a node was seen; returns its new weight."""
    step = weight(new, power) - weight(times[node], power)
    times[node] = new
    i = node + 1
    while i <= len(tree):
        tree[i - 1] += step
        i += i & -i
    return weight(new, power)


@kernel(**COMPILE)
def count_in(times, tree, nodes, power):
    """Count one more event for each of these nodes."""
    for node in nodes:
        set_times(times, tree, node, power, times[node] + 1)


@kernel(**COMPILE)
def forget(times, tree, nodes, power):
    """Reset the counts of these nodes to 0."""
    for node in nodes:
        set_times(times, tree, node, power, np.int64(0))


@kernel(**COMPILE)
def before(tree, node):
    """Sum of the weights of all nodes before this one."""
    found, i = np.int64(0), node
    while i > 0:
        found += tree[i - 1]
        i -= i & -i
    return found


@kernel(**COMPILE)
def node_at(tree, place):
    """The node with before(node) <= place < before(node) + its weight."""
    step, node = np.int64(1), np.int64(0)
    while step * 2 <= len(tree):
        step *= 2
    while step:
        if node + step <= len(tree) and tree[node + step - 1] <= place:
            node += step
            place -= tree[node - 1]
        step //= 2
    return node
