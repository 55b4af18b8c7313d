"""CSV, TSV and JSON lines: whole lines, a block at a time, all at once or else one by one."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spidertensor.sources.rows import BadRow, Parsed, Source, SourceError, Wanted, find_columns

BLOCK = 1 << 20  # bytes: some 64 thousand rows of two ids and a value
MAX_LINE = 1 << 26  # bytes: a longer line is not a line


def parsed_lines(source: Source, wanted: Wanted, skip: int, last: str | None) -> Iterator[Parsed]:
    with _opened(source) as (stream, progress):
        blocks = _blocks(source, stream)
        first = next(blocks, b"")
        if first.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise SourceError(f"{source.name}: UTF-16 text, convert it to UTF-8 first")
        first = first.removeprefix(b"\xef\xbb\xbf")
        start = 0
        if source.format == "jsonl":
            parse = _json_parser(wanted)
        else:
            header = b""
            if source.names is None:
                header, _, first = first.partition(b"\n")
                start = 1
            parse = _csv_parser(source, header, wanted)
        for block in _chain(first, blocks):
            end = start + block.count(b"\n") + (not block.endswith(b"\n"))
            if start < skip <= end:
                cut = block.split(b"\n", skip - start)
                if last is not None and _digest(cut[skip - start - 1]) != last:
                    raise SourceError(
                        f"{source.name}: line {skip:,}, the last that was learned, has changed since (was it "
                        "still being written?): the model cannot go on from there"
                    )
                block, start = cut[-1], skip
            if end <= skip:
                yield _learned_before(end)
            else:
                share, digest = progress(), _digest(block[block.rfind(b"\n", 0, -1) + 1 :])
                yield parse(block, start, end)._replace(share=share, last=digest)
            start = end


def _digest(line: bytes) -> str:
    return hashlib.sha256(line.rstrip(b"\r\n")).hexdigest()


def _learned_before(end: int) -> Parsed:
    return Parsed([], np.empty(0, np.int64), [], end, str, None, None)


def _chain(first: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from blocks


@contextmanager
def _opened(source: Source) -> Iterator[tuple[Any, Callable[[], float | None]]]:
    """A stream of bytes, and how far in its file it is."""
    if source.path is None:
        # unbuffered: a read returns what there is, so that a slow pipe is learned as it comes
        raw = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        size = 0
    else:
        raw = open(source.path, "rb", buffering=0)  # noqa: SIM115 (closed below)
        size = os.fstat(raw.fileno()).st_size
    try:
        stream = raw if source.compression is None else pa.CompressedInputStream(raw, source.compression)
        yield stream, lambda: raw.tell() / size if size else None
    finally:
        if source.path is not None:
            raw.close()


def _blocks(source: Source, stream: Any) -> Iterator[bytes]:
    """Blocks of whole lines."""
    rest = b""
    while data := stream.read(BLOCK):
        cut = data.rfind(b"\n") + 1
        if cut:
            yield rest + data[:cut]
            rest = data[cut:]
        else:
            rest += data
        if len(rest) > MAX_LINE:
            raise SourceError(f"{source.name}: a line of more than {MAX_LINE >> 20} MiB, is this text?")
    if rest:
        yield rest


def _raw_line(block: bytes, start: int) -> Callable[[int], str]:
    lines: list[bytes] = []

    def raw(row: int) -> str:
        if not lines:  # cut only when a row is bad
            lines.extend(block.split(b"\n"))
        return _shown(lines[row - start - 1])

    return raw


def _shown(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode("utf-8", "backslashreplace")


# --- CSV and TSV

Parser = Callable[[bytes, int, int], Parsed]


def _csv_parser(source: Source, header: bytes, wanted: Wanted) -> Parser:
    delimiter = "\t" if source.format == "tsv" else ","
    if source.names is not None:
        names = list(source.names)
    else:
        try:
            names = next(csv.reader([header.decode().rstrip("\r")], delimiter=delimiter), [])
        except (UnicodeDecodeError, csv.Error):
            names = []
        if not names:
            raise SourceError(
                f"{source.name}: no header on line 1 (--columns names the columns if it has none)"
            )
    places = find_columns(source, names, wanted)
    used = list(range(len(names))) if wanted.keep else places

    def parse(block: bytes, start: int, end: int) -> Parsed:
        bad: list[BadRow] = []
        table = _csv_table(block, delimiter, len(names), used)
        if table is not None and table.num_rows == end - start:
            rows = np.arange(start + 1, end + 1)
        else:
            table, rows, bad = _csv_by_line(block, start, delimiter, len(names), used)
        columns = [table.column(used.index(place)).combine_chunks() for place in places]
        records = table.rename_columns(names) if wanted.keep else None
        return Parsed(columns, rows, bad, end, _raw_line(block, start), None, records)

    return parse


def _csv_table(block: bytes, delimiter: str, width: int, used: list[int]) -> pa.Table | None:
    """All lines at once, as text; None if they must be looked at one by one.

    So it is for empty lines, which are not rows, and for a quoted line break, which would join two lines:
    then there are fewer rows than lines, or a quote too many at the end of the block.
    """
    from pyarrow import csv as arrow

    if b"\n\n" in block or b"\n\r" in block or block[:1] in b"\r\n" or block.count(b'"') % 2:
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


def _csv_by_line(
    block: bytes, start: int, delimiter: str, width: int, used: list[int]
) -> tuple[pa.Table, NDArray[np.int64], list[BadRow]]:
    texts, rows, bad = [], [], []
    for row, line in enumerate(io.BytesIO(block), start + 1):
        if not line.strip(b"\r\n"):
            continue
        try:
            fields = next(csv.reader([line.decode().rstrip("\r\n") + "\n"], delimiter=delimiter))
        except UnicodeDecodeError:
            reason = "not UTF-8 text: if the whole file is in another encoding, convert it first"
        except csv.Error as error:
            reason = str(error)
        else:
            if "\n" in fields[-1]:  # the reader took the end of the line into the field
                reason = "a quote is not closed on its line"
            elif len(fields) != width:
                reason = f"{len(fields)} fields instead of {width}"
            else:
                texts.append([fields[place] for place in used])
                rows.append(row)
                continue
        bad.append(BadRow(row, reason, _shown(line)))
    columns = list(zip(*texts, strict=True)) if texts else [()] * len(used)
    arrays = [pa.array(column, pa.string()) for column in columns]
    return pa.Table.from_arrays(arrays, [str(place) for place in used]), np.array(rows, np.int64), bad


# --- JSON lines


def _json_parser(wanted: Wanted) -> Parser:
    def parse(block: bytes, start: int, end: int) -> Parsed:
        table = None if wanted.keep else _json_table(block, wanted)
        if table is not None and table.num_rows == end - start:
            columns = [table.column(name).combine_chunks() for name in wanted.columns]
            rows = np.arange(start + 1, end + 1)
            return Parsed(columns, rows, [], end, _raw_line(block, start), None, None)
        objects, rows, bad = _json_by_line(block, start)
        columns = [[each.get(name) for each in objects] for name in wanted.columns]
        records = objects if wanted.keep else None
        return Parsed(columns, rows, bad, end, _raw_line(block, start), None, records)

    return parse


def _json_table(block: bytes, wanted: Wanted) -> pa.Table | None:
    """All lines at once, if all have the types of the first; arrow's own guess would make times of texts."""
    from pyarrow import json as arrow

    try:
        first = json.loads(block.partition(b"\n")[0])
        kinds = {int: pa.int64(), str: pa.string()}
        schema = [(name, kinds[type(first[name])]) for name in wanted.modes]
        if wanted.value is not None:
            schema.append((wanted.value, pa.float64()))
        return arrow.read_json(
            pa.py_buffer(block),
            arrow.ReadOptions(use_threads=False, block_size=len(block) + 1),
            arrow.ParseOptions(explicit_schema=pa.schema(schema), unexpected_field_behavior="ignore"),
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _json_by_line(block: bytes, start: int) -> tuple[list[dict[str, Any]], NDArray[np.int64], list[BadRow]]:
    objects, rows, bad = [], [], []
    for row, line in enumerate(io.BytesIO(block), start + 1):
        if not line.strip():
            continue
        try:
            parsed = json.loads(line)
        except (ValueError, RecursionError):
            bad.append(BadRow(row, "not JSON", _shown(line)))
            continue
        if isinstance(parsed, dict):
            objects.append(parsed)
            rows.append(row)
        else:
            bad.append(BadRow(row, "not a JSON object", _shown(line)))
    return objects, np.array(rows, np.int64), bad
