"""The floor of rankings: nodes ranked by their number of events.

f is the sum over the modes of log(1 + events of the node). Other modes add the same to all candidates of a
mode, so any mode is ranked by popularity. f only compares nodes and is not the probability of an event, so
its log evidence is meaningless.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import HUGE, Bags, Batch, Method, Prediction, Update, check_batch, check_index
from spidertensor.spider.likelihoods import PROBIT
from spidertensor.spider.posterior import with_room

TINY_VAR = 1e-9  # counts are exact


class NodeEvents(NamedTuple):
    so_far: NDArray[np.float64]  # (nodes,)


class PopularityState(NamedTuple):
    modes: tuple[NodeEvents, ...]


def popularity(n_modes: int) -> Method:
    """Counts events, batch by batch; only predictions inside a batch depend on how batches are cut."""

    def init(seed: int) -> PopularityState:
        return PopularityState(tuple(NodeEvents(np.zeros(0)) for _ in range(n_modes)))

    def update(state: PopularityState, batch: Batch) -> tuple[PopularityState, Update]:
        check_batch(batch, n_modes)
        before = predict(state, batch.index)
        log_evidence = PROBIT.log_evidence(batch.value, *before)
        good = np.abs(batch.value) < HUGE
        refused = int((~good).sum())
        needed = batch.index.max(axis=0, initial=-1) + 1
        modes = with_room(state.modes, needed, lambda mode, first, last: NodeEvents(np.zeros(last - first)))
        counted = [
            NodeEvents(each.so_far + np.bincount(nodes, np.where(good, batch.value, 0.0), len(each.so_far)))
            for each, nodes in zip(modes, batch.index.T, strict=True)
        ]
        update = Update(*before, log_evidence, rejected=refused, refused=refused)
        return PopularityState(tuple(counted)), update

    def predict(state: PopularityState, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
        check_index(index, n_modes, bags)
        f = np.zeros(len(index))
        for each, nodes in zip(state.modes, index.T, strict=True):
            known = (nodes >= 0) & (nodes < len(each.so_far))
            f += np.log1p(np.append(each.so_far, 0.0)[np.where(known, nodes, -1)])
        return Prediction(f, np.full(len(f), TINY_VAR), np.zeros(len(f)))

    return Method(init, update, predict, unit="batch")
