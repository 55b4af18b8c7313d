"""The journal: requests acknowledged since the last checkpoint, in a SQLite file MODEL.journal.

A request is written and synced to disk before it is learned, and learned before it is answered. After a crash
the requests after the model's position are learned again, in the same order and the same calls ("cuts"), so
the result is bit for bit the same. A checkpoint makes the journal redundant: the file is removed and a new
one started, so that no request is kept longer than needed.

Each row has a digest of all its columns and of the rows before it. That of the last acknowledged row is also
in a second place (journal_end.py), so that a journal that was cut short or exchanged is noticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from spidertensor.faults import Fault
from spidertensor.service.errors import is_full
from spidertensor.service.journal_end import End, EndFile

FORMAT = 2  # 1: the digest of a row is a CRC-32 of its body alone
_MAGIC = b"SQLite format 3\0"
_TABLES = """
    create table about (text text not null);
    create table requests (
        sequence integer primary key, cut integer not null, key text, media_type text not null,
        skip integer not null, body blob not null, checksum integer not null
    );
"""


RESTORE = "restore its files from a backup, or start once with --accept-loss to continue without what is lost"
IN_USE = "journal in use"
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
        self._begin(path, about)
        try:
            self._file = _created(path, self._text)
        except (sqlite3.Error, OSError) as error:
            self.lacking = _reason(path, error)
            if not is_full(error):
                raise JournalError(self.lacking, kind="journal") from None

    def _begin(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        self.about: dict[str, Any] = about | {"format": FORMAT}
        self.bytes = 0  # of its requests
        self.lacking = ""  # why there is no file yet, if there was no room for it on the disk
        self._file: sqlite3.Connection | None = None
        self._text = orjson.dumps(self.about).decode()
        self._end = EndFile(path)
        self._last = End(str(about.get("id")), 0, _digest(self._text.encode()))

    @classmethod
    def opened(cls, path: Path, on_loss: Callable[[str], None] | None = None) -> Journal:
        """Open the journal left by a killed process. JournalError if it is damaged, and nothing is changed.

        on_loss: called with what is wrong instead; the journal then has the requests before the damage
        """
        journal = cls.__new__(cls)
        journal._begin(path, {})
        try:
            with _as_journal_errors(path):
                with open(path, "rb") as handle:
                    if handle.read(len(_MAGIC)) != _MAGIC:  # SQLite would turn an empty file into a database
                        raise _unusable(path, "it is not a SQLite file")
                journal._file = _connected(path)
                journal._check()
        except JournalError as error:
            if on_loss is None or error.kind == IN_USE:
                journal.close_unchanged()
                raise
            on_loss(error.reason)
            journal.salvage()
        return journal

    def _check(self) -> None:
        """Read all of an opened journal, for damage; `_last` is then the last request before it."""
        (text,) = next(self._asked("select text from about"), ("null",))
        about = orjson.loads(text)
        if not isinstance(about, dict) or about.get("format") not in (1, FORMAT):
            raise _unusable(self.path, "it is not a journal of this version")
        self.about = about
        self._last = End(str(about.get("id")), 0, _digest(text.encode()))
        for *columns, digest in self._asked("select * from requests order by sequence"):
            row, before = Row(*columns), self._last
            if before.sequence and row.sequence != before.sequence + 1:
                raise _unusable(self.path, "requests are missing")
            if self._digest(before.digest, row) != digest:
                raise _unusable(self.path, f"request {row.sequence} is damaged")
            self._last = before._replace(sequence=row.sequence, digest=digest)
            self.bytes += len(row.body)
        (found,) = next(self._asked("pragma integrity_check(1)"))
        if found != "ok":
            raise _unusable(self.path, found)
        if end := acknowledged_end(self.path):
            same = self._asked("select checksum from requests where sequence = ?", end.sequence)
            if end.journal != self._last.journal or next(same, (end.digest,)) != (end.digest,):
                raise _unusable(self.path, f"request {end.sequence} is not the one that was acknowledged")

    def _digest(self, before: int, row: Row) -> int:
        """before: the digest of the row before"""
        if self.about.get("format") == 1:
            return zlib.crc32(row.body)
        return _digest(orjson.dumps([before, *row[:4], int(row.skip), len(row.body)]) + row.body)

    @property
    def lacks_end(self) -> bool:
        """Whether the file with its end is gone; there is none of format 1."""
        return self.about.get("format") != 1 and not self._end.path.exists()

    def salvage(self) -> None:
        """Keep the requests before the damage, in new files; the damaged ones are renamed to PATH.lost."""
        about, rows = self.about, list(self._rows(0))
        with _as_journal_errors(self.path, NOT_WRITTEN):
            set_aside(self.path, self)
            self._begin(self.path, about)
            self._file = _created(self.path, self._text)
        if rows:
            self.append(rows)

    def append(self, rows: Sequence[Row]) -> None:
        """Write all rows; they are on disk when it returns.

        JournalError if they are not. If the disk failed in the commit or after it, they may be there after
        all, for the next start to find; the remedy says so.
        """
        last, values = self._last, []
        for row in rows:
            last = last._replace(sequence=row.sequence, digest=self._digest(last.digest, row))
            values.append((*row[:4], int(row.skip), row.body, last.digest))
        with _as_journal_errors(self.path, NOT_WRITTEN):
            if self._file is None:  # the disk was full when it was to be recreated
                self._file = _created(self.path, self._text)
            self._end.begin(last.journal)
            self._append(self._file, values)
        try:
            self._end.write(last)
        except OSError as error:
            with contextlib.suppress(sqlite3.Error):
                self._file.execute("delete from requests where sequence > ?", (self._last.sequence,))
            raise _unusable(self._end.path, str(error), PERHAPS_WRITTEN) from None
        self._last = last
        self.bytes += sum(len(row.body) for row in rows)

    def _append(self, file: sqlite3.Connection, values: Sequence[tuple[Any, ...]]) -> None:
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
        for _, cut in groupby(self._rows(after), key=lambda row: row.cut):
            yield list(cut)

    def _rows(self, after: int) -> Iterator[Row]:
        with _as_journal_errors(self.path):
            asked = "select * from requests where sequence > ? and sequence <= ? order by sequence"
            for each in self._asked(asked, after, self._last.sequence):
                yield Row(*each[:6])._replace(skip=bool(each[4]))

    def span(self) -> tuple[int, int] | None:
        """First and last sequence number; None if empty."""
        with _as_journal_errors(self.path):
            first, last = next(self._asked("select min(sequence), max(sequence) from requests"), (None, None))
        return None if first is None or last is None else (first, last)

    def _asked(self, question: str, *values: Any) -> Iterator[Any]:
        return iter(self._file.execute(question, values) if self._file is not None else ())

    def start_empty(self) -> None:
        """Start an empty journal, once the model file has all requests."""
        self.remove()
        self._begin(self.path, self.about)
        with _as_journal_errors(self.path, NOT_WRITTEN):
            self._file = _created(self.path, self._text)

    def remove(self) -> None:
        self._end.remove()  # first: without it the journal is a whole one, but not the other way round
        self.close()
        self.bytes = 0
        _removed(self.path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
        self._end.close()

    def close_unchanged(self) -> None:
        """Close, and leave the files as they are.

        SQLite would move what it can read of the write-ahead log into the journal and delete the rest; but it
        does not change a file that has been renamed.
        """
        if self._file is not None:
            elsewhere = self.path.with_name(f"{self.path.name}.closing")
            os.rename(self.path, elsewhere)
            try:
                self.close()
            finally:
                os.rename(elsewhere, self.path)
            log = Path(f"{self.path}-wal")
            if log.exists() and not log.stat().st_size:  # SQLite made it
                log.unlink()


def acknowledged_end(path: Path) -> End | None:
    """The end of a journal as it was acknowledged; None if nothing was, or by an older version."""
    try:
        found = EndFile(path).read()
    except (OSError, ValueError) as error:
        raise _unusable(EndFile(path).path, str(error)) from None
    return found if found and found.sequence else None


def set_aside(path: Path, journal: Journal | None) -> None:
    """Rename the files of a journal to PATH.lost. journal: it, if it is open"""
    for ending in ("-end", "-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{ending}", f"{path}.lost{ending}")
    if journal is not None:
        journal.close()  # SQLite does not change a file that has been renamed


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), signed=True)  # as SQLite has them


def _removed(path: Path) -> None:
    for ending in ("-wal", "-shm", ""):
        Path(f"{path}{ending}").unlink(missing_ok=True)


def _created(path: Path, about: str) -> sqlite3.Connection:
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
        file.execute("insert into about values (?)", (about,))
        file.execute("commit")
    os.replace(unfinished, path)
    return _connected(path)


def _connected(path: Path) -> sqlite3.Connection:
    file = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
    # No other process may use it; and nothing else is needed on a disk that is full.
    file.execute("pragma locking_mode = exclusive")
    file.execute("pragma synchronous = full")  # a commit returns only after it has reached the disk
    file.execute("select 1 from sqlite_master").fetchall()  # now, not only with the first request
    return file


@contextlib.contextmanager
def _as_journal_errors(path: Path, remedy: str = RESTORE) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, ValueError, TypeError) as error:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_BUSY":
            reason = f"{path}: is used by another process, although the model is not locked"
            raise JournalError(reason, kind=IN_USE, remedy="stop that process") from None
        raise JournalError(_reason(path, error), kind="journal", remedy=remedy) from None


def _unusable(path: Path, reason: str, remedy: str = RESTORE) -> JournalError:
    return JournalError(_reason(path, reason), kind="journal", remedy=remedy)


def _reason(path: Path, error: Exception | str) -> str:
    return f"{path}: cannot be used: {getattr(error, 'strerror', None) or error}"
