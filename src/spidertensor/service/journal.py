"""The journal: requests acknowledged since the last checkpoint, in a SQLite file MODEL.journal.

A request is written and synced to disk before it is learned, and learned before it is answered. After a crash
the requests after the model's position are learned again, in the same order and the same calls ("cuts"), so
the result is bit for bit the same. A checkpoint makes the journal redundant: the file is removed and a new
one started, so that no request is kept longer than needed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from spidertensor.faults import Fault
from spidertensor.service.errors import is_full

FORMAT = 1
_MAGIC = b"SQLite format 3\0"
_TABLES = """
    create table about (text text not null);
    create table requests (
        sequence integer primary key, cut integer not null, key text, media_type text not null,
        skip integer not null, body blob not null, checksum integer not null
    );
"""


RESTORE = (
    "restore it from a backup, or move it away to continue from the last checkpoint without its requests"
)
# Remedies of `Journal.append`
NOT_WRITTEN = "nothing was learned: free space on the server's disk and repeat the request"
PERHAPS_WRITTEN = "it may have been learned: repeat it with the same Idempotency-Key"
_TOO_EARLY_TO_COUNT = {"SQLITE_FULL", "SQLITE_IOERR_WRITE"}  # the record that ends a commit is written last


class JournalError(Fault, RuntimeError):
    """The journal cannot be used; the reason names the file. Parts: see Fault."""


class Row(NamedTuple):
    """A request as received.

    sequence: 1, 2, 3, ... over the life of the model
    cut:      requests with the same number are learned in one call
    key:      the Idempotency-Key; skip: whether bad rows are left out
    """

    sequence: int
    cut: int
    key: str | None
    media_type: str
    skip: bool
    body: bytes


class Journal:
    """An open journal. about: the id of its model, and the settings of a model that was never saved"""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path, self.about = path, about
        self.bytes = 0  # of its requests
        self.lacking = ""  # why there is no file yet, if there was no room for it on the disk
        self._file: sqlite3.Connection | None = None
        try:
            self._file = _created(path, about)
        except (sqlite3.Error, OSError) as error:
            self.lacking = _reason(path, error)
            if not is_full(error):
                raise JournalError(self.lacking, kind="journal") from None

    @classmethod
    def opened(cls, path: Path) -> Journal:
        """Open the journal left by a killed process."""
        with _as_journal_errors(path):
            with open(path, "rb") as handle:
                if handle.read(len(_MAGIC)) != _MAGIC:  # SQLite would turn an empty file into a database
                    raise _unusable(path, "it is not a SQLite file")
            journal = cls.__new__(cls)
            journal.path, journal._file, journal.bytes, journal.lacking = path, _connected(path), 0, ""
            try:
                journal._check()
            except BaseException:
                journal.close()
                raise
            return journal

    def _check(self) -> None:
        """Read all of an opened journal, for damage."""
        text = next(self._asked("select text from about"), None)
        about = orjson.loads(text[0]) if text else None
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise _unusable(self.path, "it is not a journal of this version")
        self.about: dict[str, Any] = about
        (found,) = next(self._asked("pragma integrity_check(1)"))
        if found != "ok":
            raise _unusable(self.path, found)
        for sequence, body, checksum in self._asked("select sequence, body, checksum from requests"):
            if zlib.crc32(body) != checksum:
                raise _unusable(self.path, f"request {sequence} is damaged")
            self.bytes += len(body)

    def append(self, rows: Sequence[Row]) -> None:
        """Write all rows; they are on disk when it returns.

        JournalError if they are not. If the disk failed in the commit, they may be there after all, for the
        next start to find; the remedy says so.
        """
        with _as_journal_errors(self.path, NOT_WRITTEN):
            if self._file is None:  # the disk was full when it was to be recreated
                self._file = _created(self.path, self.about)
            self._append(self._file, rows)
        self.bytes += sum(len(row.body) for row in rows)

    def _append(self, file: sqlite3.Connection, rows: Sequence[Row]) -> None:
        values = [(*row[:4], int(row.skip), row.body, zlib.crc32(row.body)) for row in rows]
        file.execute("begin immediate")
        try:
            file.executemany("insert into requests values (?, ?, ?, ?, ?, ?, ?)", values)
            try:
                file.execute("commit")
            except sqlite3.Error as error:
                if error.sqlite_errorname in _TOO_EARLY_TO_COUNT:
                    raise
                raise _unusable(self.path, str(error), PERHAPS_WRITTEN) from None
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # SQLite may already have rolled back
                file.execute("rollback")
            raise

    def cuts(self, after: int) -> Iterator[list[Row]]:
        """The requests after a sequence number, grouped as they were learned."""
        with _as_journal_errors(self.path):
            found = self._asked("select * from requests where sequence > ? order by sequence", after)
            rows = (Row(*each[:6])._replace(skip=bool(each[4])) for each in found)
            for _, cut in groupby(rows, key=lambda row: row.cut):
                yield list(cut)

    def span(self) -> tuple[int, int] | None:
        """First and last sequence number; None if empty. JournalError if any in between is missing."""
        with _as_journal_errors(self.path):
            found = self._asked("select count(*), min(sequence), max(sequence) from requests")
            n, first, last = next(found, (0, 0, 0))
        if n and n != last - first + 1:
            raise _unusable(self.path, "requests are missing")
        return (first, last) if n else None

    def _asked(self, question: str, *values: Any) -> Iterator[Any]:
        return iter(self._file.execute(question, values) if self._file is not None else ())

    def start_empty(self) -> None:
        """Start an empty journal, once the model file has all requests."""
        self.remove()
        with _as_journal_errors(self.path, NOT_WRITTEN):
            self._file = _created(self.path, self.about)

    def remove(self) -> None:
        self.close()
        self.bytes = 0
        _removed(self.path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def _removed(path: Path) -> None:
    for ending in ("-wal", "-shm", ""):
        Path(f"{path}{ending}").unlink(missing_ok=True)


def _created(path: Path, about: dict[str, Any]) -> sqlite3.Connection:
    """Create a journal under a temporary name, then rename it, so that a kill leaves no partial file."""
    unfinished = path.with_name(f"{path.name}.new")
    _removed(unfinished)
    # Private whatever the umask: it holds what clients have sent.
    os.close(os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    with contextlib.closing(_connected(unfinished)) as file:
        file.execute("pragma journal_mode = wal")  # persistent in the file
        file.execute("begin immediate")
        for statement in _TABLES.split(";"):
            file.execute(statement)
        file.execute("insert into about values (?)", (orjson.dumps(about | {"format": FORMAT}).decode(),))
        file.execute("commit")
    os.replace(unfinished, path)
    return _connected(path)


def _connected(path: Path) -> sqlite3.Connection:
    file = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
    # No other process may use it; and nothing else is needed on a disk that is full.
    file.execute("pragma locking_mode = exclusive")
    file.execute("pragma synchronous = full")  # a commit returns only after it has reached the disk
    return file


@contextlib.contextmanager
def _as_journal_errors(path: Path, remedy: str = RESTORE) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, ValueError, TypeError) as error:
        raise JournalError(_reason(path, error), kind="journal", remedy=remedy) from None


def _unusable(path: Path, reason: str, remedy: str = RESTORE) -> JournalError:
    return JournalError(_reason(path, reason), kind="journal", remedy=remedy)


def _reason(path: Path, error: Exception | str) -> str:
    return f"{path}: cannot be used: {getattr(error, 'strerror', None) or error}"
