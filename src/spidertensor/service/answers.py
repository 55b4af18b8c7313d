"""Answers to requests with an Idempotency-Key: a repeat gets the same answer and is not learned again.

Answers hold predictions but no ids. Those since the last checkpoint are in memory; if the process is killed,
replaying the journal recreates them. Each checkpoint first writes them to MODEL.answers, a SQLite file, which
keeps the latest by number and size, not by a clock, which may jump.

An answer belongs to a request that the model has learned. If an older model file was put back, the answers to
later requests are deleted, so that these are learned if they are sent again.

The file also keeps the running scores of the last checkpoint, so that they continue after a restart; and
that there are requests in the journal alone, so that it is noticed if all files of a journal are deleted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

KEPT_KEYS = 100_000
KEPT_BYTES = 64 << 20  # of their answers
_TABLES = """
    create table if not exists answers (
        number integer primary key, key text not null unique, digest blob not null, answer blob not null,
        sequence integer not null default 0
    );
    create table if not exists scores (sequence integer not null, state blob not null);
    create table if not exists about (identity text not null);
    create table if not exists journal (sequence integer not null)
"""

_log = logging.getLogger(__name__)


class Answer(NamedTuple):
    sequence: int  # of the request
    digest: bytes  # of the request; a repeated one must match it
    body: bytes  # JSON


class Answers:
    """identity: of the model's journal; answers stored for another one are deleted

    sequence: the last request that the model file has
    """

    def __init__(self, path: Path, identity: str, sequence: int) -> None:
        self.path, self._identity, self._sequence = path, identity, sequence
        self._recent: dict[str, Answer] = {}
        self._file: sqlite3.Connection | None = None

    def open(self) -> sqlite3.Connection:
        """The file. sqlite3.Error or OSError if it cannot be used now, for example if the disk is full."""
        if self._file is None:
            self._file = self._opened()
        return self._file

    def _opened(self) -> sqlite3.Connection:
        try:
            return self._connected()
        except sqlite3.OperationalError:  # locked, or the disk is full: the file itself is fine
            raise
        except sqlite3.DatabaseError as error:  # only needed if old requests are repeated
            lost = "starting empty; repeats of earlier requests will be learned"
            _log.warning("%s: %s: %s", self.path, error, lost)
            for ending in ("-wal", "-shm", ""):
                Path(f"{self.path}{ending}").unlink(missing_ok=True)
            return self._connected()

    def _connected(self) -> sqlite3.Connection:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))  # private, like the journal
        file = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=1.0)
        try:
            file.execute("pragma journal_mode = wal")
            file.execute("pragma synchronous = full")
            for statement in _TABLES.split(";"):
                file.execute(statement)
            if "sequence" not in [column[1] for column in file.execute("pragma table_info(answers)")]:
                file.execute("alter table answers add column sequence integer not null default 0")  # from 0.2
            self._fit_to_model(file)
        except BaseException:
            file.close()
            raise
        return file

    def _fit_to_model(self, file: sqlite3.Connection) -> None:
        with _transaction(file):
            if file.execute("select identity from about").fetchall() != [(self._identity,)]:
                for table in ("answers", "scores", "journal", "about"):
                    file.execute(f"delete from {table}")
                file.execute("insert into about values (?)", (self._identity,))
            for table in ("answers", "scores"):
                file.execute(f"delete from {table} where sequence > ?", (self._sequence,))

    def find(self, key: str) -> Answer | None:
        if key in self._recent:
            return self._recent[key]
        asked = "select sequence, digest, answer from answers where key = ?"
        found = self.open().execute(asked, (key,)).fetchone()
        return Answer(found[0], found[1], zlib.decompress(found[2])) if found else None

    def add(self, key: str, answer: Answer) -> None:
        self._recent[key] = answer

    def write(self) -> None:
        """Write recent answers to the file. Call before saving the model, which removes the journal."""
        if not self._recent:
            return
        rows = [
            (key, each.sequence, each.digest, zlib.compress(each.body, 1))
            for key, each in self._recent.items()
        ]
        file = self.open()
        with _transaction(file):
            file.executemany(
                "insert or replace into answers (key, sequence, digest, answer) values (?, ?, ?, ?)", rows
            )
            file.execute(
                "delete from answers where number <= (select max(number) - ? from answers)", (KEPT_KEYS,)
            )
            file.execute(
                "delete from answers where number <= (select max(number) from (select number, "
                "sum(length(answer)) over (order by number desc) as total from answers) where total > ?)",
                (KEPT_BYTES,),
            )
        self._recent.clear()

    def note_journal(self, sequence: int) -> None:
        """Note that requests up to this one were acknowledged and are in the journal alone."""
        file = self.open()
        with _transaction(file):
            file.execute("delete from journal")
            file.execute("insert into journal values (?)", (sequence,))

    def forget_journal(self, after: int = 0) -> None:
        """The journal has no requests after this one, or no longer."""
        self.open().execute("delete from journal where sequence > ?", (after,))

    def write_scores(self, sequence: int, state: bytes) -> None:
        """Write the scores of a model that has all requests."""
        file = self.open()
        with _transaction(file):
            file.execute("delete from journal")
            file.execute("delete from scores")
            file.execute("insert into scores values (?, ?)", (sequence, state))

    def scores(self, sequence: int) -> bytes | None:
        """The stored scores for a model at this request; None if there are none."""
        found = self.open().execute("select state from scores where sequence = ?", (sequence,)).fetchone()
        return found[0] if found else None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def noted_journal(path: Path) -> tuple[str, int] | None:
    """The id of a journal, and a request that it had and no checkpoint; None if nothing was noted."""
    if not path.exists():
        return None
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=1.0)) as file:
            return file.execute("select identity, sequence from about, journal").fetchone()
    except sqlite3.Error:  # from an earlier version, or damaged: then it is begun anew
        return None


@contextlib.contextmanager
def _transaction(file: sqlite3.Connection) -> Iterator[None]:
    file.execute("begin immediate")
    try:
        yield
        file.execute("commit")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            file.execute("rollback")
        raise
