"""What a model has learned about the columns of its modes: from cells to bags of attribute nodes.

Each attribute column has one table of factor rows. Tables are numbered in the order of the schema; columns
added later come last, so numbers never change.

Learning a stream in one call or in many gives the same rows and bags, except that the first call in which a
column has values decides what it is and where the knots of numbers lie. Of a history that is learned in
several passes all entries decide.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.columns.assembling import assemble
from spidertensor.estimator.columns.bounded_values import MAX_VALUES
from spidertensor.estimator.columns.calendar import CalendarState
from spidertensor.estimator.columns.number import NumberState
from spidertensor.estimator.columns.schema import Schema
from spidertensor.estimator.columns.single import Found, find
from spidertensor.estimator.columns.specs import (
    Calendar,
    Cross,
    Many,
    Number,
    Recent,
    Spec,
    Undecided,
    Value,
    spec_from_json,
)
from spidertensor.estimator.columns.table_columns import (
    Cells,
    CrossColumn,
    PlainColumn,
    RecentColumn,
    TableColumn,
)
from spidertensor.estimator.inputs import Column
from spidertensor.faults import EntryError
from spidertensor.method import Bags
from spidertensor.spider.network import Table

NONE_STATED: Mapping[str, NDArray[np.int64]] = {}
PRIOR_SHARE = 0.3  # prior variance of all attribute columns of a mode together, as a share of an own id's


class Checked:
    """Columns of n entries that can be learned or predicted: for each table, its cells by column name."""

    def __init__(self, n: int, cells: Sequence[Cells]) -> None:
        self.n, self.cells = n, cells

    def cut(self, start: int, stop: int) -> Checked:
        """The entries from start to stop. Kinds and knots are still those of the whole call."""
        stop = min(stop, self.n)
        cells = [{name: each.cut(start, stop) for name, each in own.items()} for own in self.cells]
        return Checked(stop - start, cells)


class FittedColumns:
    """The columns of a schema, with what was learned about them.

    max_values: limit on the values of each column that names none (`most`); new values beyond it replace
                those longest unseen
    """

    def __init__(self, schema: Schema, *, max_values: int = MAX_VALUES) -> None:
        self.schema, self.max_values = schema, max_values
        self.columns: list[TableColumn] = [
            self.column(mode, spec) for mode, each in enumerate(schema.modes) for spec in each.columns
        ]
        self.first_event = 0  # number of the first event of the latest call
        self.with_id = [(mode, each.name) for mode, each in enumerate(schema.modes) if each.has_id]

    def column(self, mode: int, spec: Spec, owners: Mapping[str, int] | None = None) -> TableColumn:
        """A new column. owners: of the parts of a cross; None for those of the schema"""
        modes = self.schema.modes
        if isinstance(spec, Recent):
            return RecentColumn(mode, spec, self.schema.names.index(spec.mode))
        if isinstance(spec, Cross):
            ids = {each.name: m for m, each in enumerate(modes) if each.has_id}
            owners = owners_of(self.schema, mode, spec) if owners is None else owners
            return CrossColumn(mode, spec, ids, owners, self.max_values)
        return PlainColumn(mode, spec, mode if modes[mode].has_id else None, self.max_values)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables in order. The scale is final once the column is decided and has learned."""
        return tuple(
            Table(column.mode, self._scale(column.mode) if column.scale is None else column.scale)
            for column in self.columns
        )

    def _scale(self, mode: int) -> float:
        return PRIOR_SHARE / sum(column.spec.parts for column in self.columns if column.mode == mode)

    @property
    def n_rows(self) -> NDArray[np.int64]:
        """(A,) rows that each table needs now."""
        return np.array([column.n_rows for column in self.columns], np.int64)

    @property
    def kinds(self) -> dict[str, str]:
        """What the columns of the input are: value, number, many, calendar or undecided.

        A part of a cross counts as what the column is elsewhere.
        """
        rank = ("value", "undecided", "many", "calendar", "number")
        found: dict[str, str] = {}
        for holder in (holder for column in self.columns for holder in column.holders):
            name, kind = holder.spec.name, holder.spec.kind
            found[name] = max(found.get(name, kind), kind, key=rank.index)
        return found

    @property
    def keeps_recent(self) -> bool:
        """Whether nodes remember nodes of another mode."""
        return any(isinstance(column.spec, Recent) for column in self.columns)

    @property
    def n_evicted(self) -> NDArray[np.int64]:
        """(A,) how many values of each table had to make room for others."""
        return np.array([column.n_evicted for column in self.columns], np.int64)

    @property
    def restarts(self) -> list[tuple[int, int, NDArray[np.int64]]]:
        """What the latest `bags` to learn, or `describe`, has evicted: (entry, table, rows), in order.

        From that entry on these rows belong to other values, and must start afresh from the prior.
        """
        found = [(e, table, rows) for table, column in enumerate(self.columns) for e, rows in column.restarts]
        return sorted(found, key=lambda each: each[0])

    def never_given(self, given: Collection[str]) -> list[str]:
        """The attributes that are not among these columns, and that no node was described with."""
        single = [column for column in self.columns if len(column.holders) == 1 and not column.n_described]
        return [column.holders[0].spec.name for column in single if column.holders[0].spec.name not in given]

    def check(self, given: Mapping[str, Column], n: int, mode: int | None = None) -> Checked:
        """Convert and check the columns of n entries; EntryError if a cell is not allowed. Changes nothing.

        given: by name; others than those of the schema are ignored, and missing ones are not stated
        mode:  check only attributes of the nodes of this mode, for `describe`
        """
        found = []
        for column in self.columns:
            cells: Cells = {}
            for holder in column.holders:
                name = holder.spec.name
                if name in given and (mode is None or holder.owner == mode):
                    checked = holder.check(_sequence(given[name], name, n))
                    if checked is not None:
                        cells[name] = checked
            found.append(cells)
        return Checked(n, found)

    def refused(self, given: Mapping[str, Column], n: int) -> dict[int, EntryError]:
        """The entries that `check` refuses because of a cell, and why; the first reason of each counts."""
        found: dict[int, EntryError] = {}
        for holder in (holder for column in self.columns for holder in column.holders):
            if holder.spec.name in given:
                found = holder.refused(_sequence(given[holder.spec.name], holder.spec.name, n)) | found
        return dict(sorted(found.items()))

    def bags(
        self,
        checked: Checked,
        index: NDArray[np.int64],
        *,
        learn: bool,
        recent: Mapping[str, NDArray[np.int64]] = NONE_STATED,
    ) -> Bags:
        """The attribute nodes of the entries.

        index: (n, K) nodes of the own ids, -1 if unseen and for a Context
        learn: add unseen values, remember the attributes and recent nodes of each node, all in the order of
               the entries. Otherwise nothing changes, and unseen values have row -1
        recent: by the name of a Recent, the latest nodes of all entries, in place of those remembered
        """
        if index.shape != (checked.n, len(self.schema.modes)):
            raise ValueError(f"{checked.n} entries of {len(self.schema.modes)} modes, but {index.shape}")
        if learn:
            with_id = [mode.has_id for mode in self.schema.modes]
            if index[:, with_id].min(initial=0) < 0:
                raise ValueError("an entry to learn from has a node that is not known")
            self._settle(checked)
        found = []
        for table, (column, cells) in enumerate(zip(self.columns, checked.cells, strict=True)):
            if isinstance(column, RecentColumn) and column.spec.name in recent:
                found.append((table, column.state.stated(recent[column.spec.name], checked.n)))
            else:
                found.append((table, column.learn(cells, index) if learn else column.elements(cells, index)))
        return assemble(checked.n, found)

    def single(self, given: Mapping[str, Any], nodes: list[int], *, learn: bool) -> Found | None:
        """The bag of one entry with these cells, by name; None if `bags` must make it. Changes nothing."""
        return find(self.columns, given, nodes, learn=learn)

    def expect_events(self, first: int, drawn: Sequence[int]) -> None:
        """The next call learns events. first: the number of its first; drawn: modes of their negatives"""
        self.first_event = first
        for holder in (holder for column in self.columns for holder in column.holders):
            holder.keep_changes() if holder.owner in drawn else holder.forget_changes()

    def describe(self, mode: int, nodes: NDArray[np.int64], checked: Checked) -> None:
        """Replace attributes of nodes of a mode, where stated. checked: one row for each node"""
        check_once(nodes, self.schema.names[mode])
        self._settle(checked)
        for column, cells in zip(self.columns, checked.cells, strict=True):
            column.describe(mode, nodes, cells)

    def _settle(self, checked: Checked) -> None:
        """Decide what undecided columns are, then fix the prior variance of those decided."""
        for column, cells in zip(self.columns, checked.cells, strict=True):
            for holder in column.holders:
                holder.adopt(cells.get(holder.spec.name))
        for column in self.columns:
            if column.scale is None and not isinstance(column.spec, Undecided):
                column.scale = self._scale(column.mode)

    def begin(self, checked: Checked, *, history: bool = False) -> None:
        """Decide what can be decided before the first entries, and fix the prior variance of every table.

        checked: the entries by which the scale of the values is chosen too: kinds and knots come from them,
                 however many entries follow in the same call
        history: these are all entries, in any order, or some that stand for all; else they come first
        """
        self._settle(checked)
        for column, cells in zip(self.columns, checked.cells, strict=True):
            for holder in column.holders:
                given = cells.get(holder.spec.name)
                if given is None:
                    continue
                if history and isinstance(holder.state, NumberState | CalendarState):
                    holder.state.begin_history(given.cells)
                elif isinstance(holder.state, NumberState):
                    holder.state.begin(given.cells)
        for column in self.columns:
            if column.scale is None:
                column.scale = self._scale(column.mode)

    def collect(self) -> None:
        """Take any number of values from now on, until `bound`."""
        for column in self.columns:
            column.collecting = True

    def bound(self, entries: Callable[[], Iterable[Bags]]) -> list[NDArray[np.int64] | None] | None:
        """Leave out what is too much of the values collected: in each column those least often seen.

        entries: all that were collected, each time it is called
        Return for each table the new row of each of its values, -1 if it is left out, or None if all stay;
        None if all stay in all tables.
        """
        seen = [np.zeros(n, np.int64) for n in self.n_rows]
        if any(column.is_overfull for column in self.columns):
            for bags in entries():
                for table, counts in enumerate(seen):
                    counts += np.bincount(bags.row[bags.table == table], minlength=len(counts))
        found = [column.bound(counts) for column, counts in zip(self.columns, seen, strict=True)]
        return None if all(each is None for each in found) else found

    def forget_changes(self) -> None:
        """Forget what attributes nodes had during the latest call: `of_nodes` has the last ones."""
        for column in self.columns:
            for holder in column.holders:
                holder.forget_changes()

    def check_drawn(self, modes: Sequence[int]) -> None:
        """ValueError if a column cannot be known for nodes of these modes that are drawn as negatives."""
        names = {self.schema.names[mode] for mode in modes}
        for mode in modes:
            if not self.schema.modes[mode].has_id:
                raise ValueError(f"negatives need a mode with ids, and {self.schema.names[mode]!r} has none")
        for column in self.columns:
            drawn = column.mode in modes
            if isinstance(column.spec, Recent) and drawn:
                reason = "is kept for nodes that are drawn as negatives"
            elif isinstance(column.spec, Cross) and (drawn or names & set(column.spec.columns)):
                reason = "depends on nodes that are drawn as negatives"
            else:
                continue
            raise ValueError(f"{column.spec.name!r:.80} {reason}: leave it out, or draw over another mode")

    def of_nodes(self, mode: int, nodes: NDArray[np.int64], events: NDArray[np.int64] | None = None) -> Bags:
        """The attributes that the model remembers of these nodes; -1 is an unknown node.

        events: of the latest call, by number: the attributes as of then, so that they do not depend on where
                a stream is cut into calls. None for now
        """
        own = [(t, column) for t, column in enumerate(self.columns) if column.mode == mode]
        if not self.schema.modes[mode].has_id:
            raise ValueError(f"{self.schema.names[mode]} is a Context: it has no nodes")
        entries = None if events is None else events - self.first_event
        return assemble(len(nodes), [(table, column.of_nodes(nodes, entries)) for table, column in own])

    def keep(self, mode: int, keep: NDArray[np.bool_]) -> dict[int, NDArray[np.bool_]]:
        """Nodes of a mode were removed, and the others renumbered in the same order. keep: (nodes,)

        Return the tables that lose rows: table -> (rows,) which rows stay, in the same order.
        """
        found = ((table, column.keep(mode, keep)) for table, column in enumerate(self.columns))
        return {table: rows for table, rows in found if rows is not None}

    def clear(self, mode: int, rows: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
        """These nodes of a mode were evicted, and their numbers belong to other ids from now on.

        Return the tables with rows that must start afresh from the prior: table -> rows.
        """
        found = ((table, column.clear(mode, rows)) for table, column in enumerate(self.columns))
        return {table: afresh for table, afresh in found if afresh is not None and len(afresh)}

    def with_columns(self, schema: Schema) -> FittedColumns:
        """The same with the columns that a schema adds; their tables come last. Shares what was learned."""
        old, new = self.schema.modes, schema.modes
        if [(mode.name, mode.has_id) for mode in old] != [(mode.name, mode.has_id) for mode in new]:
            raise ValueError(f"the modes of a model that has learned stay as they are: {self.schema.names}")
        known = {(column.mode, column.spec.name): column for column in self.columns}
        for mode, (before, after) in enumerate(zip(old, new, strict=True)):
            written = {spec.name: spec for spec in after.columns}
            for spec in before.columns:
                if written.get(spec.name) not in (spec, known[mode, spec.name].spec):
                    raise ValueError(
                        f"the column {spec.name!r:.80} of the mode {before.name!r:.80} stays as it is: "
                        "columns can only be added"
                    )
        twin = FittedColumns(schema, max_values=self.max_values)
        added = [column for column in twin.columns if (column.mode, column.spec.name) not in known]
        twin.columns = [*self.columns, *added]
        return twin

    def to_json(self) -> dict[str, Any]:
        tables = [
            {
                "mode": column.mode,
                "spec": column.spec.to_json(),
                "scale": column.scale,
                "owners": {holder.spec.name: holder.owner for holder in column.holders},
            }
            for column in self.columns
        ]
        return {"modes": self.schema.to_json(), "max_values": self.max_values, "tables": tables}

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Everything else, as arrays that need no pickle."""
        return {
            f"{table}/{name}": array
            for table, column in enumerate(self.columns)
            for name, array in column.to_arrays().items()
        }

    @classmethod
    def from_file(
        cls, stored: Any, arrays: Mapping[str, NDArray[Any]], n_nodes: Sequence[int] | None = None
    ) -> FittedColumns:
        """The inverse of `to_json` and `to_arrays`. ValueError for anything they do not write.

        n_nodes: nodes of each mode, to check that nothing is kept for others
        """
        if not isinstance(stored, dict) or stored.keys() != {"modes", "max_values", "tables"}:
            raise ValueError("the columns have missing or unknown keys")
        limit = stored["max_values"]
        if type(limit) is not int or not 1 <= limit < 2**31:
            raise ValueError(f"max_values is not a limit: {limit!r:.80}")
        fitted = cls(Schema.from_json(stored["modes"]), max_values=limit)
        fitted.columns = restored_columns(fitted, stored["tables"])
        for table, own in enumerate(_by_table(arrays, len(fitted.columns))):
            fitted.columns[table].read(own)
        if n_nodes is not None:
            fitted.check_nodes(n_nodes)
        return fitted

    def check_nodes(self, n_nodes: Sequence[int]) -> None:
        """ValueError if something is kept for a node that a mode does not have."""
        if len(n_nodes) != len(self.schema.modes):
            raise ValueError(f"columns of {len(self.schema.modes)} modes, but nodes of {len(n_nodes)}")
        for column in self.columns:
            for mode, n in column.nodes_kept():
                if n > n_nodes[mode]:
                    name = f"{self.schema.names[mode]!r:.80}"
                    raise ValueError(f"attributes of {n} nodes of the mode {name}, which has {n_nodes[mode]}")


def check_once(nodes: NDArray[np.int64], name: str) -> None:
    """EntryError if a table of attributes has two rows for a node. name: of their mode"""
    order = np.argsort(nodes, kind="stable")
    twice = order[1:][nodes[order[1:]] == nodes[order[:-1]]]
    if len(twice):
        reason = f"a second row for the same {name}"
        raise EntryError(reason, int(twice.min()), kind="attribute", remedy="keep one row for each id")


def restored_columns(fitted: FittedColumns, tables: Any) -> list[TableColumn]:
    """The columns in the order of a file's tables, without what they learned."""
    written = {(column.mode, column.spec.name): column.spec for column in fitted.columns}
    if not isinstance(tables, list) or len(tables) != len(written):
        raise ValueError("the tables are not one for each column")
    columns = []
    for table in tables:
        if not isinstance(table, dict) or table.keys() != {"mode", "spec", "scale", "owners"}:
            raise ValueError(f"not the description of a table: {table!r:.200}")
        mode, spec, scale = table["mode"], spec_from_json(table["spec"]), table["scale"]
        known = written.pop((mode, spec.name), None) if type(mode) is int else None
        decided = isinstance(known, Undecided) and type(spec) in (Value, Number, Many, Calendar)
        if spec != known and not decided:
            raise ValueError(f"no mode has the column of a table: {table!r:.200}")
        column = fitted.column(mode, spec, _owners(fitted.schema, table["owners"]))
        if {holder.spec.name: holder.owner for holder in column.holders} != table["owners"]:
            raise ValueError(f"the owners of a column are not possible: {table['owners']!r:.200}")
        if scale is not None and not (type(scale) is float and 0 < scale <= PRIOR_SHARE):
            raise ValueError(f"the scale of a table is not possible: {scale!r:.80}")
        column.scale = scale
        columns.append(column)
    return columns


def _owners(schema: Schema, stored: Any) -> dict[str, int]:
    """Part -> mode, as stored for a cross: attributes that are added later do not change it."""
    if not isinstance(stored, dict):
        raise ValueError("the owners of a column are not an object")
    owners = {name: mode for name, mode in stored.items() if mode is not None}
    with_id = [m for m, mode in enumerate(schema.modes) if mode.has_id]
    if not all(type(mode) is int and mode in with_id for mode in owners.values()):
        raise ValueError(f"the owners of a column are not modes: {stored!r:.200}")
    return owners


def _by_table(arrays: Mapping[str, NDArray[Any]], n: int) -> list[dict[str, NDArray[Any]]]:
    found: list[dict[str, NDArray[Any]]] = [{} for _ in range(n)]
    numbers = {str(table): table for table in range(n)}
    for name, array in arrays.items():
        table, _, rest = name.partition("/")
        if table not in numbers:
            raise ValueError(f"an array of no table: {name!r:.80}")
        found[numbers[table]][rest] = array
    return found


def owners_of(schema: Schema, mode: int, spec: Cross) -> dict[str, int]:
    """Part -> mode, for parts of a cross that are attributes of nodes. The own mode goes before others."""
    order = [mode, *(m for m in range(len(schema.modes)) if m != mode)]
    owners = {}
    for part in spec.columns:
        for m in order:
            each = schema.modes[m]
            if each.has_id and part in [column.name for column in each.columns]:
                owners.setdefault(part, m)
    return owners


def _sequence(column: Any, name: str, n: int) -> Column:
    """A column as an array, a list or a tuple of n cells."""
    if not isinstance(column, np.ndarray | list | tuple):
        column = list(column)
    if len(column) != n:
        raise EntryError(f"{len(column)} cells, but {n} entries", column=name)
    return column
