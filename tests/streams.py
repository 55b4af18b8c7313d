"""Entries to learn, as estimators take them."""

from __future__ import annotations

import numpy as np


def entries(n: int, nodes=12, seed: int = 0, *, first=0, noise: float = 0.1, binary: bool = False):
    """Two modes and values that depend on both: X and y.

    first, nodes: the ids of a mode are from `first` up to before `nodes`; one number for both modes, or two
    """
    rng = np.random.default_rng(seed)
    X = rng.integers(first, nodes, size=(n, 2))
    y = np.sin(X[:, 0]) + np.cos(X[:, 1]) + noise * rng.normal(size=n)
    return X, (y > 0).astype(int) if binary else y
