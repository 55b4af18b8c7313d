"""Events learned as `fit` learns them, in several passes, as a Method that learns everything at once."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator import SpiderClassifier
from spidertensor.estimator.groups import paths
from spidertensor.estimator.times import NUMBER, Times
from spidertensor.method import Batch, Method, Prediction, Update


def fit_all(estimator: SpiderClassifier, X: Any, n_events: int, *, in_time: bool) -> Update:
    """What `fit` does with events that come in the order of time, or in no order."""
    estimator._flat_params()  # refuses impossible ones
    if estimator._once(n_events) is not None:
        return estimator.learn(X)
    when = Times(np.arange(n_events), NUMBER) if in_time else None
    estimator._collect(X, None, when)
    estimator._learn_all_collected()
    return Update(*np.zeros((4, n_events)), rejected=estimator.n_rejected_)


def in_passes(over: int, settings: Mapping[str, Any], *, in_time: bool) -> Method:
    """The library's default for events of ids. settings: parameters of SpiderClassifier, such as `passes`"""

    def init(seed: int) -> SpiderClassifier:
        own = dict(settings) | {"negatives_over": over, "random_state": seed}
        return SpiderClassifier().set_params(**paths(own))

    def update(state: SpiderClassifier, batch: Batch) -> tuple[SpiderClassifier, Update]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return state, fit_all(state, batch.index, len(batch.value), in_time=in_time)

    def predict(state: SpiderClassifier, index: NDArray[np.integer], bags: Any = None) -> Prediction:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of nodes that were never learned, which are no candidates
            return state.predict_parts(index)

    def quick(state: SpiderClassifier, numbers: Sequence[NDArray[np.int64]]) -> Prediction:
        fitted = state._fitted()
        if fitted.model.method.quick is None:
            index = np.stack(np.broadcast_arrays(*numbers), axis=1)
            return predict(state, index)
        own = [nodes.find(number) for nodes, number in zip(fitted.nodes, numbers, strict=True)]
        return fitted.model.method.quick(fitted.state, own)

    return Method(init, update, predict, unit="all", quick=quick)
