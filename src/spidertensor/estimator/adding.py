"""Add attribute columns to a model that has learned: their nodes start at their prior."""

from __future__ import annotations

import numpy as np

from spidertensor.estimator.columns import FittedColumns, Mode, Schema
from spidertensor.estimator.fitted import Fitted, attributes_of, with_rows
from spidertensor.estimator.parameters import model_of
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Gaussian, State


def with_added_columns(fitted: Fitted, schema: Schema, names: list[str]) -> Fitted:
    """The same model with the columns that a schema adds; ValueError if it changes anything else.

    names: of the modes, for a model without attributes
    """
    known = fitted.columns or FittedColumns(Schema(tuple(Mode(name, True, ()) for name in names)))
    columns = known.with_columns(schema)
    columns.begin(columns.check({}, 0))
    if fitted.model.rule is not None:
        columns.check_drawn(fitted.model.rule.over)
    before = fitted.model.members
    model = model_of(
        fitted.params,
        fitted.model.likelihood,
        len(fitted.nodes),
        members=[member.own for member in before],
        product=before[0].network.product,
        attributes=attributes_of(columns),
    )
    members = zip(fitted.state.members, model.members, strict=True)
    states = tuple(_with_tables(state, member.network) for state, member in members)
    state = fitted.state._replace(members=states)
    return with_rows(fitted._replace(columns=columns, model=model, state=state))


def _with_tables(state: State, network: Network) -> State:
    """The state with empty tables at the end, as many as the network needs."""
    factors, counts = state.posterior.factors, state.counts
    new = [
        Gaussian(*np.zeros((2, 0, network.factor_sizes[mode]), np.float32))
        for mode in network.table_modes[len(factors) :]
    ]
    nodes = np.concatenate([counts.nodes, np.zeros(len(new), counts.nodes.dtype)])
    posterior = state.posterior._replace(factors=(*factors, *new))
    return state._replace(posterior=posterior, counts=counts._replace(nodes=nodes))
