"""Parse CSV and TSV: all lines of a block at once, or one by one if that fails."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spidertensor.sources.lines import BOM, MAX_LINE_BYTES, Parser, not_text, parsed_lines, raw_line, shown
from spidertensor.sources.source import (
    BadRow,
    Format,
    Parsed,
    Source,
    SourceError,
    Wanted,
    find_attributes,
    find_columns,
)


def read(source: Source, wanted: Wanted, skip: int, last: str | None) -> Iterator[Parsed]:
    parse = partial(parser, source, wanted)
    return parsed_lines(source, skip, last, parse, wanted, header=source.names is None)


CSV = Format("csv", read, typed=False, headless=True)
TSV = Format("tsv", read, ("tab",), typed=False, headless=True)


def parser(source: Source, wanted: Wanted, header: bytes) -> Parser:
    delimiter = source.delimiter
    if source.names is not None:
        names = list(source.names)
    else:
        if b"\r" in header.rstrip(b"\r"):
            raise SourceError(f"{source.name}: lines end with CR only, convert them to LF first")
        try:
            with _long_fields():
                names = next(csv.reader([header.decode().rstrip("\r")], delimiter=delimiter), [])
        except (UnicodeDecodeError, csv.Error):
            names = []
        if not names:
            remedy = "if there is none, pass the column names"
            raise SourceError(f"{source.name}: no header on line 1", kind="no header", remedy=remedy)
    places = find_columns(source, names, wanted)
    attributes = find_attributes(names, wanted)
    used = list(range(len(names))) if wanted.keep else list(dict.fromkeys([*places, *attributes.values()]))

    def parse(block: bytes, start: int, end: int) -> Parsed:
        bad: list[BadRow] = []
        table = _table(block, delimiter, len(names), used)
        if table is not None and table.num_rows == end - start:
            rows = np.arange(start + 1, end + 1)
        else:
            table, rows, bad = _by_line(block, start, source, len(names), used)
        columns = [table.column(used.index(place)).combine_chunks() for place in places]
        others = {
            name: table.column(used.index(place)).combine_chunks() for name, place in attributes.items()
        }
        records = table.rename_columns(names) if wanted.keep else None
        raw = raw_line(block, start)
        return Parsed(columns, rows, bad, end, raw, None, records, attributes=others)

    return parse


def _table(block: bytes, delimiter: str, width: int, used: list[int]) -> pa.Table | None:
    """Parse all lines at once, as text; None if they must be parsed one by one.

    That is the case with empty lines, which are not rows, and with a line break inside quotes, which would
    join two lines: there are fewer rows than lines, or an odd number of quotes. Arrow would also end a line
    at a lone CR, and drop a byte order mark at the start of any block.
    """
    from pyarrow import csv as arrow

    if b"\n\n" in block or b"\n\r" in block or block[:1] in b"\r\n" or block.count(b'"') % 2:
        return None
    if block.startswith(BOM) or (b"\r" in block and block.count(b"\r") != block.count(b"\r\n")):
        return None
    names = [str(place) for place in range(width)]  # a header may have the same name twice
    try:
        return arrow.read_csv(
            pa.py_buffer(block),
            arrow.ReadOptions(column_names=names, block_size=len(block) + 1, use_threads=False),
            arrow.ParseOptions(delimiter=delimiter, ignore_empty_lines=False),
            arrow.ConvertOptions(
                include_columns=[names[place] for place in used],
                column_types={names[place]: pa.string() for place in used},
                strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid:
        return None


def _by_line(
    block: bytes, start: int, source: Source, width: int, used: list[int]
) -> tuple[pa.Table, NDArray[np.int64], list[BadRow]]:
    texts, rows, bad = [], [], []
    with _long_fields():
        for number, line in enumerate(io.BytesIO(block), start + 1):
            if not line.strip(b"\r\n"):
                continue
            fields, reason = _fields(line, source, width, used)
            if reason:
                bad.append(BadRow(number, reason, shown(line)))
            else:
                texts.append(fields)
                rows.append(number)
    columns = list(zip(*texts, strict=True)) if texts else [()] * len(used)
    arrays = [pa.array(column, pa.string()) for column in columns]
    return pa.Table.from_arrays(arrays, [str(place) for place in used]), np.array(rows, np.int64), bad


def _fields(line: bytes, source: Source, width: int, used: list[int]) -> tuple[list[str], str]:
    """The used fields of a line, and the reason if the line is bad."""
    text = line.decode(errors="surrogateescape").rstrip("\r\n") + "\n"
    try:
        fields = next(csv.reader([text], delimiter=source.delimiter))
    except csv.Error as error:
        return [], str(error)
    if "\n" in fields[-1]:  # the reader took the line end as part of the field
        return [], "a quote is not closed on its line"
    if len(fields) != width:
        return [], f"{len(fields)} fields instead of {width}"
    wanted = [fields[place] for place in used]
    try:
        "".join(wanted).encode()
    except UnicodeEncodeError:
        return [], not_text(source)
    return wanted, ""


@contextmanager
def _long_fields() -> Iterator[None]:
    """Lift the csv module's limit of 131,072 characters per field, which arrow does not have."""
    before = csv.field_size_limit(MAX_LINE_BYTES)
    try:
        yield
    finally:
        csv.field_size_limit(before)
