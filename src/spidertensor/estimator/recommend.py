"""The best nodes of a mode: by their expected value, optimistically, or by a draw from the posterior."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spidertensor.estimator.fitted import Fitted
from spidertensor.spider import posterior


class Recommendation(NamedTuple):
    """A node, the expected value (a probability for 0/1 values), and how uncertain that is.

    std is that of the expected value, without the noise of an observation; for 0/1 values it is that of f.
    """

    id: Any
    mean: float
    std: float


def best_nodes(
    fitted: Fitted, over: int, ids: dict[int, Any], *, n: int, explore: str, seed: int | None
) -> list[Recommendation]:
    """The n best nodes of mode `over`, best first, for the ids of all other modes.

    n, explore, seed: see SpiderRegressor.recommend
    """
    if ids.keys() | {over} != set(range(len(fitted.nodes))) or over in ids:
        raise ValueError("given must name every mode but the one to rank over, each once")
    if explore not in ("mean", "ucb", "thompson"):
        raise ValueError(f'explore must be "mean", "ucb" or "thompson", got {explore!r}')
    every = np.arange(len(fitted.nodes[over]))
    numbers = [every if mode == over else nodes.find([ids[mode]]) for mode, nodes in enumerate(fitted.nodes)]
    model = fitted.model
    prediction = model.method.predict(fitted.state, np.stack(np.broadcast_arrays(*numbers), axis=1))
    in_units = fitted.scaling.user_units(*prediction)
    score = mean = model.likelihood.expected(in_units.mean, in_units.var)
    if explore == "ucb":
        score = prediction.mean + 2 * np.sqrt(prediction.var)
    elif explore == "thompson":
        rng = np.random.default_rng(seed)
        drawn = posterior.sample(fitted.state, model.network, model.prior, numbers, rng)
        own = [every if mode == over else np.zeros(1, np.int64) for mode in range(len(numbers))]
        score = model.method.predict(drawn, np.stack(np.broadcast_arrays(*own), axis=1)).mean
    best = np.argsort(-score, kind="stable")[: max(n, 0)]
    std, raw_ids = np.sqrt(in_units.var), fitted.nodes[over].ids
    return [Recommendation(raw_ids[node], float(mean[node]), float(std[node])) for node in best]
