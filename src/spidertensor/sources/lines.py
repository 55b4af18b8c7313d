"""Whole lines of a text, a block at a time: what CSV, TSV and JSON lines share."""

from __future__ import annotations

import hashlib
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from spidertensor.sources.encodings import Transcoded
from spidertensor.sources.source import Parsed, Source, SourceError, Wanted
from spidertensor.sources.zip_member import Unzipped

BLOCK = 1 << 20  # bytes: some 64 thousand rows of two ids and a value
MAX_LINE = 1 << 26  # bytes: a longer line means that this is not text
BOM = b"\xef\xbb\xbf"  # only the first bytes of a file are one; elsewhere it is a character like others

Parser = Callable[[bytes, int, int], Parsed]  # a block, and the numbers of the lines before it and at its end


def parsed_lines(
    source: Source,
    skip: int,
    last: str | None,
    parser: Callable[[bytes], Parser],
    wanted: Wanted,
    *,
    header: bool,
) -> Iterator[Parsed]:
    """The lines after line `skip`, in blocks. parser: makes a Parser from the header, or from b"".

    A source without rows gives one block without rows if these are to be kept: it has the columns.
    """
    with _opened(source) as (stream, progress):
        blocks = _blocks(source, stream, wanted.quiet)
        first = next(filter(None, blocks), b"")
        if first.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise SourceError(
                f"{source.name}: UTF-16 text", kind="UTF-16", remedy="name its encoding, utf-16"
            )
        first, start = first.removeprefix(BOM), 0
        names = b""
        if header:
            names, _, first = first.partition(b"\n")
            start = 1
        parse, before = parser(names), start
        for block in _chain(first, blocks):
            if not block:
                yield _without_rows(start)._replace(quiet=True)
                continue
            end = start + block.count(b"\n") + (not block.endswith(b"\n"))
            if start < skip <= end:
                cut = block.split(b"\n", skip - start)
                if last is not None and _digest(cut[skip - start - 1]) != last:
                    raise SourceError(
                        f"{source.name}: line {skip:,}, the last that was learned, has changed since (was it "
                        "still being written?), so the model cannot go on from there"
                    )
                block, start = cut[-1], skip
            if end <= skip:
                yield _without_rows(end)
            else:
                share, digest = progress(), _digest(block[block.rfind(b"\n", 0, -1) + 1 :])
                yield parse(block, start, end)._replace(share=share, last=digest)
            start = end
        if wanted.keep and start == before:
            yield parse(b"", start, start)


def _digest(line: bytes) -> str:
    return hashlib.sha256(line.rstrip(b"\r\n")).hexdigest()


def _without_rows(end: int) -> Parsed:
    return Parsed([], np.empty(0, np.int64), [], end, str, None, None)


def _chain(first: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from blocks


@contextmanager
def _opened(source: Source) -> Iterator[tuple[Any, Callable[[], float | None]]]:
    """A stream of bytes, and a function that says which share of its file was read."""
    if source.path is None:
        # unbuffered: a read returns what has arrived, so that a slow pipe is learned without waiting
        raw = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        size = 0
    else:
        raw = open(source.path, "rb", buffering=0)  # noqa: SIM115 (closed below)
        size = os.fstat(raw.fileno()).st_size
    try:
        stream: Any = raw
        if source.member is not None:
            stream = Unzipped(source.name, raw, source.member)
        elif source.compression is not None:
            stream = pa.CompressedInputStream(raw, source.compression)
        if source.encoding != "utf-8":
            stream = Transcoded(stream, source.encoding)
        yield stream, lambda: raw.tell() / size if size else None
    finally:
        if source.path is not None:
            raw.close()


def _blocks(source: Source, stream: Any, quiet: float | None) -> Iterator[bytes]:
    """Blocks of whole lines; an empty one whenever nothing has come for `quiet` seconds."""
    rest = b""
    while True:
        while quiet is not None and not _has_come(stream, quiet):
            yield b""
        data = stream.read(BLOCK)
        if data is None:  # a pipe that was set not to wait, and nothing has come: not its end
            _has_come(stream, 1.0)
            continue
        if not data:
            break
        cut = data.rfind(b"\n") + 1
        if len(rest) + (data.find(b"\n") if cut else len(data)) > MAX_LINE:
            raise SourceError(
                f"{source.name}: a line of more than {MAX_LINE >> 20} MiB: is this a text file?"
            )
        if cut:
            yield rest + data[:cut]
            rest = data[cut:]
        else:
            rest += data
    if rest:
        yield rest


def _has_come(stream: Any, seconds: float) -> bool:
    """Whether a read would not have to wait longer; True where that cannot be known."""
    inner = stream.stream if isinstance(stream, Transcoded) else stream
    if os.name != "posix" or isinstance(inner, pa.NativeFile | Unzipped):
        return True
    try:
        return bool(select.select([stream], [], [], seconds)[0])
    except (OSError, ValueError):  # no file behind it, or one with too large a number
        return True


def raw_line(block: bytes, start: int) -> Callable[[int], str]:
    """A function that gives the line of a number."""
    lines: list[bytes] = []

    def raw(number: int) -> str:
        if not lines:  # only if a row is bad
            lines.extend(block.split(b"\n"))
        return shown(lines[number - start - 1])

    return raw


def not_text(source: Source) -> str:
    """The reason of a row that has bytes which its encoding does not have."""
    if source.encoding != "utf-8":
        return f"not {source.encoding} text"
    return "not UTF-8 text: if the whole file is in another encoding, name it (--encoding latin-1)"


def shown(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode("utf-8", "backslashreplace")
