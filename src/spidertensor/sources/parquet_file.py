"""Read Parquet in batches; rows are numbered from 1, and types are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spidertensor.sources.columns import is_text
from spidertensor.sources.source import (
    Format,
    Parsed,
    Source,
    SourceError,
    Wanted,
    find_attributes,
    find_columns,
)

BATCH_ROWS = 1 << 16


def read(source: Source, wanted: Wanted, skip: int, last: str | None) -> Iterator[Parsed]:
    from pyarrow import parquet

    assert source.path is not None
    with open(source.path, "rb") as handle, parquet.ParquetFile(handle) as file:
        schema, total = file.schema_arrow, file.metadata.num_rows
        for name, place in zip(wanted.columns, find_columns(source, schema.names, wanted), strict=True):
            numeric = name == wanted.value or name in wanted.numbers
            _check_type(source, schema.field(place), is_value=numeric)
        end, attributes = 0, list(find_attributes(schema.names, wanted))
        for batch in _batches(file, wanted, attributes):
            start, end = end, end + batch.num_rows
            batch = batch.slice(min(max(skip - start, 0), batch.num_rows))
            rows = np.arange(end - batch.num_rows + 1, end + 1)
            columns = [batch.column(name) for name in wanted.columns]
            yield Parsed(
                columns, rows, [], end, _raw_record(batch, rows, wanted), end / max(total, 1),
                pa.Table.from_batches([batch]) if wanted.keep else None,
                attributes={name: batch.column(name) for name in attributes},
            )  # fmt: skip


PARQUET = Format("parquet", read, ("pq",), unit="row", streamed=False)


def _batches(file: Any, wanted: Wanted, attributes: list[str]) -> Iterator[pa.RecordBatch]:
    columns = None if wanted.keep else list(dict.fromkeys([*wanted.columns, *attributes]))
    yield from file.iter_batches(BATCH_ROWS, columns=columns)
    if wanted.keep and not file.metadata.num_rows:  # an empty batch, for its columns
        yield pa.RecordBatch.from_pylist([], schema=file.schema_arrow)


def _raw_record(batch: pa.RecordBatch, rows: NDArray[np.int64], wanted: Wanted) -> Callable[[int], Any]:
    return lambda row: {name: batch.column(name)[int(row - rows[0])].as_py() for name in wanted.columns}


def _check_type(source: Source, field: pa.Field, *, is_value: bool) -> None:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    types = pa.types
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if is_value and not (number or types.is_decimal(kind)):
        raise SourceError(f"{source.name}: column {field.name} is {field.type}, not a number")
    if not (is_value or number or is_text(kind) or types.is_binary(kind) or types.is_large_binary(kind)):
        raise SourceError(f"{source.name}: column {field.name} is {field.type}; ids must be int or text")
