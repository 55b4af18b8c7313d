"""What all kinds of source share: the source, what is wanted of it, and its rows cut into columns.

A row is one record of a source. In a text file that is a line, and the number of a row is that of its line.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from spidertensor.faults import Fault
from spidertensor.spider.likelihoods.base import Likelihood
from spidertensor.writing import naming

HEAD = 1 << 16  # bytes at the start of a file, by which it is recognised


class SourceError(Fault, ValueError):
    """A source that cannot be read at all; the reason names it. Parts: see Fault."""


class BadRow(NamedTuple):
    """A row that cannot be used: its number, the reason, and its line or a dict of its columns."""

    row: int
    reason: str
    raw: Any


class Reader(Protocol):
    """The one function that a kind of source has."""

    def __call__(self, source: Source, wanted: Wanted, skip: int, last: str | None) -> Iterator[Parsed]:
        """The rows after row number `skip`, in order, in parts of bounded size.

        Parts of rows that are skipped may be left out or empty, but the last part has the `end` of the
        source. last: the `last` of the part that ended at row `skip`, or None; SourceError if that line has
        changed since. With wanted.quiet, a pipe gives an empty part, marked as quiet, whenever nothing has
        come for so many seconds.
        """
        ...


class Format(NamedTuple):
    """A kind of source.

    name:     also its file ending; `endings` are others that mean the same
    read:     see Reader
    unit:     what messages call a row: "line" or "row"
    typed:    its ids have types; else the text decides (see the package)
    streamed: can be read from standard input, and compressed
    headless: may come without the names of its columns
    """

    name: str
    read: Reader
    endings: tuple[str, ...] = ()
    unit: str = "line"
    typed: bool = True
    streamed: bool = True
    headless: bool = False


@dataclass(frozen=True)
class Source:
    """How a source is found and written.

    path:      None for standard input
    names:     of the columns of a file without a header
    member:    the file in a zip; None if the source is no zip
    delimiter: of the columns of a text
    encoding:  of a text
    decimal:   the mark between a number and its decimals in a csv or tsv: "." or ","
    """

    name: str
    path: str | None
    format: Format
    compression: str | None = None
    names: tuple[str, ...] | None = None
    member: str | None = None
    delimiter: str = ","
    encoding: str = "utf-8"
    decimal: str = "."

    @property
    def is_file(self) -> bool:
        """False for a pipe, which loses what is read to look at it; a missing file is an OSError."""
        return self.path is not None and stat.S_ISREG(os.stat(self.path).st_mode)

    def head(self) -> dict[str, Any] | None:
        """By this a file is recognised after it was moved, or after rows were appended."""
        if self.path is None or not self.is_file:
            return None
        with naming(self.path), open(self.path, "rb") as file:
            start = file.read(HEAD)
        return {"bytes": len(start), "sha256": hashlib.sha256(start).hexdigest()}

    def has_head(self, head: Mapping[str, Any] | None) -> bool:
        if self.path is None or head is None or not self.is_file:
            return head is None and not self.is_file
        with naming(self.path), open(self.path, "rb") as file:
            start = file.read(head["bytes"])
        return len(start) == head["bytes"] and hashlib.sha256(start).hexdigest() == head["sha256"]


class Wanted(NamedTuple):
    """modes, value: names of columns; all_text, missing, quiet, labels: see `read`; keep: also give whole
    rows; numbers: the modes whose columns hold numbers, which are to become bins."""

    modes: Sequence[str]
    value: str | None
    likelihood: Likelihood
    all_text: Sequence[bool]
    keep: bool
    quiet: float | None = None
    missing: str = "error"
    numbers: Sequence[str] = ()
    labels: tuple[str, str] | None = None

    @property
    def columns(self) -> list[str]:
        return [*self.modes, *([] if self.value is None else [self.value])]


class Parsed(NamedTuple):
    """Rows cut into columns, not yet checked; each column an arrow array, or a list if its types differ."""

    columns: list[Any]  # the modes, then the value
    rows: NDArray[np.int64]  # the number of each row
    bad: list[BadRow]
    end: int  # the number of the last row, good or bad
    raw: Callable[[int], Any]  # the row of a number, as BadRow has it
    share: float | None  # of the source that has been read; None if its length is not known
    records: Any  # kept rows with all their columns: a pyarrow Table, or a list of dicts
    last: str | None = None  # sha256 of the last line, without its line end; None if there are no lines
    quiet: bool = False  # no rows: a pipe from which nothing has come for a while


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
    skipped: int = 0  # rows left out because an id is missing
    position: Any = None  # in a stream, after the last row: JSON, from which `open` goes on
    place: Callable[[int], str] | None = None  # where in the broker the row of a number is


def find_columns(source: Source, names: Sequence[str], wanted: Wanted) -> list[int]:
    """Where in `names` the wanted columns are."""
    for name in wanted.columns:
        if names.count(name) != 1:
            shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
            how = "no column" if name not in names else "more than one column"
            error = SourceError(f"{source.name}: {how} {name!r} (there are: {shown})", value=name)
            raise error if name in names or source.names else _with_remedy(error, source, names)
    return [names.index(name) for name in wanted.columns]


def _with_remedy(error: SourceError, source: Source, names: Sequence[str]) -> SourceError:
    if not source.format.headless:
        return error
    mark = next((mark for mark in ";|\t," if len(names) == 1 and mark in names[0]), None)
    if mark is None:
        remedy = "if its first line is not a header, pass the names of its columns"
        return error.but(kind="no header", remedy=remedy)
    reason = f"{error.reason}: its columns are separated by {mark!r}"
    kind, remedy = {"\t": ("tabs", 'read it as "tsv"'), ",": ("commas", 'read it as "csv"')}.get(
        mark, ("delimiter", "name this delimiter")
    )
    return error.but(reason=reason, kind=kind, remedy=remedy)
