"""Models that rest: learn a history, then predict what comes later without learning it.

Walk-forward: three models, each learning all entries before its origin and predicting the next share. A
method's scores are the means of the three.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spidertensor.estimator.groups import paths
from spidertensor.evaluation.dataset import Dataset, DatasetError, take
from spidertensor.evaluation.metrics import METRICS
from spidertensor.evaluation.protocols import Row, held_out
from spidertensor.evaluation.with_attributes import estimator_for, of_state
from spidertensor.method import Batch, Method, Prediction, Update

ORIGINS = 3
TIME = "order of time"  # a column's name


def at_rest(
    method: Method,
    stream: Batch,
    share: float,
    progress: Callable[[float], None] = lambda done: None,
    **how: Any,
) -> Row:
    """Score a method that rests. stream: in the order of time. how: see protocols.held_out"""
    n = len(stream.value)
    size, rows = int(share * n), []
    if not size:
        raise DatasetError(f"a share of {share:g} of {n:,} entries leaves nothing to predict")
    for origin in range(ORIGINS, 0, -1):
        first = n - origin * size
        train, test = take(stream, np.arange(first)), take(stream, np.arange(first, first + size))
        rows += list(held_out(method, train, test, **how))
        progress(1 - (origin - 1) / ORIGINS)
    means = {
        name: float(np.mean([row[name] for row in rows]))
        for name, value in rows[-1].items()
        if isinstance(value, float) and (name == "score" or name in METRICS or name.startswith("calibrated_"))
    }
    return rows[-1] | means | {"n_scored": ORIGINS * size}


def fitted(
    dataset: Dataset,
    describe: Callable[[Any], Any] | None,
    settings: Mapping[str, Any],
    *,
    in_time: bool,
) -> Method:
    """The library's default as `fit` learns it: in several passes, judged by entries held back.

    describe: sets attributes of a new estimator, if the data set has some
    settings: flat parameters of the estimator
    in_time:  whether entries come in the order of time; then the latest ones are held back
    """
    own = dict(settings) | {"time": TIME if in_time else None}

    def frame(index: NDArray[np.integer], **more: Any) -> pa.Table:
        if dataset.schema is None:
            return pa.table(dict(zip(dataset.modes, index.T, strict=True)) | more)
        return pa.table({name: column[index[:, -1]] for name, column in dataset.table.items()} | more)

    def init(seed: int) -> Any:
        kind = estimator_for(dataset.likelihood)
        kind.set_params(**paths(own), modes=dataset.schema, random_state=seed)
        if describe is not None and dataset.schema is not None:
            describe(kind)
        return kind

    def update(state: Any, batch: Batch) -> tuple[Any, Update]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            when = {TIME: np.arange(len(batch.value))} if in_time else {}
            state.fit(frame(batch.index, **when), batch.value)
        rejected = sum(int(member.counts.rejected) for member in state._fitted().state.members)
        return state, Update(*np.empty((4, len(batch.value))), rejected=rejected)

    def predict(state: Any, index: NDArray[np.integer], bags: Any = None) -> Prediction:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return state.predict_parts(frame(index))

    return Method(init, update, predict, unit="all", **of_state(dataset.likelihood))
