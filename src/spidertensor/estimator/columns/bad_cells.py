"""Leave rows of a source out whose attributes a model refuses, such as endless lists."""

from __future__ import annotations

from spidertensor.estimator.columns.fitted_columns import FittedColumns
from spidertensor.faults import EntryError
from spidertensor.sources import Chunk
from spidertensor.sources.attributes import without


def without_refused(chunk: Chunk, columns: FittedColumns, names: list[str]) -> Chunk:
    """The chunk with these rows among its bad ones. names: of its columns of ids"""
    while True:
        try:
            columns.check(chunk.attributes, len(chunk.rows))
            return chunk
        except EntryError as error:
            if error.row is None:
                raise
            chunk = without(chunk, {error.row: f"{error.column} {error.reason}"}, names)
