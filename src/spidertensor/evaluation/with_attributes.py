"""Evaluate a model with attributes: an estimator as a Method whose entries are rows of a table.

The last column of the index is the row of the entry in the table; the others are the nodes of its ids, for
methods that learn from ids alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator import SpiderClassifier, SpiderRegressor
from spidertensor.estimator.columns import FittedColumns, Mode, Schema
from spidertensor.estimator.event_rule import NEGATIVES
from spidertensor.estimator.forecast import forecast_by
from spidertensor.estimator.groups import paths
from spidertensor.estimator.inputs import Columns
from spidertensor.method import Batch, Method, Prediction, Update
from spidertensor.spider.committee import ForecastingMethod
from spidertensor.spider.forecasts import MemberForecasts
from spidertensor.spider.likelihoods import Likelihood

FIRST_ROWS = 256  # decide what columns are, as the first batch of `spider fit` does

Table = Mapping[str, NDArray[Any]]
Describe = Callable[[Any], Any]  # sets attributes of an estimator


def of_estimator(
    table: Table,
    schema: Schema,
    likelihood: Likelihood,
    describe: Describe,
    settings: Mapping[str, Any],
    *,
    scaled: bool = True,
) -> Method:
    """The library's default with attributes.

    describe: called with each new estimator
    scaled:   values come scaled, as for every method; else the estimator scales them
    """
    ids = tuple(mode.name for mode in schema.modes if mode.has_id)

    def columns(index: NDArray[np.integer]) -> Columns:
        rows = index[:, -1]
        given = {name: column[rows] for name, column in table.items()}
        return Columns([given[name] for name in ids], ids, given)

    def init(seed: int) -> Any:
        own = dict(settings) | {"modes": schema, "random_state": seed}
        own |= {"scaling": (0.0, 1.0)} if scaled and likelihood.scaled else {}
        estimator = estimator_for(likelihood)
        estimator.set_params(**paths(own))
        describe(estimator)
        return estimator

    def update(state: Any, batch: Batch) -> tuple[Any, Update]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return state, state.learn(columns(batch.index), batch.value)

    def predict(state: Any, index: NDArray[np.integer], bags: Any = None) -> Prediction:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return state.predict_parts(columns(index))

    def forecast(
        state: Any, index: NDArray[np.integer], bags: Any = None
    ) -> tuple[Prediction, MemberForecasts]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = state.forecast(columns(index))
        return made.prediction, made.by_member

    def update_by(state: Any, batch: Batch, forecasts: MemberForecasts) -> tuple[Any, Update]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            earlier = forecast_by(state._fitted(), forecasts)
            return state, state.learn(columns(batch.index), batch.value, forecast=earlier)

    return ForecastingMethod(
        init, update, predict, forecast=forecast, update_by=update_by, **of_state(likelihood)
    )


def estimator_for(likelihood: Likelihood) -> Any:
    """A new estimator of values with this likelihood."""
    if likelihood.binary:
        return SpiderClassifier()
    return SpiderRegressor(likelihood=likelihood.name, levels=likelihood.levels or None)


def of_state(likelihood: Likelihood) -> dict[str, Any]:
    """What a Method whose state is an estimator says of its predictions: `quantile` and `likelihood`."""
    return {
        "quantile": _quantile if likelihood.intervals else None,
        "likelihood": (lambda estimator: estimator.likelihood_) if likelihood.ordinal else None,
    }


def _quantile(state: Any, probability: Any) -> Any:
    fitted = state._fitted()
    return fitted.model.method.quantile(fitted.state, probability)


class EventState(NamedTuple):
    """estimator: learns the events. ids: of the nodes to rank, by number, as far as they were learned"""

    estimator: SpiderClassifier
    ids: NDArray[Any]


def of_events(
    table: Table,
    schema: Schema,
    over: str,
    describe: Describe,
    settings: Mapping[str, Any],
    learn_all: Callable[[SpiderClassifier, Columns, int], Update] | None = None,
) -> Method:
    """The same for events. A node that takes the place of an event's own has what the model knows of it.

    over:      the mode that is ranked; ValueError if a column depends on the nodes that are drawn from it
    learn_all: learns that many events at once (fitted_events.py); None: as they come
    """
    columns, number = FittedColumns(schema), schema.number_of(over)
    columns.check_drawn([number])
    holders = [holder for column in columns.columns for holder in column.holders]
    of_node = {holder.spec.name for holder in holders if holder.owner == number}
    names = tuple(mode.name for mode in schema.modes if mode.has_id)
    place = names.index(over)

    def init(seed: int) -> EventState:
        own = dict(settings) | {"modes": schema, "random_state": seed, "negatives_over": over}
        estimator = SpiderClassifier().set_params(**paths({"negatives": NEGATIVES} | own))
        describe(estimator)
        # Of nodes that were never learned nothing is asked: they are no candidates.
        return EventState(estimator, np.repeat(table[over][:1], len(table[over])))

    def update(state: EventState, batch: Batch) -> tuple[EventState, Update]:
        rows = batch.index[:, -1]
        given = {name: column[rows] for name, column in table.items()}
        state.ids[batch.index[:, place]] = given[over]
        columns = Columns([given[name] for name in names], names, given)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if learn_all is not None:
                return state, learn_all(state.estimator, columns, len(rows))
            return state, state.estimator.learn(columns)

    def predict(state: EventState, index: NDArray[np.integer], bags: Any = None) -> Prediction:
        rows = index[:, -1]
        given = {name: column[rows] for name, column in table.items() if name not in of_node}
        given[over] = state.ids[index[:, place]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return state.estimator.predict_parts(Columns([given[name] for name in names], names, given))

    return Method(init, update, predict, "entry" if learn_all is None else "all")


def of_ids(method: Method) -> Method:
    """The same method, without the last column of the index."""

    def update(state: Any, batch: Batch) -> tuple[Any, Update]:
        return method.update(state, Batch(np.ascontiguousarray(batch.index[:, :-1]), batch.value))

    def predict(state: Any, index: NDArray[np.integer], bags: Any = None) -> Prediction:
        return method.predict(state, np.ascontiguousarray(index[:, :-1]))

    if not isinstance(method, ForecastingMethod):
        return replace(method, update=update, predict=predict)

    def forecast(
        state: Any, index: NDArray[np.integer], bags: Any = None
    ) -> tuple[Prediction, MemberForecasts]:
        return method.forecast(state, np.ascontiguousarray(index[:, :-1]), None)

    def update_by(state: Any, batch: Batch, forecasts: MemberForecasts) -> tuple[Any, Update]:
        own = Batch(np.ascontiguousarray(batch.index[:, :-1]), batch.value)
        return method.update_by(state, own, forecasts)

    return replace(method, update=update, predict=predict, forecast=forecast, update_by=update_by)


def decided(schema: Schema, given: Table) -> Schema:
    """The schema with what its columns are, as far as the first rows show it. given: these rows"""
    columns, first = FittedColumns(schema), given
    n = len(next(iter(first.values()), ()))
    while bad := list(columns.refused(first, n)):  # rows that decide nothing
        first, n = {name: np.delete(column, bad) for name, column in first.items()}, n - len(bad)
    columns.begin(columns.check(first, n))
    specs = {(column.mode, column.spec.name): column.spec for column in columns.columns}
    return Schema(
        tuple(
            Mode(mode.name, mode.has_id, tuple(specs[number, spec.name] for spec in mode.columns))
            for number, mode in enumerate(schema.modes)
        )
    )
