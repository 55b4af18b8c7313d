"""The floor of rankings that knows what goes together: nodes whose users had what this user had.

The score of a node is the sum of its cosines with the nodes that the user had, each taken as the set of its
users. It only compares nodes, so its log evidence is meaningless. Nothing is chosen, and nothing is learned
but who had what.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.evaluation.popularity import TINY_VAR
from spidertensor.method import Bags, Batch, Method, Prediction, Update, check_batch, check_index


class UserItems(NamedTuple):
    """Sparse matrices (users, nodes), or () without events.

    had:  1 where a user had a node
    unit: the same, each node's users scaled to length 1
    """

    had: Any
    unit: Any


def item_cosine(n_modes: int, user: int, over: int) -> Method:
    """Learns all events at once. user, over: numbers of the modes; others do not count"""

    def init(seed: int) -> UserItems:
        return UserItems((), ())

    def update(state: UserItems, batch: Batch) -> tuple[UserItems, Update]:
        from scipy.sparse import csr_matrix  # takes a while to load

        check_batch(batch, n_modes)
        users, nodes = batch.index[:, user], batch.index[:, over]
        had = csr_matrix((np.ones(len(users)), (users, nodes)))
        had.data[:] = 1  # repeated events were added up
        unit = had.multiply(1 / np.sqrt(np.maximum(had.sum(axis=0), 1))).tocsr()
        return UserItems(had, unit), Update(*np.zeros((4, len(users))), rejected=0)

    def scores(state: UserItems, number: int) -> NDArray[np.float64]:
        """How near each node is to what the user had, and last 0 for an unknown node."""
        if isinstance(state.had, tuple) or not 0 <= number < state.had.shape[0]:
            return np.zeros(1)
        found = (state.unit @ state.had[number].T).T @ state.unit
        return np.append(found.toarray()[0], 0.0)

    def predict(state: UserItems, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
        check_index(index, n_modes, bags)
        f = np.zeros(len(index))
        for each in np.unique(index[:, user]):
            rows = index[:, user] == each
            f[rows] = _at(scores(state, int(each)), index[rows, over])
        return Prediction(f, np.full(len(f), TINY_VAR), np.zeros(len(f)))

    def quick(state: UserItems, numbers: Sequence[NDArray[np.int64]]) -> Prediction:
        f = _at(scores(state, int(numbers[user][0])), numbers[over])
        return Prediction(f, np.full(len(f), TINY_VAR), np.zeros(len(f)))

    return Method(init, update, predict, unit="all", quick=quick)


def _at(scores: NDArray[np.float64], nodes: NDArray[np.integer]) -> NDArray[np.float64]:
    return scores[np.where((nodes >= 0) & (nodes < len(scores) - 1), nodes, -1)]
