"""Which nodes of a mode are best, by what is expected of them or by how uncertain that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.fitted import Learned, user_units
from spidertensor.method import Prediction
from spidertensor.spider import posterior


class Recommendation(NamedTuple):
    """A node, what is expected of it (a probability for 0/1 values), and how uncertain that is.

    std is that of the expected value, without the noise of one observation; for 0/1 values that of f.
    """

    id: Any
    mean: float
    std: float


Expected = Callable[[Prediction], tuple[NDArray[np.float64], NDArray[np.float64]]]


def best_nodes(
    learned: Learned,
    over: int,
    ids: dict[int, Any],
    expected: Expected,
    *,
    n: int,
    explore: str,
    seed: int | None,
) -> list[Recommendation]:
    """The n best nodes of mode `over`, best first.

    ids: the node of each other mode; expected: mean and std in the terms of the user; the others: as
    SpiderRegressor.recommend takes them
    """
    if ids.keys() | {over} != set(range(len(learned.nodes))) or over in ids:
        raise ValueError("given must name every mode but the one to rank over, each once")
    if explore not in ("mean", "ucb", "thompson"):
        raise ValueError(f'explore must be "mean", "ucb" or "thompson", got {explore!r}')
    every = np.arange(len(learned.nodes[over]))
    rows = [every if mode == over else nodes.find([ids[mode]]) for mode, nodes in enumerate(learned.nodes)]
    network, prior, (_, _, predict, _) = learned.model
    prediction = predict(learned.state, np.stack(np.broadcast_arrays(*rows), axis=1))
    mean, std = expected(user_units(prediction, learned))
    score = mean
    if explore == "ucb":
        score = prediction.mean + 2 * np.sqrt(prediction.var)
    elif explore == "thompson":
        drawn = posterior.sample(learned.state, network, prior, rows, np.random.default_rng(seed))
        own = [every if mode == over else np.zeros(1, np.int64) for mode in range(len(rows))]
        score = predict(drawn, np.stack(np.broadcast_arrays(*own), axis=1)).mean
    best = np.argsort(-score, kind="stable")[: max(n, 0)]
    raw_ids = learned.nodes[over].ids
    return [Recommendation(raw_ids[row], float(mean[row]), float(std[row])) for row in best]
