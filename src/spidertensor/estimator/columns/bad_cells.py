"""Leave rows of a source out whose attributes a model refuses, such as endless lists."""

from __future__ import annotations

from spidertensor.estimator.columns.fitted_columns import FittedColumns
from spidertensor.sources import Chunk
from spidertensor.sources.attributes import without


def without_refused(chunk: Chunk, columns: FittedColumns, names: list[str]) -> Chunk:
    """The chunk with these rows among its bad ones. names: of its columns of ids"""
    wrong = columns.refused(chunk.attributes, len(chunk.rows))
    reasons = {row: f"{error.column} {error.reason}" for row, error in wrong.items()}
    return without(chunk, reasons, names) if wrong else chunk
