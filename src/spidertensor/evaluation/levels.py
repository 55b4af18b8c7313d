"""Methods to compare a model of ordered levels with: how often each level came, and continuous values.

A method of continuous values gives a level the probability between the points half-way to its neighbours; the
lowest has all that is below, the highest all that is above.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Bags, Batch, Method, Prediction, Update, check_index
from spidertensor.scaling import Scaling
from spidertensor.spider.committee import ForecastingMethod
from spidertensor.spider.forecasts import MemberForecasts
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.likelihoods.base import RATE_VAR
from spidertensor.spider.likelihoods.ordinal import Ordinal


def frequencies(likelihood: Likelihood) -> Method:
    """Predict that a level is as probable as it was frequent so far, one of each included.

    The state is how often each came, plus 1. f is 0 everywhere, with noise 1: all is in the cut points.
    """
    levels = np.array(likelihood.levels)

    def predicted(n: int) -> Prediction:
        return Prediction(np.zeros(n), np.full(n, RATE_VAR), np.full(n, 1 - RATE_VAR))

    def update(state: NDArray[np.float64], batch: Batch) -> tuple[NDArray[np.float64], Update]:
        check_index(batch.index, batch.index.shape[1], batch.bags)
        came = batch.value[:, None] == levels
        so_far = state + np.cumsum(np.vstack([np.zeros(len(levels)), came]), axis=0)
        known = came.any(axis=1)
        log_share = np.full(len(came), np.nan)
        log_share[known] = np.log((so_far[:-1] / so_far[:-1].sum(axis=1, keepdims=True))[came])
        refused = int((~known).sum())
        return so_far[-1], Update(*predicted(len(came)), log_share, rejected=refused, refused=refused)

    def predict(
        state: NDArray[np.float64], index: NDArray[np.integer], bags: Bags | None = None
    ) -> Prediction:
        check_index(index, index.shape[1], bags)
        return predicted(len(index))

    return Method(
        lambda seed: np.ones(len(levels)),
        update,
        predict,
        likelihood=lambda state: Ordinal(likelihood.levels, state),
    )


class HalfWayState(NamedTuple):
    scaling: Scaling | None  # of the first call that learns
    inner: Any


def between_half_ways(method: Method, likelihood: Likelihood, *, scaled: bool) -> Method:
    """A method of continuous values as one of these levels. scaled: whether it needs scaled values"""
    values = np.array(likelihood.levels)
    middle = (values[1:] + values[:-1]) / 2
    by = Ordinal(likelihood.levels, cuts=np.concatenate([[-np.inf], middle, [np.inf]]))

    def scaling_of(state: HalfWayState) -> Scaling:
        return state.scaling or Scaling()

    def started(state: HalfWayState, batch: Batch) -> tuple[HalfWayState, Batch]:
        if state.scaling is None and len(batch.value):
            state = state._replace(scaling=Scaling.of(batch.value) if scaled else Scaling())
        return state, batch._replace(value=scaling_of(state).scaled(batch.value))

    def told(state: HalfWayState, batch: Batch, update: Update) -> Update:
        prediction = scaling_of(state).user_units(*update[:3])
        log_share = by.log_evidence(batch.value, *prediction)
        return Update(*prediction, log_share, update.rejected, update.refused, update.clipped)

    def update(state: HalfWayState, batch: Batch) -> tuple[HalfWayState, Update]:
        state, own = started(state, batch)
        inner, update = method.update(state.inner, own)
        return state._replace(inner=inner), told(state, batch, update)

    def predict(state: HalfWayState, index: NDArray[np.integer], bags: Bags | None = None) -> Prediction:
        return scaling_of(state).user_units(*method.predict(state.inner, index, bags))

    outer = Method(
        lambda seed: HalfWayState(None, method.init(seed)),
        update,
        predict,
        method.unit,
        likelihood=lambda state: by,
    )
    if not isinstance(method, ForecastingMethod):
        return outer

    def forecast(
        state: HalfWayState, index: NDArray[np.integer], bags: Bags | None = None
    ) -> tuple[Prediction, MemberForecasts]:
        prediction, forecasts = method.forecast(state.inner, index, bags)
        return scaling_of(state).user_units(*prediction), forecasts

    def update_by(
        state: HalfWayState, batch: Batch, forecasts: MemberForecasts
    ) -> tuple[HalfWayState, Update]:
        state, own = started(state, batch)
        inner, update = method.update_by(state.inner, own, forecasts)
        return state._replace(inner=inner), told(state, batch, update)

    return ForecastingMethod(**vars(outer), forecast=forecast, update_by=update_by)
