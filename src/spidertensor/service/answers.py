"""Answers to requests with an Idempotency-Key: a repeat gets the same answer and is not learned again.

Answers hold predictions but no ids. Those since the last checkpoint are in memory; if the process is killed,
replaying the journal recreates them. Each checkpoint first writes them to MODEL.answers, a SQLite file, which
keeps the latest by number and size, not by a clock, which may jump.

The file also keeps the running scores of the last checkpoint, so that they continue after a restart.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import zlib
from pathlib import Path
from typing import NamedTuple

KEPT_KEYS = 100_000
KEPT_BYTES = 64 << 20  # of their answers
_TABLES = """
    create table if not exists answers (
        number integer primary key, key text not null unique, digest blob not null, answer blob not null
    );
    create table if not exists scores (sequence integer not null, state blob not null);
    create table if not exists about (identity text not null)
"""

_log = logging.getLogger(__name__)


class Answer(NamedTuple):
    digest: bytes  # of the request; a repeated one must match it
    body: bytes  # JSON


class Answers:
    """identity: of the model's journal; answers stored for another one are deleted"""

    def __init__(self, path: Path, identity: str) -> None:
        self.path = path
        self._recent: dict[str, Answer] = {}
        try:
            self._file = self._opened()
        except sqlite3.OperationalError:  # locked, or the disk is full: the file itself is fine
            raise
        except sqlite3.DatabaseError as error:  # only needed if old requests are repeated
            _log.warning("%s: %s: starting empty; repeats of earlier requests will be learned", path, error)
            for ending in ("-wal", "-shm", ""):
                Path(f"{path}{ending}").unlink(missing_ok=True)
            self._file = self._opened()
        if self._file.execute("select identity from about").fetchall() != [(identity,)]:
            with self._transaction():
                for table in ("answers", "scores", "about"):
                    self._file.execute(f"delete from {table}")
                self._file.execute("insert into about values (?)", (identity,))

    def _opened(self) -> sqlite3.Connection:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))  # private, like the journal
        file = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=1.0)
        file.execute("pragma journal_mode = wal")
        file.execute("pragma synchronous = full")
        for statement in _TABLES.split(";"):
            file.execute(statement)
        return file

    def find(self, key: str) -> Answer | None:
        if key in self._recent:
            return self._recent[key]
        found = self._file.execute("select digest, answer from answers where key = ?", (key,)).fetchone()
        return Answer(found[0], zlib.decompress(found[1])) if found else None

    def add(self, key: str, answer: Answer) -> None:
        self._recent[key] = answer

    def write(self) -> None:
        """Write recent answers to the file. Call before saving the model, which removes the journal."""
        if not self._recent:
            return
        rows = [(key, each.digest, zlib.compress(each.body, 1)) for key, each in self._recent.items()]
        with self._transaction():
            self._file.executemany(
                "insert or replace into answers (key, digest, answer) values (?, ?, ?)", rows
            )
            self._file.execute(
                "delete from answers where number <= (select max(number) - ? from answers)", (KEPT_KEYS,)
            )
            self._file.execute(
                "delete from answers where number <= (select max(number) from (select number, "
                "sum(length(answer)) over (order by number desc) as total from answers) where total > ?)",
                (KEPT_BYTES,),
            )
        self._recent.clear()

    def write_scores(self, sequence: int, state: bytes) -> None:
        with self._transaction():
            self._file.execute("delete from scores")
            self._file.execute("insert into scores values (?, ?)", (sequence, state))

    def scores(self, sequence: int) -> bytes | None:
        """The stored scores for a model at this request; None if there are none."""
        found = self._file.execute("select state from scores where sequence = ?", (sequence,)).fetchone()
        return found[0] if found else None

    def close(self) -> None:
        self._file.close()

    @contextlib.contextmanager
    def _transaction(self):
        self._file.execute("begin immediate")
        try:
            yield
            self._file.execute("commit")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._file.execute("rollback")
            raise
