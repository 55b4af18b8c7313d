"""`--attributes MODE=FILE`: files that describe nodes, one row for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spidertensor import sources
from spidertensor.cli import files, tables
from spidertensor.cli.bad_rows import refuse
from spidertensor.cli.errors import CommandError, worded
from spidertensor.faults import EntryError
from spidertensor.learner import position
from spidertensor.learner.attributes import attribute_columns, kinds, schema_of
from spidertensor.sources.attributes import with_types

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spidertensor.estimator.loading import Estimator
    from spidertensor.sources import Chunk, Source


class AttributeFile(NamedTuple):
    """What a file says about the nodes of a mode.

    rows:  the numbers of its rows
    table: its columns by name: the ids, and the attributes that are there
    """

    mode: str
    source: Source
    rows: NDArray[np.int64]
    table: dict[str, Any]

    def refused(self, error: EntryError) -> CommandError:
        """The error for a table that the model refuses."""
        place = "" if error.row is None else f" {self.source.format.unit} {self.rows[error.row]}"
        return CommandError(f"{self.source.name}{place}: {worded(error.but(row=None))}")


def set_all(estimator: Estimator, texts: list[str] | None) -> frozenset[str]:
    """Describe nodes as the files of --attributes say; returns the columns that they have."""
    found: set[str] = set()
    for each in read_all(estimator, texts):
        try:
            estimator.set_attributes(each.mode, each.table)
        except EntryError as error:
            raise each.refused(error) from None
        found |= each.table.keys() - {each.mode}
    return frozenset(found)


def read_all(estimator: Estimator, texts: list[str] | None) -> Iterator[AttributeFile]:
    """Read the files of --attributes one by one: what one says may decide how the next is read."""
    for text in texts or ():
        mode, equals, name = text.partition("=")
        if not equals or not name:
            raise CommandError(f"--attributes takes MODE=FILE, such as movie=movies.csv, not {text!r}")
        yield _read(estimator, mode, name)


def _read(estimator: Estimator, mode: str, name: str) -> AttributeFile:
    schema = schema_of(estimator)
    if schema is None:
        raise CommandError(
            "--attributes needs a model with attributes: name them in --modes, such as movie+year"
        )
    try:
        number = schema.number_of(mode)
    except ValueError as error:
        raise CommandError(f"--attributes {mode}={name}: {error}") from None
    if name == "-":
        raise CommandError("--attributes takes a file, not standard input")
    source, wanted = sources.source_by_name(name), attribute_columns(estimator, mode)
    if not wanted:
        raise CommandError(f"--attributes {mode}={name}: the mode {mode} has no attributes")
    rows, table = _table(estimator, source, mode, number, wanted)
    if not table.keys() & set(wanted):
        raise CommandError(f"{name}: none of the columns {', '.join(wanted)}")
    return AttributeFile(mode, source, rows, table)


def _table(
    estimator: Estimator, source: Source, mode: str, number: int, wanted: list[str]
) -> tuple[NDArray[np.int64], dict[str, Any]]:
    """The numbers of the rows, and their columns by name: the ids, and the attributes that are there."""
    new = not estimator.__sklearn_is_fitted__()
    texts = None if new else [position.all_text(estimator)[number]]
    bins = None if new else [position.bins(estimator)[number]]
    missing = "error" if new else files.missing_id(estimator)
    chunks: list[Chunk] = []
    for chunk in sources.read(source, [mode], all_text=texts, bins=bins, missing=missing, attributes=wanted):
        refuse(source, chunk.bad)
        chunks.append(chunk)
    names = list(dict.fromkeys(name for chunk in chunks for name in chunk.attributes))
    if not chunks:
        raise CommandError(f"{source.name}: no rows")
    ids, rows = (tables.joined([pick(chunk) for chunk in chunks]) for pick in (_ids, _rows))
    cells = {name: tables.joined([chunk.attributes[name] for chunk in chunks]) for name in names}
    whole = chunks[-1]._replace(columns=[ids], rows=rows, attributes=cells)
    whole = with_types(whole, kinds(estimator), source, [mode])
    refuse(source, whole.bad)
    there = {
        name: column
        for name, column in whole.attributes.items()
        if any(each is not None for each in column.tolist())
    }
    return whole.rows, {mode: whole.columns[0], **there}


def _ids(chunk: Chunk) -> NDArray[Any]:
    return chunk.columns[0]


def _rows(chunk: Chunk) -> NDArray[np.int64]:
    return chunk.rows
