"""Read Parquet in batches; rows are numbered from 1, and types are kept.

A small file can hold much: a text is stored once for all rows that have it, and a list of equal numbers takes
no room. So batches are bounded by what they take in memory, and texts are read as a dictionary with indices,
for as many rows at once as fit when they are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
BATCH_BYTES = 1 << 26


def read(source: Source, wanted: Wanted, skip: int, last: str | None) -> Iterator[Parsed]:
    from pyarrow import parquet

    assert source.path is not None
    with open(source.path, "rb") as handle, parquet.ParquetFile(handle) as file:
        schema, total = file.schema_arrow, file.metadata.num_rows
        for name, place in zip(wanted.columns, find_columns(source, schema.names, wanted), strict=True):
            numeric = name == wanted.value or name in wanted.numbers
            _check_type(source, schema.field(place), is_value=numeric)
        end, attributes = 0, list(find_attributes(schema.names, wanted))
        for batch in _batches(handle, file, wanted, attributes):
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


def _batches(handle: Any, file: Any, wanted: Wanted, attributes: list[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import parquet

    schema, leaves = file.schema_arrow, [file.schema.column(n) for n in range(len(file.schema))]
    columns = schema.names if wanted.keep else list(dict.fromkeys([*wanted.columns, *attributes]))
    used = [n for n, leaf in enumerate(leaves) if leaf.path.split(".")[0] in columns]
    texts = [leaves[n].path for n in used if leaves[n].physical_type == "BYTE_ARRAY"]
    with parquet.ParquetFile(handle, read_dictionary=texts) as coded:
        for batch in coded.iter_batches(_rows_at_once(file.metadata, used), columns=columns):
            for part in _parts(batch):
                yield _decoded(part, schema) if wanted.keep else part
    if wanted.keep and not file.metadata.num_rows:  # an empty batch, for its columns
        yield pa.RecordBatch.from_pylist([], schema=schema)


def _rows_at_once(metadata: Any, used: list[int]) -> int:
    """As many as take BATCH_BYTES before texts are decoded. used: the columns to be read"""
    rows = BATCH_ROWS
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        chunks = [group.column(n) for n in used]
        size = sum(max(each.total_uncompressed_size, 8 * each.num_values) for each in chunks)
        rows = min(rows, BATCH_BYTES * group.num_rows // max(size, 1))
    return max(rows, 1)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split so that the decoded texts of a part take at most BATCH_BYTES, or it is a single row."""
    sizes = sum((_text_bytes(column) for column in batch.columns), np.zeros(batch.num_rows, np.int64))
    ends = np.cumsum(sizes)
    start = 0
    while start < batch.num_rows:
        before = ends[start - 1] if start else 0
        stop = max(int(np.searchsorted(ends, before + BATCH_BYTES, "right")), start + 1)
        yield batch.slice(start, stop - start)
        start = stop


def _text_bytes(column: pa.Array) -> NDArray[np.int64]:
    """The bytes of the texts in each row once they are decoded."""
    types, kind = pa.types, column.type
    if types.is_dictionary(kind) and _is_bytes(kind.value_type) and len(column.dictionary):
        sizes = (
            pc.call_function("binary_length", [column.dictionary])
            .to_numpy(zero_copy_only=False)
            .astype(np.int64)
        )
        return sizes[column.indices.fill_null(0).to_numpy()]
    if types.is_map(kind):
        return _sums(column.offsets, _text_bytes(column.keys) + _text_bytes(column.items))
    if types.is_list(kind) or types.is_large_list(kind):
        return _sums(column.offsets, _text_bytes(column.values))
    return np.zeros(len(column), np.int64)


def _sums(offsets: pa.Array, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.diff(np.concatenate([[0], np.cumsum(sizes)])[offsets.to_numpy()])


def _decoded(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Decode the texts, but for columns that are dictionaries in the file, too."""
    columns = [
        column.dictionary_decode()
        if pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(schema.field(name).type)
        else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _raw_record(batch: pa.RecordBatch, rows: NDArray[np.int64], wanted: Wanted) -> Callable[[int], Any]:
    return lambda row: {name: batch.column(name)[int(row - rows[0])].as_py() for name in wanted.columns}


def _check_type(source: Source, field: pa.Field, *, is_value: bool) -> None:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    types = pa.types
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if is_value and not (number or types.is_decimal(kind)):
        raise SourceError(f"{source.name}: column {field.name} is {field.type}, not a number")
    if not (is_value or number or _is_bytes(kind)):
        raise SourceError(f"{source.name}: column {field.name} is {field.type}; ids must be int or text")


def _is_bytes(kind: pa.DataType) -> bool:
    return is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
