"""Files and standard input -> raw entries with a position, in constant memory.

    for chunk in read(Source.named("ratings.csv.gz"), ["user", "movie"], "rating"): ...

CSV, TSV and JSON lines (plain, .gz, .zst, or a pipe) have one row on each line; a row's number is that of its
line, a header being line 1. Parquet has rows 1, 2, 3, ... A row that cannot be used is found by itself, with
its number and the reason, and never spoils the rows around it.

Which id does a text stand for? A type guessed from the first block of a file would change with where blocks
end, so the rule looks at one text alone: the plain decimal form of an int64 is that int, any other text is a
str. "42" is 42 on every line; "042", "4.0", "+4" stay the different ids that they are. Parquet and JSON know
their types and keep them. `all_text` switches the rule off, for a mode whose known ids are all str.

Lines are parsed a block at a time, in compiled code. Where that does not work out (a broken line, mixed
types) the block is parsed again line by line: same result, one to two microseconds per row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spidertensor.sources.columns import is_text, to_ids, to_numbers
from spidertensor.sources.lines import parsed_lines
from spidertensor.sources.rows import FORMATS, BadRow, Parsed, Source, SourceError, Wanted, find_columns

__all__ = ["FORMATS", "BadRow", "Chunk", "Source", "SourceError", "read"]

ROWS = 1 << 16  # of a Parquet batch


class Chunk(NamedTuple):
    """The good rows of a stretch of the source, and the bad ones."""

    columns: list[NDArray[Any]]  # ids, one column per mode
    values: NDArray[np.float64] | None
    rows: NDArray[np.int64]  # the number of each good row
    bad: list[BadRow]
    end: int  # the number of the last row, good or bad
    share: float | None  # of the source that has been read; None if its length is not known
    last: str | None = None  # sha256 of the last line; None for Parquet
    records: Any = None  # kept good rows with all their columns: a pyarrow Table, or a list of dicts


def read(
    source: Source,
    modes: Sequence[str],
    value: str | None = None,
    *,
    binary: bool = False,
    all_text: Sequence[bool] | None = None,
    skip: int = 0,
    last: str | None = None,
    keep: bool = False,
) -> Iterator[Chunk]:
    """The rows after row number `skip`, in chunks that come as the input does.

    binary:   a value other than 0 and 1 makes a bad row
    all_text: per mode, whether a text is a str even where it looks like an int (text formats only)
    last:     the `last` of the chunk that ended at row `skip`: SourceError if that line is another now
    keep:     also give the rows with all their columns
    """
    wanted = Wanted(modes, value, binary, all_text or [False] * len(modes), keep)
    if len(set(wanted.columns)) < len(wanted.columns):
        raise SourceError(f"a column is named twice: {', '.join(wanted.columns)}")
    if source.format == "parquet":
        parts = _parquet(source, wanted, skip)
    else:
        parts = parsed_lines(source, wanted, skip, last)
    end = 0
    with _one_error(source):
        for part in parts:
            end = part.end
            if end > skip:
                yield _checked(part, wanted, typed=source.format in ("parquet", "jsonl"))
    if end < skip:
        raise SourceError(
            f"{source.name}: ends before {source.unit} {skip:,}, up to which it has been learned"
        )


@contextmanager
def _one_error(source: Source) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        # arrow's own: a damaged archive or file
        raise SourceError(f"{source.name}: {str(error).splitlines()[0]}") from error


# --- Parquet


def _parquet(source: Source, wanted: Wanted, skip: int) -> Iterator[Parsed]:
    from pyarrow import parquet

    assert source.path is not None
    with open(source.path, "rb") as handle, parquet.ParquetFile(handle) as file:
        schema, total = file.schema_arrow, file.metadata.num_rows
        for name, place in zip(wanted.columns, find_columns(source, schema.names, wanted), strict=True):
            _check_type(source, schema.field(place), is_value=name == wanted.value)
        end = 0
        for batch in file.iter_batches(ROWS, columns=None if wanted.keep else wanted.columns):
            start, end = end, end + batch.num_rows
            batch = batch.slice(min(max(skip - start, 0), batch.num_rows))
            rows = np.arange(end - batch.num_rows + 1, end + 1)
            columns = [batch.column(name) for name in wanted.columns]
            yield Parsed(
                columns, rows, [], end, _raw_record(batch, rows, wanted), end / total,
                pa.Table.from_batches([batch]) if wanted.keep else None,
            )  # fmt: skip


def _raw_record(batch: pa.RecordBatch, rows: NDArray[np.int64], wanted: Wanted) -> Callable[[int], Any]:
    return lambda row: {name: batch.column(name)[int(row - rows[0])].as_py() for name in wanted.columns}


def _check_type(source: Source, field: pa.Field, *, is_value: bool) -> None:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    types = pa.types
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if is_value and not (number or types.is_decimal(kind)):
        raise SourceError(f"{source.name}: column {field.name} is {field.type}, not a number")
    if not (is_value or number or is_text(kind) or types.is_binary(kind) or types.is_large_binary(kind)):
        raise SourceError(f"{source.name}: column {field.name} is {field.type}, ids are int or text")


# --- what the rows say


def _checked(parsed: Parsed, wanted: Wanted, *, typed: bool) -> Chunk:
    wrong: dict[int, str] = {}  # place -> reason; the first reason counts
    columns = []
    for name, all_text, column in zip(wanted.modes, wanted.all_text, parsed.columns, strict=False):
        ids, missing = to_ids(column, find_ints=not (typed or all_text), empty_is_missing=not typed)
        columns.append(ids)
        wrong = {place: f"{name} {reason}" for place, reason in missing.items()} | wrong
    values = None
    if wanted.value is not None:
        values, no_number = to_numbers(parsed.columns[-1], binary=wanted.binary)
        wrong = {place: f"{wanted.value} {reason}" for place, reason in no_number.items()} | wrong
    rows, records, bad = parsed.rows, parsed.records, parsed.bad
    if wrong:
        found = [BadRow(int(rows[i]), reason, parsed.raw(int(rows[i]))) for i, reason in wrong.items()]
        bad = sorted([*bad, *found], key=lambda each: each.row)
        good = np.ones(len(rows), bool)
        good[list(wrong)] = False
        columns = [column[good] for column in columns]
        values = None if values is None else values[good]
        rows = rows[good]
        if isinstance(records, pa.Table):
            records = records.filter(pa.array(good))
        elif records is not None:
            records = [record for record, fine in zip(records, good, strict=True) if fine]
    return Chunk(columns, values, rows, bad, parsed.end, parsed.share, parsed.last, records)
