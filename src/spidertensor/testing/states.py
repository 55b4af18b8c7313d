"""States as arrays, and SPIDER's own, where a check has to look inside."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.evaluation.floors import BiasesState
from spidertensor.spider import posterior
from spidertensor.spider.committee import CommitteeState
from spidertensor.spider.posterior import Gaussian, State


def leaves(tree: Any) -> list[NDArray[Any]]:
    """The arrays of nested tuples, in order."""
    if isinstance(tree, tuple | list):
        return [leaf for branch in tree for leaf in leaves(branch)]
    return [np.asarray(tree)]


def bits(state: Any) -> list[tuple[str, tuple[int, ...], bytes]]:
    """Dtype, shape and bytes of each array, without the spare rows of the library's own states."""
    return [(leaf.dtype.str, leaf.shape, leaf.tobytes()) for leaf in leaves(without_spare_rows(state))]


def members_of(state: Any) -> list[State]:
    """The states of SPIDER models in a state; empty for other methods."""
    if isinstance(state, CommitteeState):
        return list(state.members)
    return [state] if isinstance(state, State) else []


def with_members(state: Any, members: list[State]) -> Any:
    return state._replace(members=tuple(members)) if isinstance(state, CommitteeState) else members[0]


def without_spare_rows(state: Any) -> Any:
    """The states of this library without the rows reserved for nodes to come; any other state as it is."""
    if members_of(state):
        return with_members(state, [posterior.trim(each) for each in members_of(state)])
    if isinstance(state, BiasesState):
        used = zip(state.nodes, state.counts.nodes, strict=True)
        return state._replace(nodes=tuple(Gaussian(node.mean[:n], node.var[:n]) for node, n in used))
    return state
