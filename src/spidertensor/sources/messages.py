"""Parse the messages of a stream into columns, as for the lines of a file.

A message is one row: a JSON object, a CSV line, or the fields of a Redis entry. No message depends on an
earlier one, so reading can start anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spidertensor.sources import csv_lines, json_lines
from spidertensor.sources.lines import Parser, shown
from spidertensor.sources.source import BadRow, Format, Parsed, Source, Wanted

Cut = Callable[[list[Any], int], Parsed]  # messages, and the number of the message before them


class MessageFormat(NamedTuple):
    """The format of messages.

    cutter:   makes a Cut from what is wanted and the column names, if messages do not have them
    typed:    ids have types; otherwise the text decides
    headless: the column names must be given
    unit:     what one row is called
    """

    name: str
    cutter: Callable[[Wanted, Sequence[str] | None], Cut]
    typed: bool
    headless: bool
    unit: str = "message"


def _json(wanted: Wanted, names: Sequence[str] | None) -> Cut:
    parse = json_lines.parser(Source("a message", None, json_lines.JSONL), wanted, b"")
    return lambda messages, start: _as_lines(messages, start, parse, _json_line)


def _separated(format: Format) -> Callable[[Wanted, Sequence[str] | None], Cut]:  # noqa: A002
    def cutter(wanted: Wanted, names: Sequence[str] | None) -> Cut:
        mark = "\t" if format is csv_lines.TSV else ","
        source = Source("a message", None, format, names=tuple(names or ()), delimiter=mark)
        parse = csv_lines.parser(source, wanted, b"")
        return lambda messages, start: _as_lines(messages, start, parse, _csv_line)

    return cutter


def _as_lines(
    messages: list[bytes | None], start: int, parse: Parser, one_line: Callable[[bytes], bytes]
) -> Parsed:
    """Parse messages at once, as lines of a text. Parsers skip empty lines, but an empty message is bad."""
    lines = [each or b"" for each in messages]  # Kafka has messages without a value
    block = b"\n".join(lines)
    if block.count(b"\n") >= len(lines):
        block = b"\n".join([one_line(each) if b"\n" in each else each for each in lines])
    parsed = parse(block + b"\n", start, start + len(lines))
    if len(parsed.rows) == len(lines):
        return parsed
    reasons = {each.row: each.reason for each in parsed.bad}
    good = set(parsed.rows.tolist())
    bad = [
        BadRow(row, _odd(line) or reasons.get(row, "an empty message"), shown(line))
        for row, line in enumerate(lines, start + 1)
        if row not in good
    ]
    return parsed._replace(bad=bad)


def _odd(message: bytes) -> str:
    """The reason for a bad message that line parsers do not know, or would word for files; else ''."""
    if message.startswith((b"\0", b"Obj\x01")):  # prefixes of schema registry messages and Avro files
        return "Avro and Protobuf are not supported: have a connector or ksqlDB write the topic as JSON"
    try:
        message.decode()
    except UnicodeDecodeError:
        return "not UTF-8 text"
    return ""


def _json_line(message: bytes) -> bytes:
    if not message.strip():
        return b""
    try:
        return json.dumps(json.loads(message.decode())).encode()  # line ends in JSON are only layout
    except (ValueError, RecursionError):
        return message.replace(b"\n", b"\0")  # still invalid: JSON does not allow \0


def _csv_line(message: bytes) -> bytes:
    message = message.rstrip(b"\r\n")
    return b'"more than one line' if b"\n" in message else message  # an open quote makes the row bad


def _fields(wanted: Wanted, names: Sequence[str] | None) -> Cut:
    keys = [name.encode() for name in wanted.columns]

    def cut(entries: list[list[bytes]], start: int) -> Parsed:
        end = start + len(entries)
        columns, rows, bad = _at_once(entries, keys), np.arange(start + 1, end + 1), []
        if columns is None:
            columns, rows, bad = _one_by_one(entries, keys, start)
        good = [entries[row - start - 1] for row in rows.tolist()] if wanted.attributes else []
        others = {name: _optional(good, name.encode()) for name in wanted.attributes}
        return Parsed(
            columns, rows, bad, end, lambda row: _shown(entries[row - start - 1]), None, None,
            attributes=others,
        )  # fmt: skip

    return cut


def _at_once(entries: list[list[bytes]], keys: list[bytes]) -> list[pa.Array] | None:
    """The columns, if all entries have the fields of the first, in its order; else None."""
    names = entries[0][::2]
    width = len(entries[0])
    if any(names.count(key) != 1 for key in keys) or any(len(each) != width for each in entries):
        return None
    by_field = list(zip(*entries, strict=True))
    if any(by_field[2 * place].count(name) != len(entries) for place, name in enumerate(names)):
        return None
    try:
        return [pa.array(by_field[2 * names.index(key) + 1], pa.string()) for key in keys]
    except (pa.ArrowInvalid, UnicodeDecodeError):  # not UTF-8
        return None


def _one_by_one(
    entries: list[list[bytes]], keys: list[bytes], start: int
) -> tuple[list[pa.Array], NDArray[np.int64], list[BadRow]]:
    texts, rows, bad = [], [], []
    for number, entry in enumerate(entries, start + 1):
        fields = dict(zip(entry[::2], entry[1::2], strict=True))
        missing = next((key for key in keys if key not in fields), None)
        try:
            found = [fields[key].decode() for key in keys if key in fields]
        except UnicodeDecodeError:
            bad.append(BadRow(number, "not UTF-8 text", _shown(entry)))
            continue
        if missing is None:
            texts.append(found)
            rows.append(number)
            continue
        reason = f"no field {missing.decode()}"
        if len(fields) == 1 and next(iter(fields.values())).lstrip()[:1] == b"{":
            reason += ": if entries hold JSON in one field, use format json"
        bad.append(BadRow(number, reason, _shown(entry)))
    columns = list(zip(*texts, strict=True)) if texts else [()] * len(keys)
    return [pa.array(column, pa.string()) for column in columns], np.array(rows, np.int64), bad


def _optional(entries: list[list[bytes]], key: bytes) -> pa.Array:
    """The field of each entry, null where there is none."""
    found = (dict(zip(entry[::2], entry[1::2], strict=True)).get(key) for entry in entries)
    return pa.array([None if each is None else each.decode(errors="replace") for each in found], pa.string())


def _shown(entry: list[bytes]) -> dict[str, str]:
    return {shown(name): shown(value) for name, value in zip(entry[::2], entry[1::2], strict=True)}


FORMATS = {
    "json": MessageFormat("json", _json, typed=True, headless=False),
    "csv": MessageFormat("csv", _separated(csv_lines.CSV), typed=False, headless=True),
    "tsv": MessageFormat("tsv", _separated(csv_lines.TSV), typed=False, headless=True),
    "fields": MessageFormat("fields", _fields, typed=False, headless=False),
}
