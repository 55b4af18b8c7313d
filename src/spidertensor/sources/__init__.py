"""Files and standard input -> raw entries with a position, in constant memory.

    for chunk in read(named("ratings.csv.gz"), ["user", "movie"], "rating"): ...

CSV, TSV and JSON lines (plain, .gz, .zst, or a pipe) have one row on each line; the number of a row is that
of its line, a header being line 1. Parquet has rows 1, 2, 3, ... A row that cannot be used is reported with
its number and the reason; the rows around it are not affected.

Which id does a text mean? A type guessed from the first block of a file would depend on where blocks end, so
the rule looks at one text alone: the plain decimal form of an int64 is that int, any other text is a str.
"42" is 42 on every line; "042", "4.0" and "+4" stay the different texts that they are. Parquet and JSON have
types and keep them. `all_text` switches the rule off, for a mode whose known ids are all str.

Lines are parsed a block at a time, in compiled code. Where that fails (a broken line, mixed types) the block
is parsed again line by line: same result, one to two microseconds per row.

A new kind of source: a file with its `Format`, and its line in FORMATS.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spidertensor.sources.columns import to_ids, to_labels, to_numbers
from spidertensor.sources.csv_lines import CSV, TSV
from spidertensor.sources.json_lines import JSONL
from spidertensor.sources.parquet_file import PARQUET
from spidertensor.sources.source import BadRow, Parsed, Source, SourceError, Wanted
from spidertensor.spider.likelihoods import GAUSSIAN, Likelihood

__all__ = ["FORMATS", "BadRow", "Chunk", "Source", "SourceError", "named", "read"]

FORMATS = {each.name: each for each in (CSV, TSV, JSONL, PARQUET)}
COMPRESSIONS = {"gz": "gzip", "zst": "zstd"}


class Chunk(NamedTuple):
    """The good rows of a part of the source, and the bad ones."""

    columns: list[NDArray[Any]]  # ids, one column per mode
    values: NDArray[np.float64] | None
    rows: NDArray[np.int64]  # the number of each good row
    bad: list[BadRow]
    end: int  # the number of the last row, good or bad
    share: float | None  # of the source that has been read; None if its length is not known
    last: str | None = None  # sha256 of the last line; None if the source has no lines
    records: Any = None  # kept good rows with all their columns: a pyarrow Table, or a list of dicts
    quiet: bool = False  # no rows: nothing has come for a while


def named(name: str, kind: str | None = None, names: Sequence[str] | None = None) -> Source:
    """The source with the name of a file, or "-" for standard input.

    kind:  "csv", "jsonl.gz", ...: overrides the file ending
    names: of the columns, if the file has no header
    """
    *front, ending = (kind or ("csv" if name == "-" else name)).lower().split(".")
    compression = COMPRESSIONS.get(ending)
    if compression:
        ending = front[-1] if front else ""
    format = next((each for each in FORMATS.values() if ending in (each.name, *each.endings)), None)  # noqa: A001
    if format is None or (compression and not format.streamed):
        packed = ", ".join(each.name for each in FORMATS.values() if each.streamed)
        raise SourceError(f"{name}: unknown format, use {', '.join(FORMATS)} ({packed} also .gz or .zst)")
    if name == "-" and not format.streamed:
        raise SourceError(f"standard input cannot be {format.name}, which is not read from start to end")
    if names is not None and not format.headless:
        raise SourceError(f"{name}: {format.name} has names for its columns already")
    path = None if name == "-" else name
    return Source(name, path, format, compression, None if names is None else tuple(names))


def read(
    source: Source,
    modes: Sequence[str],
    value: str | None = None,
    *,
    likelihood: Likelihood = GAUSSIAN,
    all_text: Sequence[bool] | None = None,
    skip: int = 0,
    last: str | None = None,
    keep: bool = False,
    quiet: float | None = None,
    labels: tuple[str, str] | None = None,
) -> Iterator[Chunk]:
    """The rows after row number `skip`, in chunks, as soon as they arrive.

    likelihood: a row with a value that it does not allow is bad
    all_text:   per mode, whether a text is a str even if it looks like an int (formats without types only)
    last:       the `last` of the chunk that ended at row `skip`: SourceError if that line has changed
    keep:       also give the rows with all their columns
    quiet:      a pipe (not a compressed one) from which nothing has come for so many seconds gives an empty
                chunk, so that whoever reads can do something else meanwhile
    labels:     the texts that stand for the values 0 and 1; a row with another one is bad
    """
    wanted = Wanted(modes, value, likelihood, all_text or [False] * len(modes), keep, quiet, labels)
    if len(set(wanted.columns)) < len(wanted.columns):
        raise SourceError(f"a column is named twice: {', '.join(wanted.columns)}")
    end = 0
    with _one_error(source):
        for part in source.format.read(source, wanted, skip, last):
            end = part.end
            if part.quiet:
                yield Chunk([], None, part.rows, [], end, None, quiet=True)
            elif end > skip:
                yield _checked(part, wanted, typed=source.format.typed)
    if end < skip:
        place = f"{source.format.unit} {skip:,}"
        raise SourceError(f"{source.name}: ends before {place}, up to which it has been learned")


@contextmanager
def _one_error(source: Source) -> Iterator[None]:
    """Arrow's errors about a damaged file become a SourceError; other OSErrors stay."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise SourceError(f"{source.name}: {str(error).splitlines()[0]}") from error


def _checked(parsed: Parsed, wanted: Wanted, *, typed: bool) -> Chunk:
    """Columns as ids and values; rows where that fails are bad."""
    wrong: dict[int, str] = {}  # place -> reason; the first reason counts
    columns = []
    for name, all_text, column in zip(wanted.modes, wanted.all_text, parsed.columns, strict=False):
        ids, missing = to_ids(column, find_ints=not (typed or all_text), empty_is_missing=not typed)
        columns.append(ids)
        wrong = {place: f"{name} {reason}" for place, reason in missing.items()} | wrong
    values = None
    if wanted.value is not None:
        if wanted.labels is None:
            values, no_number = to_numbers(parsed.columns[-1], wanted.likelihood)
        else:
            values, no_number = to_labels(parsed.columns[-1], wanted.labels)
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
