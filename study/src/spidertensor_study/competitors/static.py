"""What the updates of methods that see all entries at once have in common: everything but the fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spidertensor.method import Batch, Prediction, Update, check_batch
from spidertensor.spider.likelihoods import Likelihood


def learns_once(
    name: str,
    likelihood: Likelihood,
    shape: tuple[int, int],
    largest: float,
    predict: Callable[..., Prediction],
    fitted: Callable[[Any, Batch], Any],
) -> Callable[[Any, Batch], tuple[Any, Update]]:
    """The `update` of a static Method. The state keeps no entries, so a second update is an error.

    One in which no value is good does not count as the first; one whose fit came to nothing does.

    shape:   modes and rank: what an entry that is refused would have moved
    largest: values that are not smaller are absurd, and their entries are refused
    fitted:  state, good entries -> the state that has learned them, None if that is not finite
    """
    n_modes, rank = shape

    def update(state: Any, batch: Batch) -> tuple[Any, Update]:
        check_batch(batch, n_modes)
        before = predict(state, batch.index)
        log_evidence = likelihood.log_evidence(batch.value, *before)
        if len(batch.value) and state.counts.entries:
            raise ValueError(f"{name} is static: it learns all entries in one update, and has had its one")
        good = np.abs(batch.value) < largest  # a NaN is not
        if good.any():
            new = fitted(state, Batch(batch.index[good], batch.value[good].astype(np.float64)))
            if new is None:
                good[:] = False
            else:
                state = new
            state.counts.entries[()] = len(good)
            state.counts.log_evidence[()] = log_evidence[good].sum()
        refused = int((~good).sum())
        rejected = refused * n_modes * rank
        state.counts.rejected[()] += rejected
        state.counts.refused[()] += refused
        return state, Update(*before, log_evidence, rejected, refused)

    return update
