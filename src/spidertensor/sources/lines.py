"""Read whole lines of text, a block at a time; shared by CSV, TSV and JSON lines."""

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

BLOCK_BYTES = 1 << 20  # some 64 thousand rows of two ids and a value
MAX_LINE_BYTES = 1 << 23  # a longer line means that this is not text; JSON may take 30 times as much memory
BOM = b"\xef\xbb\xbf"  # only at the start of a file; elsewhere these bytes are an ordinary character

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
    """Yield the lines after line `skip`, in blocks. parser: makes a Parser from the header, or from b"".

    With wanted.keep a source without rows yields one empty block, for its columns.
    """
    with _opened(source) as (stream, progress):
        blocks = _blocks(source, stream, wanted.quiet)
        first = next(filter(None, blocks), b"")
        if first.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise SourceError(
                f"{source.name}: UTF-16 text", kind="UTF-16", remedy="pass its encoding, utf-16"
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
                        f"{source.name}: line {skip:,}, the last one learned, has changed since (was it "
                        "still being written?), so the model cannot continue from there"
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
    """Open a stream of bytes; also returns a function for the share of the file that has been read."""
    if source.path is None:
        # unbuffered: a read returns what has arrived, so a slow pipe is learned without delay
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
    """Yield blocks of whole lines; an empty one whenever nothing arrives for `quiet` seconds."""
    rest = b""
    while True:
        while quiet is not None and not _has_come(stream, quiet):
            yield b""
        data = stream.read(BLOCK_BYTES)
        if data is None:  # a non-blocking pipe without data, not at its end
            _has_come(stream, 1.0)
            continue
        if not data:
            break
        cut = data.rfind(b"\n") + 1
        if len(rest) + (data.find(b"\n") if cut else len(data)) > MAX_LINE_BYTES:
            raise SourceError(
                f"{source.name}: a line of more than {MAX_LINE_BYTES >> 20} MiB: is this a text file?"
            )
        if cut:
            yield rest + data[:cut]
            rest = data[cut:]
        else:
            rest += data
    if rest:
        yield rest


def _has_come(stream: Any, seconds: float) -> bool:
    """Whether a read would return within `seconds`; True if that cannot be known."""
    inner = stream.stream if isinstance(stream, Transcoded) else stream
    if os.name != "posix" or isinstance(inner, pa.NativeFile | Unzipped):
        return True
    try:
        return bool(select.select([stream], [], [], seconds)[0])
    except (OSError, ValueError):  # no file descriptor, or one too large for select
        return True


def raw_line(block: bytes, start: int) -> Callable[[int], str]:
    """A function that returns the line with a given number."""
    lines: list[bytes] = []

    def raw(number: int) -> str:
        if not lines:  # split on first use: rows are rarely bad
            lines.extend(block.split(b"\n"))
        return shown(lines[number - start - 1])

    return raw


def not_text(source: Source) -> str:
    """The reason for a row with bytes that its encoding cannot decode."""
    if source.encoding != "utf-8":
        return f"not {source.encoding} text"
    return "not UTF-8 text: if the whole file has another encoding, pass it (--encoding latin-1)"


def shown(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode("utf-8", "backslashreplace")
