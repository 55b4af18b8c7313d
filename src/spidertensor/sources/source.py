"""Types shared by all kinds of source: the source, what is wanted from it, and its rows in columns.

A row is one record of a source. In a text file that is a line, and the row number is the line number.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from spidertensor.faults import Fault
from spidertensor.spider.likelihoods.base import Likelihood
from spidertensor.writing import naming

HEAD_BYTES = 1 << 16  # at the start of a file, which identify it


class SourceError(Fault, ValueError):
    """The source cannot be read at all; the reason names it. Parts: see Fault."""


class BadRow(NamedTuple):
    """A row that cannot be used: its number, the reason, and its line or a dict of its columns."""

    row: int
    reason: str
    raw: Any


class Reader(Protocol):
    """The read function of a kind of source."""

    def __call__(self, source: Source, wanted: Wanted, skip: int, last: str | None) -> Iterator[Parsed]:
        """Yield the rows after row number `skip`, in order, in parts of bounded size.

        Parts of skipped rows may be left out or empty, but the last part has the `end` of the source.
        last: the `last` of the part that ended at row `skip`, or None; SourceError if that line has changed
        since. With wanted.quiet, a pipe yields an empty part, marked as quiet, whenever nothing arrives for
        that many seconds.
        """
        ...


class Format(NamedTuple):
    """A kind of source.

    name:     also its file ending; `endings` are alternatives
    read:     see Reader
    unit:     what a row is called in messages: "line" or "row"
    typed:    ids have types; otherwise the text decides (see the package)
    streamed: can be read from standard input, and compressed
    headless: may lack column names
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
    """A file or standard input, and how it is written.

    path:      None for standard input
    names:     column names of a file without a header
    member:    the file in a zip; None if the source is not a zip
    delimiter: between columns of a text
    encoding:  of a text
    decimal:   the decimal mark in a csv or tsv: "." or ","
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
        """False for a pipe, which cannot be read twice; OSError if the file is missing."""
        return self.path is not None and stat.S_ISREG(os.stat(self.path).st_mode)

    def head(self) -> dict[str, Any] | None:
        """A digest that identifies the file even after it was moved or appended to; None for a pipe."""
        if self.path is None or not self.is_file:
            return None
        with naming(self.path), open(self.path, "rb") as file:
            start = file.read(HEAD_BYTES)
        return {"bytes": len(start), "sha256": hashlib.sha256(start).hexdigest()}

    def has_head(self, head: Mapping[str, Any] | None) -> bool:
        if self.path is None or head is None or not self.is_file:
            return head is None and not self.is_file
        with naming(self.path), open(self.path, "rb") as file:
            start = file.read(head["bytes"])
        return len(start) == head["bytes"] and hashlib.sha256(start).hexdigest() == head["sha256"]


class Wanted(NamedTuple):
    """What is wanted from a source.

    modes, value: names of columns
    numbers:      the modes whose columns hold numbers to be binned
    all_text, keep, quiet, missing, labels, attributes, needed: see `read`
    """

    modes: Sequence[str]
    value: str | None
    likelihood: Likelihood
    all_text: Sequence[bool]
    keep: bool
    quiet: float | None = None
    missing: str = "error"
    numbers: Sequence[str] = ()
    labels: tuple[str, str] | None = None
    attributes: Sequence[str] = ()
    needed: Sequence[str] = ()

    @property
    def columns(self) -> list[str]:
        return [*self.modes, *([] if self.value is None else [self.value])]


class Parsed(NamedTuple):
    """Rows split into columns, not yet checked; a column is an arrow array, or a list if its types differ."""

    columns: list[Any]  # the modes, then the value
    rows: NDArray[np.int64]  # the number of each row
    bad: list[BadRow]
    end: int  # the number of the last row, good or bad
    raw: Callable[[int], Any]  # row number -> its content, for BadRow
    share: float | None  # of the source read so far; None if its length is not known
    records: Any  # with keep, rows with all their columns: a pyarrow Table, or a list of dicts
    last: str | None = None  # sha256 of the last line, without its line end; None if there are no lines
    quiet: bool = False  # no rows: nothing has arrived from the pipe for a while
    attributes: Mapping[str, Any] = MappingProxyType({})  # the wanted ones that are there


class Chunk(NamedTuple):
    """The good rows of a part of the source, and the bad ones."""

    columns: list[NDArray[Any]]  # ids, one column per mode
    values: NDArray[np.float64] | None
    rows: NDArray[np.int64]  # the number of each good row
    bad: list[BadRow]
    end: int  # the number of the last row, good or bad
    share: float | None  # of the source read so far; None if its length is not known
    last: str | None = None  # sha256 of the last line; None if the source has no lines
    records: Any = None  # with keep, good rows with all their columns: a pyarrow Table, or a list of dicts
    quiet: bool = False  # no rows: nothing has arrived for a while
    skipped: int = 0  # rows left out because an id is missing
    position: Any = None  # for a stream, the JSON position after the last row, for `open`
    place: Callable[[int], str] | None = None  # for a stream, row number -> where it is in the broker
    attributes: Mapping[str, NDArray[Any]] = MappingProxyType({})  # by name, not yet typed: attributes.py


def find_columns(source: Source, names: Sequence[str], wanted: Wanted) -> list[int]:
    """The places of the wanted columns in `names`."""
    for name in [*wanted.columns, *wanted.needed, *(each for each in wanted.attributes if each in names)]:
        if names.count(name) != 1:
            shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
            how = "no column" if name not in names else "more than one column"
            error = SourceError(f"{source.name}: {how} {name!r} (there are: {shown})", value=name)
            raise error if name in names or source.names else _with_remedy(error, source, names)
    return [names.index(name) for name in wanted.columns]


def find_attributes(names: Sequence[str], wanted: Wanted) -> dict[str, int]:
    """The places of the wanted attributes that are there. `find_columns` has checked the names."""
    return {name: names.index(name) for name in wanted.attributes if name in names}


def _with_remedy(error: SourceError, source: Source, names: Sequence[str]) -> SourceError:
    if not source.format.headless:
        return error
    mark = next((mark for mark in ";|\t," if len(names) == 1 and mark in names[0]), None)
    if mark is None:
        remedy = "if the first line is not a header, pass the column names"
        return error.but(kind="no header", remedy=remedy)
    reason = f"{error.reason}: the columns are separated by {mark!r}"
    kind, remedy = {"\t": ("tabs", 'read it as "tsv"'), ",": ("commas", 'read it as "csv"')}.get(
        mark, ("delimiter", "pass this delimiter")
    )
    return error.but(reason=reason, kind=kind, remedy=remedy)
