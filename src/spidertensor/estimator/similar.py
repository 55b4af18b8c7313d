"""Find the nodes of a mode that do to predictions what a given node does: mathematics.md section 25.

e[j, c] = f of node j in situation c, a draw of nodes in all other modes
d[j, c] = e[j, c] - mean_c e[j] - (mean_j e[., c] - mean e)     what j does beside its bias
score   = 1 - sum_c (d[i, c] - d[j, c])^2 / sum_c (d[i, c]^2 + d[j, c]^2)     1: the same, 0: unrelated
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.fitted import Fitted
from spidertensor.spider.custom_network import CustomSizes
from spidertensor.spider.quick_means import one_blas_thread, quick_means

SITUATIONS = 256  # at most
MOST_PREDICTIONS = 20_000_000  # with more nodes there are fewer situations, at least FEWEST
FEWEST = 16
SEED = 0  # of the situations: the same question has the same answer


class Similar(NamedTuple):
    """A node like another.

    score:    1 if both do the same to every prediction beside their biases, 0 if these have nothing in
              common, negative if they are opposed
    distance: root mean squared difference of the predictions for both, biases included, in the units of f
    """

    id: Any
    score: float
    distance: float


def similar_nodes(fitted: Fitted, over: int, node: int, n: int) -> list[Similar]:
    """The n nodes of mode `over` that are most like one of its nodes, best first."""
    effects = _effects(fitted, over)
    distance = np.sqrt(np.mean((effects - effects[node]) ** 2, axis=1))
    own = effects - effects.mean(axis=1, keepdims=True)
    own -= own.mean(axis=0)
    size = np.einsum("jc,jc->j", own, own)
    both = size + size[node]
    score = np.divide(2 * own @ own[node], both, out=np.zeros(len(own)), where=both > 0)
    order = np.argsort(-score, kind="stable")
    best = order[order != node][: max(n, 0)]
    ids, scale = fitted.nodes[over].ids, fitted.scaling.scale
    return [Similar(ids[each], float(score[each]), scale * float(distance[each])) for each in best]


def _effects(fitted: Fitted, over: int) -> NDArray[np.float64]:
    """(nodes, situations) what the committee predicts for each node of the mode, in the model's units."""
    n = len(fitted.nodes[over])
    n_situations = int(np.clip(MOST_PREDICTIONS // max(n, 1), FEWEST, SITUATIONS))
    rng, nodes = np.random.default_rng(SEED), np.arange(n)
    drawn = [
        rng.integers(len(each), size=n_situations) if len(each) else np.full(n_situations, -1)
        for each in fitted.nodes
    ]
    effects = np.empty((n, n_situations))
    with one_blas_thread():
        for c in range(n_situations):
            numbers = [nodes if mode == over else each[c : c + 1] for mode, each in enumerate(drawn)]
            effects[:, c] = _means(fitted, numbers)
    return effects


def _means(fitted: Fitted, numbers: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
    """numbers: per mode, the nodes of all entries, or one node for all of them"""
    described = fitted.columns is not None and fitted.columns.tables
    custom = any(isinstance(member.network, CustomSizes) for member in fitted.model.members)
    if described or custom:
        index = np.stack(np.broadcast_arrays(*numbers), axis=1)
        bags = None
        if fitted.columns is not None and described:  # what the model remembers of these nodes
            bags = fitted.columns.bags(fitted.columns.check({}, len(index)), index, learn=False)
        return fitted.model.method.predict(fitted.state, index, bags).mean
    total = np.zeros(1)
    for member, state, weight in zip(
        fitted.model.members, fitted.state.members, fitted.state.weights.tolist(), strict=True
    ):
        f = quick_means(state, member.network, numbers).astype(np.float64)
        total = total + weight * (float(state.stream.shift) + float(state.stream.scale) * f)
    return total
