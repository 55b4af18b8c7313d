"""Messages of a stream in the journal: the place after them, and their rows in the form of a request.

The broker keeps messages too, but not their order relative to client requests. With both in one journal, a
replay restores the same state and the position in the stream.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import orjson

from spidertensor.faults import Fault
from spidertensor.service.bodies import JSON, BodyFields, Entries, entries
from spidertensor.service.errors import ServiceError
from spidertensor.sources import BadRow, Chunk
from spidertensor.sources.stream import Sender

MESSAGES = "application/x-spider-messages"  # never accepted from a client

Place = Callable[[int], str | None]


class JournaledMessages(NamedTuple):
    """What a request from a stream has besides its entries.

    place: updates to the model's position: `row`, the number of the last message, and `stream`
    rows:  the message number of each row
    bad:   messages that are not rows, and where in the broker each is
    texts: whether attributes are texts without types, which the model knows once it has decided the columns
    where: message number -> where in the broker it is; journals of earlier versions do not tell
    """

    place: dict[str, Any]
    rows: list[int]
    bad: list[tuple[BadRow, str]]
    texts: bool = False
    where: Mapping[int, str] = MappingProxyType({})

    def rejected(self, found: Entries, outcome: bytes | ServiceError) -> list[tuple[BadRow, str | None]]:
        """All messages that were not learned, with where in the broker each is."""
        if isinstance(outcome, ServiceError):
            refused = dict.fromkeys(range(len(self.rows)), outcome.reason)
        else:
            refused = {each["row"]: _reason(each) for each in orjson.loads(outcome)["skipped"]}
        raw = {int(row): place for place, row in enumerate(found.rows)}
        faults = {fault.row: fault for fault in found.bad}
        left: list[tuple[BadRow, str | None]] = list(self.bad)
        for row, reason in refused.items():
            number = self.rows[row]
            content = _raw(found, raw[row]) if row in raw else _shown(faults.get(row))
            left.append((BadRow(number, reason, content), self.where.get(number)))
        return sorted(left, key=lambda each: each[0].row)


class DeadLetters:
    """A queue of letters about messages that cannot be learned.

    The model's thread adds letters and the reader's thread sends them, so that an unreachable broker does not
    hold up the model. A checkpoint waits until they are sent. Until then the journal has their messages, and
    a replay after a crash adds them again.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._waiting: list[bytes] = []
        self._changed = threading.Condition()

    def add(self, letters: list[bytes]) -> None:
        with self._changed:
            self._waiting += letters

    def send(self) -> None:
        """Send all waiting letters. SourceError if the broker refuses; they then stay in the queue."""
        with self._changed:
            letters = list(self._waiting)
        if letters:
            self._sender.send(letters)
            with self._changed:
                del self._waiting[: len(letters)]
                self._changed.notify_all()

    def are_sent(self, timeout: float) -> bool:
        """Wait until all letters are sent; False if that takes longer than `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, timeout)

    def close(self) -> None:
        self._sender.close()


class RejectsFile(Protocol):
    """A file of rejected rows (cli.bad_rows.BadRows). place: message number -> where in the broker it is"""

    def take(self, bad: Sequence[BadRow], place: Place) -> None: ...
    def records(self, bad: Sequence[BadRow], place: Place) -> list[bytes]: ...


class Rejects:
    """Where messages that cannot be learned are recorded.

    opened:  opens the file of rejected rows, given the name of the stream and a message number; rows of later
             messages are removed from it, because those are read again
    letters: if set, messages are also sent there
    """

    def __init__(self, opened: Callable[[str, int], RejectsFile]) -> None:
        self._opened = opened
        self._file: RejectsFile | None = None
        self.letters: DeadLetters | None = None
        self._waiting: list[tuple[BadRow, str | None]] = []

    def add(
        self, messages: JournaledMessages, rejected: list[tuple[BadRow, str | None]], stream: str
    ) -> None:
        if self._file is None:
            first = min([*messages.rows, *(bad.row for bad, _ in messages.bad)])
            self._file = self._opened(stream, first - 1)
        if self.letters is not None:
            self.letters.add(self._file.records(*_apart(rejected)))
        self._waiting += rejected
        with contextlib.suppress(OSError):  # a full disk: the next checkpoint tries again, or fails
            self.write()

    def write(self) -> None:
        if self._file is not None:
            self._file.take(*_apart(self._waiting))
            self._waiting = []


def _apart(rejected: list[tuple[BadRow, str | None]]) -> tuple[list[BadRow], Place]:
    """Split into messages, and a function from message number to where it is."""
    return [bad for bad, _ in rejected], {bad.row: where for bad, where in rejected}.get


def packed(chunk: Chunk, columns: Sequence[str], place: dict[str, Any], *, texts: bool = False) -> bytes:
    """Encode a chunk for the journal: a line about the messages, then their rows as a JSON list.

    columns: of the ids and the value. texts: see JournaledMessages
    """
    assert chunk.place is not None
    objects, infinite = _objects(chunk, columns)
    wrong = {n: f"{name} is infinite" for n, name in infinite.items()}
    try:
        rows = orjson.dumps([each for n, each in enumerate(objects) if n not in wrong])
    except TypeError:  # an integer beyond 64 bits, or a lone surrogate
        odd = (n for n, each in enumerate(objects) if not _is_writable(each))
        wrong = dict.fromkeys(odd, "text that is not Unicode") | wrong
        good = [each for n, each in enumerate(objects) if n not in wrong]
        rows = json.dumps(good, default=str).encode()  # times as texts
    numbers, bad = chunk.rows.tolist(), chunk.bad
    bad = [*bad, *(BadRow(numbers[n], reason, ascii(objects[n])) for n, reason in wrong.items())]
    numbers = [row for n, row in enumerate(numbers) if n not in wrong]
    about = {"place": place, "rows": numbers, "where": list(map(chunk.place, numbers))}
    about["bad"] = [[*each, chunk.place(each.row)] for each in bad]
    if texts and chunk.attributes:
        about["texts"] = True
    return json.dumps(about, default=str).encode() + b"\n" + rows


def _objects(chunk: Chunk, columns: Sequence[str]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The rows, without attributes that are missing; and by row the attributes that JSON cannot write."""
    raw = [column.tolist() for column in chunk.columns]
    if chunk.values is not None:  # events have none
        raw.append(chunk.values.tolist())
    objects = [dict(zip(columns, row, strict=True)) for row in zip(*raw, strict=True)]
    infinite: dict[int, str] = {}
    for name, column in chunk.attributes.items():
        for place, cell in enumerate(column.tolist()):
            if isinstance(cell, float) and not math.isfinite(cell):
                infinite |= {} if math.isnan(cell) else {place: name}
            elif cell is not None:
                objects[place][name] = cell
    return objects, infinite


def _is_writable(raw: Any) -> bool:
    if isinstance(raw, dict):
        return all(map(_is_writable, (*raw, *raw.values())))
    if isinstance(raw, list):
        return all(map(_is_writable, raw))
    try:
        return not isinstance(raw, str) or raw.encode() is not None
    except UnicodeEncodeError:
        return False


def unpacked(body: bytes, wanted: BodyFields) -> tuple[Entries, JournaledMessages]:
    about, rows = _about(body)
    bad = [(BadRow(row, reason, raw), where) for row, reason, raw, where in about["bad"]]
    where = dict(zip(about["rows"], about.get("where", ()), strict=False))
    wanted = wanted._replace(labels=None)  # these values are numbers already
    messages = JournaledMessages(about["place"], about["rows"], bad, about.get("texts", False), where)
    return entries(rows, JSON, wanted), messages


def place_of(body: bytes) -> dict[str, Any]:
    return _about(body)[0]["place"]


def _about(body: bytes) -> tuple[dict[str, Any], bytes]:
    line, _, rows = body.partition(b"\n")
    return json.loads(line), rows


def _reason(skipped: dict[str, Any]) -> str:
    """What is wrong with a row. The model's own reasons do not name the attribute."""
    column, message = skipped["column"], skipped["message"]
    named = skipped["kind"] != "attribute" or column is None or message.startswith(f"{column} ")
    return message if named else f"{column} {message}"


def _raw(found: Entries, place: int) -> list[Any]:
    return [*(column[place : place + 1].tolist()[0] for column in found.columns), float(found.values[place])]


def _shown(fault: Fault | None) -> Any:
    return None if fault is None else fault.value
