"""The part of an estimator that has attributes: tables that describe nodes, columns added later."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Self

from spidertensor.estimator import eviction, inputs
from spidertensor.estimator.adding import with_added_columns
from spidertensor.estimator.columns import FittedColumns, Schema
from spidertensor.estimator.fitted import Described, check_description, describe, with_rows
from spidertensor.estimator.ids import NodeIndex
from spidertensor.estimator.inputs import Column, Columns
from spidertensor.estimator.known import Known
from spidertensor.estimator.threads import locked
from spidertensor.spider.interrupts import deferred_interrupts


class HasAttributes(Known):
    """Mixin of `Spider`."""

    modes: Any
    batch_size: int
    _described: Described | None = None  # by set_attributes, before the first entry
    _sample: Mapping[str, Column] | None = None  # cells of a history that comes in parts, before its first

    @abstractmethod
    def _flat_params(self) -> dict[str, Any]: ...

    @locked
    def set_attributes(self, mode: str | int, table: Any) -> Self:
        """Describe nodes of a mode: add or replace their attributes, also for ids that come later.

        table: a data frame or a dict of columns, with the ids in the column of the mode and any of its
               attribute columns; others are ignored. One row for each id. A missing cell changes nothing

        What was learned stays with the attributes it was learned for; later entries use the new ones. Tables
        set before the first entry are there again after each `fit`; those set later belong to what was
        learned, which `fit` forgets. scikit-learn's `clone` copies parameters only.
        """
        schema = self._schema
        if schema is None:
            raise ValueError('a model without attributes: pass modes={"user": ["age"], ...} when creating it')
        number = schema.number_of(mode)
        table = inputs.by_name_of(table, schema.names[number], schema.inputs)
        if self._learned is None:
            if self._described is None or self._described.columns.schema != schema:
                nodes = eviction.empty_nodes(self._flat_params()["max_nodes"], len(schema.modes))
                self._described = Described(schema, nodes, self._described)
            self._described.add(number, table)
            return self
        with deferred_interrupts():
            reused = describe(self._fitted().columns, self._fitted().nodes, number, table)
            fitted = self._learned = with_rows(self._fitted())
            if any(reused):
                eviction.start_afresh(fitted.model, fitted.state, reused)
                fitted.tally.flush()
                fitted.tally.restart(reused)
        return self

    @locked
    def _check_attributes(self, mode: str, table: Any) -> None:
        """EntryError if `set_attributes` would refuse this table."""
        if self._learned is None:
            copy.deepcopy(self).set_attributes(mode, table)
        else:
            columns = self._fitted().columns
            assert columns is not None
            check_description(columns, columns.schema.number_of(mode), table)

    @locked
    def add_columns(self, modes: Any) -> Self:
        """Add attribute columns to a model that has learned; their nodes start at their prior.

        modes: the same modes as before, with more columns: {"user": ["age"], "movie": []}
        """
        fitted = self._fitted()
        self._learned = with_added_columns(fitted, Schema.parse(modes), self.mode_names_)
        self.modes = self._modes_learned()
        return self

    @property
    def _schema(self) -> Schema | None:
        """The modes and their columns, if the model has attributes."""
        if self._learned is not None:
            return None if self._learned.columns is None else self._learned.columns.schema
        return None if self.modes is None else Schema.parse(self.modes)

    def _modes_learned(self) -> dict[str, Any] | None:
        """The parameter `modes` that the learned model was made with."""
        return None if (schema := self._schema) is None else schema.to_modes()

    def _start_columns(
        self, columns: Columns, nodes: list[NodeIndex], *, history: bool
    ) -> FittedColumns | None:
        """The attribute columns before the first entry, with the attributes set before.

        history: all entries decide about the columns: these or, if they come in parts, `_sample`. Else the
                 first batch does, as of a stream
        """
        if (schema := self._schema) is None:
            return None
        attributes = FittedColumns(schema)
        for name, table in () if self._described is None else self._described.tables:
            describe(attributes, nodes, schema.number_of(name), table)
        if self._sample is not None:
            return self._begun(attributes)
        n = columns.n_entries if history else min(columns.n_entries, self.batch_size)
        first = {name: each[:n] for name, each in columns.given.items()}
        attributes.begin(attributes.check(first, n), history=history)
        return attributes

    def _begun(self, attributes: FittedColumns) -> FittedColumns:
        """The columns as far as a history that comes in parts has decided about them."""
        if self._sample is not None:
            n = len(next(iter(self._sample.values())))
            attributes.begin(attributes.check(self._sample, n), history=True)
        return attributes
