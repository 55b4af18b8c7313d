"""What a model knows of each node of a mode, as columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.fitted import Fitted
from spidertensor.spider import posterior
from spidertensor.spider.posterior import factor_prior_var


def node_table(fitted: Fitted, mode: int, ids: Sequence[Any]) -> dict[str, NDArray[Any]]:
    """Columns with a row for each node, as means over the committee: see Insight.nodes"""
    n, scale = len(ids), fitted.scaling.scale
    mean, square, known, log_noise = np.zeros((4, n))
    noisy = 0.0  # weight of the members that know the noise of a node
    for member, whole, weight in zip(
        fitted.model.members, fitted.state.members, fitted.state.weights.tolist(), strict=True
    ):
        state, network = posterior.trim(whole), member.network
        if network.bias:
            factor, unit = state.posterior.factors[mode], float(state.stream.scale)
            bias, var = unit * factor.mean[:n, 0].astype(float), unit**2 * factor.var[:n, 0].astype(float)
            mean += weight * bias
            square += weight * (var + bias**2)
            known += weight * (1 - factor.var[:n, 0] / factor_prior_var(network, member.prior, mode)[0])
        if state.posterior.log_noise:
            log_noise += weight * state.posterior.log_noise[mode].mean[:n]
            noisy += weight
    names = np.empty(n, object)
    names[:] = list(ids)
    entries, last = fitted.tally.of_nodes(mode, n)
    table = {
        "id": names,
        "entries": entries,
        "last": last,
        "bias": scale * mean,
        "std": scale * np.sqrt(np.maximum(square - mean**2, 0.0)),
        "known": np.clip(known, 0.0, 1.0),
    }
    return table | ({"noise": np.exp(log_noise / noisy / 2)} if noisy else {})
