"""JAX in float64, and linear networks, of which everything is known exactly."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np

from cases import PRIOR, Case, fix, fixed_noise, nodes_of, start, stream
from naive import as_float64
from spidertensor.method import Batch
from spidertensor.spider import posterior


@contextmanager
def algorithm(x64: bool = True):
    """JAX computes in float64, which shows the algorithm without rounding."""
    import jax

    with jax.enable_x64(x64):
        yield


def regression(mean, cov, G, y, noise):
    """Exact posterior of y = G w + noise, w ~ N(mean, cov)."""
    gain = cov @ G.T @ np.linalg.inv(G @ cov @ G.T + noise * np.eye(len(y)))
    return mean + gain @ (y - G @ mean), cov - gain @ G @ cov


def linear(free: str) -> tuple[posterior.State, Batch, np.ndarray, np.ndarray, np.ndarray]:
    """f is linear in what is `free`, all else is known: the state, a batch, and G, mean and var of it."""
    case = Case((3, 5), (), "tanh", "gaussian", noise_memory=50.0)
    state = posterior.grow(start(case), case.network, PRIOR, nodes_of(case))
    state, batch = as_float64(fixed_noise(state, 0.3)), stream(case, 40)
    factors, weights = state.posterior.factors, state.posterior.weights[0]
    if free == "weights":
        for factor in factors:
            fix(factor)
        x = [factor.mean[rows] for factor, rows in zip(factors, batch.index.T, strict=True)]
        G = np.concatenate([*x, np.ones((40, 1))], axis=1) / 3  # sqrt(3 + 5 + 1)
        return state, batch, G, weights.mean[0].copy(), weights.var[0].copy()
    fix(weights)
    W = weights.mean[0] / 3
    G = [np.zeros((40, *factor.mean.shape)) for factor in factors]
    for rows, g, part in zip(batch.index.T, G, (W[:3], W[3:8]), strict=True):
        g[np.arange(40), rows] = part
    batch = Batch(batch.index, batch.value + W[8])  # so that G carries all of f but a constant
    return (
        state,
        batch,
        np.concatenate([g.reshape(40, -1) for g in G], axis=1),
        np.concatenate([factor.mean.ravel() for factor in factors]),
        np.concatenate([factor.var.ravel() for factor in factors]),
    )
