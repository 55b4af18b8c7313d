"""The best nodes of a mode: by their expected value, optimistically, or by a draw from the posterior."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.fitted import Fitted, intervals
from spidertensor.method import Prediction
from spidertensor.spider import posterior


class Recommendation(NamedTuple):
    """A node, the expected value (a probability for 0/1 values), and how uncertain that is.

    std is that of the expected value, without the noise of an observation; for 0/1 values it is that of f.
    low, high: the interval of an observation, if it was asked for
    """

    id: Any
    mean: float
    std: float
    low: float | None = None
    high: float | None = None


def best_nodes(
    fitted: Fitted,
    over: int,
    ids: dict[int, Any],
    *,
    n: int,
    explore: str,
    seed: int | None,
    coverage: float | None,
) -> list[Recommendation]:
    """The n best nodes of mode `over`, best first, for the ids of all other modes.

    n, explore, seed, coverage: see SpiderRegressor.recommend
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
        score = _drawn(fitted, over, numbers, rng)
    best = np.argsort(-score, kind="stable")[: max(n, 0)]
    raw_ids, columns = fitted.nodes[over].ids, [mean[best], np.sqrt(in_units.var[best])]
    if coverage is not None:
        columns += intervals(fitted, Prediction(*(part[best] for part in in_units)), coverage)
    rows = zip(best, *(column.tolist() for column in columns), strict=True)
    return [Recommendation(raw_ids[node], *numbers) for node, *numbers in rows]


def _drawn(
    fitted: Fitted, over: int, numbers: list[NDArray[np.int64]], rng: np.random.Generator
) -> NDArray[np.float64]:
    """(nodes of `over`,) f by one joint draw of all weights and factors, of a member drawn by its weight."""
    weights = fitted.state.weights
    m = int(rng.choice(len(weights), p=weights)) if len(weights) > 1 else 0
    member, state = fitted.model.members[m], fitted.state.members[m]
    drawn = posterior.sample(state, member.network, member.prior, numbers, rng)
    own = [np.arange(len(rows)) if mode == over else np.zeros(1, int) for mode, rows in enumerate(numbers)]
    return member.method.predict(drawn, np.stack(np.broadcast_arrays(*own), axis=1)).mean
