"""Parse JSON lines: all lines of a block at once, or one by one if that fails."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spidertensor.sources.lines import BOM, Parser, not_text, parsed_lines, raw_line, shown
from spidertensor.sources.source import BadRow, Format, Parsed, Source, Wanted


def read(source: Source, wanted: Wanted, skip: int, last: str | None) -> Iterator[Parsed]:
    return parsed_lines(source, skip, last, partial(parser, source, wanted), wanted, header=False)


_TWO_OBJECTS = re.compile(rb"\}[ \t\r]*\{")  # on one line, or in a text
JSONL = Format("jsonl", read, ("ndjson",))


def parser(source: Source, wanted: Wanted, header: bytes) -> Parser:
    def parse(block: bytes, start: int, end: int) -> Parsed:
        # attributes may have any type, even several
        table = None if wanted.keep or wanted.attributes else _table(block, wanted)
        if table is not None and table.num_rows == end - start:
            columns = [table.column(name).combine_chunks() for name in wanted.columns]
            rows = np.arange(start + 1, end + 1)
            return Parsed(columns, rows, [], end, raw_line(block, start), None, None)
        objects, rows, bad = _by_line(block, start, source)
        columns = [[each.get(name) for each in objects] for name in wanted.columns]
        others = {name: [each.get(name) for each in objects] for name in wanted.attributes}
        records = objects if wanted.keep else None
        raw = raw_line(block, start)
        return Parsed(columns, rows, bad, end, raw, None, records, attributes=others)

    return parse


def _table(block: bytes, wanted: Wanted) -> pa.Table | None:
    """Parse all lines at once if all have the types of the first; None if that fails.

    The types are given because arrow would read some texts as times. It ignores line ends: two objects on one
    line would offset one object on two. It also drops a byte order mark at the start of any block, and does
    not check for UTF-8.
    """
    from pyarrow import json as arrow

    if block.startswith(BOM) or _TWO_OBJECTS.search(block):
        return None
    try:
        block.decode()
        first = json.loads(block.partition(b"\n")[0])
        kinds = {int: pa.int64(), str: pa.string()}
        number = dict.fromkeys(wanted.numbers, pa.float64())
        schema = [(name, number.get(name) or kinds[type(first[name])]) for name in wanted.modes]
        if wanted.value is not None:
            schema.append((wanted.value, pa.float64()))
        return arrow.read_json(
            pa.py_buffer(block),
            arrow.ReadOptions(use_threads=False, block_size=len(block) + 1),
            arrow.ParseOptions(explicit_schema=pa.schema(schema), unexpected_field_behavior="ignore"),
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _by_line(
    block: bytes, start: int, source: Source
) -> tuple[list[dict[str, Any]], NDArray[np.int64], list[BadRow]]:
    objects, rows, bad = [], [], []
    for number, line in enumerate(io.BytesIO(block), start + 1):
        if not line.strip():
            continue
        try:
            parsed = json.loads(line.decode())  # given bytes, it would guess the encoding
        except UnicodeDecodeError:
            bad.append(BadRow(number, not_text(source), shown(line)))
            continue
        except (ValueError, RecursionError):
            bad.append(BadRow(number, "not JSON", shown(line)))
            continue
        if isinstance(parsed, dict):
            objects.append(parsed)
            rows.append(number)
        else:
            bad.append(BadRow(number, "not a JSON object", shown(line)))
    return objects, np.array(rows, np.int64), bad
