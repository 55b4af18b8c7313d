"""The contract of everything that learns.

A `Method` is three functions over a plain state: a tuple of arrays, nested in NamedTuples, that holds all
there is to know. The engines and every competitor of the paper are Methods, so that the evaluator, the
command line and the report see one thing.

What every Method promises (tests/test_contract.py holds all of them to it):

- `init(seed)` depends on nothing but the settings it was built with and the seed.
- `update(state, batch)` learns the entries of the batch in their order and returns the new state. The old
  state is dead after the call: its buffers may have been reused. Nodes the state has not seen are added.
  An empty batch changes nothing. How a stream is cut into calls changes nothing either.
- `predict(state, index)` is pure: it adds no node, draws no random number, and answers an unseen node
  (a row beyond the ones the state has, or -1) from the prior.
- Variances are positive and finite. Updates that would break this are rejected and counted, never silent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Batch(NamedTuple):
    """Entries that arrive together: index (n, K) rows of nodes, value (n,)."""

    index: NDArray[np.int64]  # pyright: ignore[reportIncompatibleMethodOverride] (hides tuple.index)
    value: NDArray[np.float64]


class Prediction(NamedTuple):
    """Mean and variance of the latent f, and the variance an observation adds (0 for probit)."""

    mean: NDArray[np.float64]
    var: NDArray[np.float64]
    noise: NDArray[np.float64]


class Update(NamedTuple):
    """What was predicted for each entry just before it was learned, and how well it fitted.

    `noise` is there next to `mean` and `var` because it moves with every entry and an interval needs it.
    """

    mean: NDArray[np.float64]
    var: NDArray[np.float64]
    noise: NDArray[np.float64]
    log_evidence: NDArray[np.float64]
    rejected: int  # elements of the posterior that an entry did not move, to keep a variance positive
    refused: int = 0  # entries that were not learned: their values have no finite evidence
    clipped: int = 0  # entries of which the residual was clipped before it was learned


class Method(NamedTuple):
    init: Callable[[int], Any]
    update: Callable[[Any, Batch], tuple[Any, Update]]
    predict: Callable[[Any, NDArray[np.integer]], Prediction]
    streaming: bool = True  # False: sees all entries in one update (CP-WOPT)


def check_batch(batch: Batch, n_modes: int) -> None:
    """A compiled loop checks no bounds: what it learns from must fit."""
    check_index(batch.index, n_modes)
    if batch.value.shape != batch.index.shape[:1]:
        raise ValueError(f"values of shape {batch.value.shape}, but an index of shape {batch.index.shape}")
    if batch.index.min(initial=0) < 0:
        raise ValueError("a batch to learn from has a negative row")


def check_index(index: NDArray[np.integer], n_modes: int) -> None:
    if index.shape[1:] != (n_modes,):
        raise ValueError(f"{n_modes} modes, but an index of shape {index.shape}")
