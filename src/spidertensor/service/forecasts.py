"""Forecasts that clients asked to remember, until their values are learned, in a SQLite file MODEL.forecasts.

A forecast is found by the id that its row was answered with. It holds numbers of the members and of the
floors, and nothing that clients sent. It is kept until its time is over, or until there are too many; the
oldest go first. The journal of a request to learn holds the forecasts that it uses (requests.py), so a replay
needs no others.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sqlite3
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.forecast import Forecast
from spidertensor.learner.forecasts import Remembered, row_size, rows_of
from spidertensor.service.errors import ServiceError

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
LARGEST = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 0.001)]
_TABLES = """
    create table if not exists forecasts (
        token text primary key, made real not null, until real not null, n integer not null,
        generation integer not null, likelihood text not null, shift real not null, scale real not null,
        numbers blob not null
    );
    create index if not exists by_until on forecasts (until);
    create table if not exists about (identity text not null)
"""


class Keeping(NamedTuple):
    """How many forecasts are kept, and for how long at most."""

    most: int = 1_000_000
    seconds: float = 7 * 86_400.0

    def seconds_of(self, text: str) -> float:
        """The time that a client asks for, such as 3h; ServiceError if it is none, or too long."""
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd])", text.strip())
        seconds = float(match[1]) * UNITS_S[match[2]] if match else 0.0
        if 0 < seconds <= self.seconds:
            return seconds
        most = next(f"{self.seconds / size:.3g}{unit}" for unit, size in LARGEST if self.seconds >= size)
        remedy = f"pass a time such as 30m, 3h or 2d, of at most {most}"
        raise ServiceError(400, "remember", "invalid remember", value=text[:100], remedy=remedy)


class Forecasts:
    """identity: of the model's journal; forecasts of another one are deleted"""

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self._identity, self.keeping = path, identity, Keeping()
        self._file: sqlite3.Connection | None = None
        self._kept = 0  # rows in the file

    def open(self) -> None:
        """Open the file if there is one. sqlite3.Error or OSError if it cannot be used now."""
        if self._file is None and self.path.exists():
            self._open()

    def remember(self, forecast: Forecast, floors: NDArray[np.float64], seconds: float) -> list[str]:
        """Keep a forecast; returns an id for each row. They are in the file when it returns.

        floors: what the floors predicted at the same time
        """
        if len(forecast) > self.keeping.most:
            reason = f"{len(forecast):,} forecasts at once, but no more than {self.keeping.most:,} are kept"
            remedy = "send fewer rows, or start the server with a larger --max-forecasts"
            raise ServiceError(422, "remember", reason, remedy=remedy)
        file, token, now = self._open(), secrets.token_hex(8), time.time()
        row = (token, now, now + seconds, len(forecast), *forecast.model, rows_of(forecast, floors).tobytes())
        with _transaction(file):
            file.execute("insert into forecasts values (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            kept = self._dropped(file, now, self._kept + len(forecast))
        self._kept = kept
        return [f"{token}-{number}" for number in range(len(forecast))]

    def drop_expired(self) -> None:
        if self._file is not None:
            with _transaction(self._file):
                kept = self._dropped(self._file, time.time(), self._kept)
            self._kept = kept

    def _dropped(self, file: sqlite3.Connection, now: float, kept: int) -> int:
        """Drop what is over, and the oldest of what is too much. Returns how many of `kept` are left."""
        over = "from forecasts where until <= ?"
        (gone,) = file.execute(f"select coalesce(sum(n), 0) {over}", (now,)).fetchone()
        if gone:
            file.execute(f"delete {over}", (now,))
        kept -= gone
        while kept > self.keeping.most:
            oldest, n = file.execute("select rowid, n from forecasts order by rowid limit 1").fetchone()
            file.execute("delete from forecasts where rowid = ?", (oldest,))
            kept -= n
        return kept

    def find(self, ids: NDArray[Any], like: Forecast) -> Remembered | None:
        """The forecasts with these ids; None if there is none.

        like: of the model now; forecasts of another generation of it are not known
        """
        self.open()
        now, numbers = time.time(), np.full((len(ids), row_size(like)), np.nan)
        late, known = np.full(len(ids), np.nan), {}
        for place, each in enumerate(ids):
            token, _, row = each.partition("-") if isinstance(each, str) else ("", "", "")
            if token not in known:
                known[token] = self._batch(token, now, like)
            made, batch = known[token]
            if row.isascii() and row.isdecimal() and len(row) < 10 and int(row) < len(batch):
                numbers[place], late[place] = batch[int(row)], max(0.0, now - made)
        if np.isnan(late).all():
            return None
        return Remembered.of_rows(like, numbers, late)

    def _batch(self, token: str, now: float, like: Forecast) -> tuple[float, NDArray[np.float64]]:
        """When the forecasts of a request were made, and their numbers; none if they are not known."""
        found = None
        if self._file is not None and token:
            found = self._file.execute(
                "select made, n, generation, likelihood, shift, scale, numbers from forecasts "
                "where token = ? and until > ?", (token, now),
            ).fetchone()  # fmt: skip
        if found is None:
            return 0.0, np.empty(0)
        made, n, *about, content = found
        size, numbers = row_size(like), np.frombuffer(content)
        if tuple(about) != like.model or numbers.size != n * size:
            return 0.0, np.empty(0)
        return made, numbers.reshape(n, size)

    def _open(self) -> sqlite3.Connection:
        if self._file is not None:
            return self._file
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))  # private, like the journal
        file = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=1.0)
        try:
            file.execute("pragma journal_mode = wal")
            file.execute("pragma synchronous = normal")  # survives a kill; a power cut may lose the latest
            for statement in _TABLES.split(";"):
                file.execute(statement)
            if file.execute("select identity from about").fetchall() != [(self._identity,)]:
                with _transaction(file):
                    file.execute("delete from forecasts")
                    file.execute("delete from about")
                    file.execute("insert into about values (?)", (self._identity,))
            (self._kept,) = file.execute("select coalesce(sum(n), 0) from forecasts").fetchone()
        except BaseException:
            file.close()
            raise
        self._file = file
        return file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


@contextlib.contextmanager
def _transaction(file: sqlite3.Connection):
    file.execute("begin immediate")
    try:
        yield
        file.execute("commit")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            file.execute("rollback")
        raise
