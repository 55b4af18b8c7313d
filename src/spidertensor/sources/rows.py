"""What all formats share: the source, what is wanted of it, and its rows cut into columns."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FORMATS = ("csv", "tsv", "jsonl", "parquet")
HEAD = 1 << 16  # bytes of a file that it is recognised by

_COMPRESSIONS = {"gz": "gzip", "zst": "zstd"}
_ENDINGS = {"ndjson": "jsonl", "pq": "parquet", "tab": "tsv"}


class SourceError(ValueError):
    """A source that cannot be read at all; the message names it."""


class BadRow(NamedTuple):
    row: int
    reason: str
    raw: Any  # the text of its line, or a dict of its columns


@dataclass(frozen=True)
class Source:
    """path: None for standard input; names: of the columns of a CSV or TSV without a header."""

    name: str
    path: str | None
    format: str
    compression: str | None = None
    names: tuple[str, ...] | None = None

    @classmethod
    def named(cls, name: str, kind: str | None = None, names: Sequence[str] | None = None) -> Source:
        """By a file's name, or "-" for standard input. `kind` overrides the ending: "csv", "jsonl.gz"."""
        ending = kind or ("csv" if name == "-" else name)
        *front, last = ending.lower().split(".")
        compression = _COMPRESSIONS.get(last)
        kind = (front[-1] if front else "") if compression else last
        kind = _ENDINGS.get(kind, kind)
        if kind not in FORMATS or (kind == "parquet" and compression):
            raise SourceError(
                f"{name}: unknown format, use {', '.join(FORMATS)} (the first three also .gz or .zst)"
            )
        if kind == "parquet" and name == "-":
            raise SourceError("standard input cannot be Parquet, which is read from its end")
        if names is not None and kind not in ("csv", "tsv"):
            raise SourceError(f"{name}: {kind} has names for its columns already")
        return cls(
            name, None if name == "-" else name, kind, compression, None if names is None else tuple(names)
        )

    @property
    def unit(self) -> str:
        return "row" if self.format == "parquet" else "line"

    @property
    def is_file(self) -> bool:
        """Not a pipe, of which nothing may be read to look at it; a missing file is an OSError."""
        return self.path is not None and stat.S_ISREG(os.stat(self.path).st_mode)

    def head(self) -> dict[str, Any] | None:
        """What a file is recognised by, wherever it is moved and whatever is appended to it."""
        if self.path is None or not self.is_file:
            return None
        with open(self.path, "rb") as file:
            start = file.read(HEAD)
        return {"bytes": len(start), "sha256": hashlib.sha256(start).hexdigest()}

    def has_head(self, head: Mapping[str, Any] | None) -> bool:
        if self.path is None or head is None or not self.is_file:
            return head is None and not self.is_file
        with open(self.path, "rb") as file:
            start = file.read(head["bytes"])
        return len(start) == head["bytes"] and hashlib.sha256(start).hexdigest() == head["sha256"]


class Wanted(NamedTuple):
    modes: Sequence[str]
    value: str | None
    binary: bool
    all_text: Sequence[bool]  # per mode
    keep: bool

    @property
    def columns(self) -> list[str]:
        return [*self.modes, *([] if self.value is None else [self.value])]


class Parsed(NamedTuple):
    """Rows cut into columns, not yet looked at; each column an arrow array, or a list if its types differ."""

    columns: list[Any]  # the modes, then the value
    rows: NDArray[np.int64]
    bad: list[BadRow]
    end: int
    raw: Callable[[int], Any]  # of a row by its number
    share: float | None
    records: Any
    last: str | None = None  # sha256 of the line numbered `end`, without what ends it; None: not of lines


def _remedy(source: Source, names: Sequence[str]) -> str:
    if source.format not in ("csv", "tsv"):
        return ""
    mark = next((mark for mark in ";|\t," if len(names) == 1 and mark in names[0]), None)
    if mark is None:
        return ": if its first line is no header, --columns names them"
    does = {"\t": "--format tsv reads it", ",": "--format csv reads it"}.get(mark, "convert it to csv first")
    return f": its columns are separated by {mark!r}, {does}"


def find_columns(source: Source, names: Sequence[str], wanted: Wanted) -> list[int]:
    for name in wanted.columns:
        if names.count(name) != 1:
            how = "no column" if name not in names else "more than one column"
            shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
            remedy = "" if name in names or source.names else _remedy(source, names)
            raise SourceError(f"{source.name}: {how} {name!r} (there are: {shown}){remedy}")
    return [names.index(name) for name in wanted.columns]
