"""The update that static methods share, which see all entries at once: everything except the fit."""

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
    """The `update` of a static Method. A second update is an error, because the state keeps no entries.

    An update without any good value does not count as the first; one whose fit failed does.

    shape:   modes and rank: the elements that a refused entry would have changed
    largest: entries whose value is not smaller than this are refused
    fitted:  state, good entries -> the state that has learned them; None if it is not finite
    """
    n_modes, rank = shape

    def update(state: Any, batch: Batch) -> tuple[Any, Update]:
        check_batch(batch, n_modes)
        before = predict(state, batch.index)
        log_evidence = likelihood.log_evidence(batch.value, *before)
        if len(batch.value) and state.counts.entries:
            raise ValueError(
                f"{name} is static: it learns all entries in one update, and has already learned"
            )
        good = np.abs(batch.value) < largest  # also false for NaN
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
