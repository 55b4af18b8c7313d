"""Read files, standard input and streams as chunks of raw entries with a position, in constant memory.

    for chunk in read(source_by_name("ratings.csv.gz"), ["user", "movie"], "rating"): ...

CSV, TSV and JSON lines (plain, .gz, .zst, the only file in a .zip, or a pipe) have one row per line. A row's
number is its line number; a header is line 1. Parquet rows are numbered 1, 2, 3, ... A row that cannot be
used is reported with its number and the reason; other rows are not affected.

Ids in text files: the plain decimal form of an int64 is that int, any other text is a str. "42" is 42 on
every line; "042", "4.0" and "+4" stay texts. The rule looks at one text alone, since a type guessed from a
block would depend on where blocks end. `all_text` switches it off, for a mode whose known ids are all str.
Parquet and JSON have types and keep them.

Other encodings are converted to UTF-8 before lines are split (encodings.py). Bins turn numbers into ids
(bins.py).

Lines are parsed a block at a time, in compiled code. Where that fails (a broken line, mixed types) the block
is parsed line by line, with the same result.

To add a kind of file: write a module with its `Format`, and list it in FORMATS.

Streams in brokers (Kafka, Redis, NATS) are opened by their URL and give the same chunks:

    with open("redis://localhost:6379/ratings", ["user", "movie"], "rating") as stream:
        for chunk in stream: ...

To add a broker: write its module, and list it in BROKERS (stream.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from spidertensor.missing import MISSING_ID
from spidertensor.sources import encodings
from spidertensor.sources.bins import Bins, binned
from spidertensor.sources.columns import (
    MISSING,
    to_bin_numbers,
    to_cells,
    to_ids,
    to_labels,
    to_numbers,
    with_missing,
)
from spidertensor.sources.csv_lines import CSV, TSV
from spidertensor.sources.json_lines import JSONL
from spidertensor.sources.open_stream import OpenStream
from spidertensor.sources.parquet_file import PARQUET
from spidertensor.sources.source import BadRow, Chunk, Format, Parsed, Source, SourceError, Wanted
from spidertensor.sources.stream import Position, Stream, is_url, read_config, stream_at
from spidertensor.sources.zip_member import only_member
from spidertensor.spider.likelihoods import GAUSSIAN, Likelihood

__all__ = [
    "FORMATS", "MISSING_ID", "BadRow", "Bins", "Chunk", "OpenStream", "Source", "SourceError", "Stream",
    "is_url", "open", "read", "read_config", "source_by_name", "stream_at",
]  # fmt: skip

FORMATS = {each.name: each for each in (CSV, TSV, JSONL, PARQUET)}
COMPRESSIONS = {"gz": "gzip", "zst": "zstd"}


def source_by_name(
    name: str,
    kind: str | None = None,
    names: Sequence[str] | None = None,
    *,
    delimiter: str | None = None,
    encoding: str | None = None,
    decimal: str | None = None,
) -> Source:
    """The source for a file name, or for "-", standard input.

    kind:      "csv", "jsonl.gz", "csv.zip", ...: overrides the file ending, also inside a zip
    names:     column names, if the file has no header
    delimiter: between columns, a single character; by default a comma, in a tsv a tab
    encoding:  of the text; by default UTF-8
    decimal:   "," if numbers have a decimal comma
    """
    ending, member = kind or ("csv" if name == "-" else name), None
    if _is_zip(ending) or _is_zip(name):
        if name == "-":
            raise SourceError("standard input cannot be a zip, which cannot be read sequentially")
        member = only_member(name)
        if _is_zip(ending):
            ending = ending[:-4] if _format_of(ending[:-4])[0] else member
    format, compression = _format_of(ending)  # noqa: A001
    if format is None or ((compression or member) and not format.streamed):
        packed = ", ".join(each.name for each in FORMATS.values() if each.streamed)
        raise SourceError(
            f"{name}: unknown format, use {', '.join(FORMATS)} ({packed} also .gz, .zst or .zip)"
        )
    if compression and member:
        raise SourceError(f"{name}: {member} is compressed twice, unpack it first")
    if name == "-" and not format.streamed:
        raise SourceError(f"standard input cannot be {format.name}, which cannot be read sequentially")
    if names is not None and not format.headless:
        raise SourceError(f"{name}: {format.name} already names its columns")
    if format.typed and (delimiter or decimal):
        raise SourceError(f"{name}: delimiter and decimal mark are for csv and tsv, not for {format.name}")
    if encoding and not format.streamed:
        raise SourceError(f"{name}: {format.name} text is always UTF-8, leave out the encoding")
    delimiter = delimiter or ("\t" if format.name == "tsv" else ",")
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
        raise SourceError(f"{name}: a delimiter is one ASCII character other than a quote, not {delimiter!r}")
    if decimal not in (None, ".", ","):
        raise SourceError(f"{name}: the decimal mark is . or a comma, not {decimal!r}")
    return Source(
        name, None if name == "-" else name, format, compression,
        None if names is None else tuple(names), member, delimiter,
        encodings.checked(name, encoding or "utf-8"), decimal or ".",
    )  # fmt: skip


def _is_zip(name: str) -> bool:
    return name.lower().split(".")[-1] == "zip"


def _format_of(name: str) -> tuple[Format | None, str | None]:
    """The format and compression of a file ending; None for an unknown format, or for no compression."""
    *front, ending = name.lower().split(".")
    compression = COMPRESSIONS.get(ending)
    if compression:
        ending = front[-1] if front else ""
    return next(
        (each for each in FORMATS.values() if ending in (each.name, *each.endings)), None
    ), compression


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
    missing: str = "error",
    bins: Sequence[Bins | None] | None = None,
    labels: tuple[str, str] | None = None,
    attributes: Sequence[str] = (),
    needed: Sequence[str] = (),
) -> Iterator[Chunk]:
    """Yield the rows after row number `skip` in chunks, as they arrive.

    likelihood: a row whose value it does not allow is bad
    all_text:   per mode, whether a text is a str even if it looks like an int (formats without types only)
    last:       the `last` of the chunk that ended at row `skip`: SourceError if that line has changed
    keep:       also return the rows with all their columns
    quiet:      seconds after which a silent pipe (not a compressed one) yields an empty chunk, so that the
                caller can do other work
    missing:    how to treat a row with a missing id: "error": as bad; "skip": leave it out and count it;
                "own": use MISSING_ID, a node of its own
    bins:       per mode, the bins for its numbers, or None; unknown quantiles come from the first rows
    labels:     the texts for the values 0 and 1; a row with any other is bad
    attributes: columns beside the ids, which rows and files may lack; see attributes.py for their types
    needed:     those of them that a file with named columns must have
    """
    wanted = _wanted(modes, value, likelihood, all_text, missing=missing, bins=bins, labels=labels)
    wanted = _with_attributes(wanted, attributes, needed)
    chunks = _read(source, wanted._replace(keep=keep, quiet=quiet), skip, last)
    return binned(chunks, bins) if bins and wanted.numbers else chunks


def _wanted(
    modes: Sequence[str],
    value: str | None,
    likelihood: Likelihood,
    all_text: Sequence[bool] | None,
    *,
    missing: str,
    bins: Sequence[Bins | None] | None,
    labels: tuple[str, str] | None,
) -> Wanted:
    bins = bins or [None] * len(modes)
    numbers = [name for name, each in zip(modes, bins, strict=True) if each is not None]
    all_text = all_text or [False] * len(modes)
    wanted = Wanted(modes, value, likelihood, all_text, False, None, missing, numbers, labels)
    if len(set(wanted.columns)) < len(wanted.columns):
        raise SourceError(f"a column is named twice: {', '.join(wanted.columns)}")
    return wanted


def _with_attributes(wanted: Wanted, attributes: Sequence[str], needed: Sequence[str] = ()) -> Wanted:
    if wanted.value in attributes:
        raise SourceError(f"a column is named twice: {wanted.value} is the value and an attribute")
    own = [name for name in attributes if name not in wanted.modes]
    return wanted._replace(attributes=own, needed=[name for name in needed if name in own])


def _read(source: Source, wanted: Wanted, skip: int, last: str | None) -> Iterator[Chunk]:
    end = 0
    with _as_source_errors(source):
        for part in source.format.read(source, wanted, skip, last):
            end = part.end
            if part.quiet:
                yield Chunk([], None, part.rows, [], end, None, quiet=True)
            elif end > skip or (wanted.keep and not skip):
                yield _checked(part, wanted, source)
    if end < skip:
        place = f"{source.format.unit} {skip:,}"
        raise SourceError(f"{source.name}: ends before {place}, the last one learned")


def open(  # noqa: A001 (as webbrowser.open, tarfile.open)
    url: str | Stream,
    modes: Sequence[str],
    value: str | None = None,
    *,
    format: str | None = None,  # noqa: A002
    columns: Sequence[str] | None = None,
    position: Position | None = None,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    on_gap: str = "raise",
    until_end: bool = False,
    likelihood: Likelihood = GAUSSIAN,
    all_text: Sequence[bool] | None = None,
    missing: str = "error",
    bins: Sequence[Bins | None] | None = None,
    labels: tuple[str, str] | None = None,
    attributes: Sequence[str] = (),
) -> OpenStream:
    """Open a stream in a broker: kafka://host:9092/topic, redis://host:6379/stream, nats://host:4222/STREAM.

    It yields chunks, each with the `position` after it. Save that with the model: reading continues exactly
    there, whatever happens.

    format:    of the messages: "json", "csv", "tsv", or for Redis "fields", its default
    columns:   column names, for csv and tsv
    position:  the `position` of the last chunk learned; None: start at the oldest message kept
    config:    settings of the client, such as passwords and certificates, or a file with them
    on_gap:    "raise", or "continue" to accept that messages were deleted before they were read
    until_end: stop at the current end of the stream instead of waiting for more
    likelihood, all_text, missing, bins, labels, attributes: see `read`; iterating applies bins, `poll` leaves
               numbers
    """
    if isinstance(url, str):
        url = stream_at(url, format, columns, config=config, on_gap=on_gap, until_end=until_end)
    wanted = _wanted(modes, value, likelihood, all_text, missing=missing, bins=bins, labels=labels)
    wanted = _with_attributes(wanted, attributes)
    return OpenStream(url, wanted, position, partial(_checked, wanted=wanted, source=url), bins)


@contextmanager
def _as_source_errors(source: Source) -> Iterator[None]:
    """Convert Arrow's errors about a damaged file to SourceError; other OSErrors pass through."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise SourceError(f"{source.name}: {str(error).splitlines()[0]}") from error


def _checked(parsed: Parsed, wanted: Wanted, source: Source | Stream) -> Chunk:
    """Convert columns to ids and values; rows where that fails are bad."""
    wrong: dict[int, str] = {}  # place -> reason; the first reason counts
    left_out: set[int] = set()  # places of rows to skip: an id is missing
    columns, typed = [], source.format.typed
    for name, all_text, column in zip(wanted.modes, wanted.all_text, parsed.columns, strict=False):
        if name in wanted.numbers:
            ids, not_ids = to_bin_numbers(column, source.decimal)
        else:
            ids, not_ids = to_ids(column, find_ints=not (typed or all_text), empty_is_missing=not typed)
        missing = [place for place, reason in not_ids.items() if reason == MISSING]
        if missing and wanted.missing != "error":
            not_ids = {place: reason for place, reason in not_ids.items() if reason != MISSING}
            if wanted.missing == "skip":
                left_out.update(missing)
            elif name not in wanted.numbers:  # a missing number stays NaN until it is binned
                ids = with_missing(ids, missing)
        columns.append(ids)
        wrong = {place: f"{name} {reason}" for place, reason in not_ids.items()} | wrong
    values = None
    if wanted.value is not None:
        if wanted.labels is None:
            values, no_number = to_numbers(parsed.columns[-1], wanted.likelihood, source.decimal)
        else:
            values, no_number = to_labels(parsed.columns[-1], wanted.labels)
        wrong = {place: f"{wanted.value} {reason}" for place, reason in no_number.items()} | wrong
    left_out -= wrong.keys()
    rows, records, bad = parsed.rows, parsed.records, parsed.bad
    attributes = {
        name: to_cells(column, empty_is_missing=not typed) for name, column in parsed.attributes.items()
    }
    if wrong or left_out:
        found = [BadRow(int(rows[i]), reason, parsed.raw(int(rows[i]))) for i, reason in wrong.items()]
        bad = sorted([*bad, *found], key=lambda each: each.row)
        good = np.ones(len(rows), bool)
        good[[*wrong, *left_out]] = False
        columns = [column[good] for column in columns]
        attributes = {name: column[good] for name, column in attributes.items()}
        values = None if values is None else values[good]
        rows = rows[good]
        if isinstance(records, pa.Table):
            records = records.filter(pa.array(good))
        elif records is not None:
            records = [record for record, fine in zip(records, good, strict=True) if fine]
    return Chunk(
        columns, values, rows, bad, parsed.end, parsed.share, parsed.last, records, skipped=len(left_out),
        attributes=attributes,
    )  # fmt: skip
