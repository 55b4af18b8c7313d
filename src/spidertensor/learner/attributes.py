"""What a model with attributes wants from a source: which modes have ids, and which columns beside them."""

from __future__ import annotations

from collections.abc import Mapping

from spidertensor.estimator import strangers
from spidertensor.estimator.columns import FittedColumns, Schema
from spidertensor.estimator.inputs import Column
from spidertensor.estimator.loading import Estimator
from spidertensor.faults import EntryError


def schema_of(estimator: Estimator) -> Schema | None:
    """The modes and their columns; None for a model of ids alone."""
    return estimator._schema


def modes_with_ids(estimator: Estimator, n_modes: int) -> list[int]:
    """The numbers of the modes that have ids."""
    schema = schema_of(estimator)
    return [mode for mode in range(n_modes) if schema is None or schema.modes[mode].has_id]


def attribute_columns(estimator: Estimator, mode: str | None = None) -> list[str]:
    """The columns beside the ids that the model uses. mode: only those of its nodes"""
    schema = schema_of(estimator)
    if mode is None:
        ids = [] if schema is None else [each.name for each in schema.modes if each.has_id]
        names = [] if schema is None else [name for name in schema.inputs if name not in ids]
        if estimator._learned is not None:  # only `fit` of a new model needs times
            return names
        times = [name for name in (estimator.time, estimator.known_at) if name is not None]
        return [*names, *(name for name in times if name not in names)]
    if schema is None:
        return []
    number = schema.number_of(mode)
    holders = [holder for column in _columns(estimator, schema).columns for holder in column.holders]
    return list(dict.fromkeys(holder.spec.name for holder in holders if holder.owner == number))


def recent_columns(estimator: Estimator) -> dict[str, str]:
    """The names of all Recent columns, and the mode whose ids a stranger states for each."""
    schema = schema_of(estimator)
    if schema is None:
        return {}
    found = strangers.recent_columns(_columns(estimator, schema))
    return {name: schema.names[mode] for name, mode in found.items()}


def descriptions(estimator: Estimator, mode: str) -> list[str]:
    """The columns by which somebody without an id in this mode can be described."""
    schema = schema_of(estimator)
    return (
        [] if schema is None else strangers.descriptions(_columns(estimator, schema), schema.number_of(mode))
    )


def kinds(estimator: Estimator) -> dict[str, str]:
    """What each of these columns is (FittedColumns.kinds), as far as it is decided."""
    schema = schema_of(estimator)
    return {} if schema is None else _columns(estimator, schema).kinds


def refused(estimator: Estimator, given: Mapping[str, Column], n: int) -> dict[int, EntryError]:
    """The entries whose attributes the model refuses, and why."""
    schema = schema_of(estimator)
    return {} if schema is None else _columns(estimator, schema).refused(given, n)


def depends_on_order(estimator: Estimator) -> bool:
    """Whether a new model would make something else of its attributes if their rows came in another order."""
    return any(kind in ("undecided", "number", "calendar") for kind in kinds(estimator).values())


def _columns(estimator: Estimator, schema: Schema) -> FittedColumns:
    fitted = estimator._learned
    if fitted is None or fitted.columns is None:
        return estimator._begun(FittedColumns(schema))
    return fitted.columns
