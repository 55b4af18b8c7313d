"""Redis and Valkey Streams: an entry is a message, and its id is its place.

Position: `id`, of the last entry read, `crc`, a checksum of its fields, and `added`, how many entries had
been added to the stream up to there. Trimming (XTRIM, or XADD with MAXLEN) removes the oldest entries;
`added` tells how many were removed unread. Each look at the stream is one transaction and begins with the
last entry read, so nothing goes unnoticed in between. Single entries deleted after they were read (XDEL) do
not count as lost.
"""

from __future__ import annotations

import contextlib
import zlib
from pathlib import Path
from typing import Any

import redis
from redis import exceptions

from spidertensor.sources.source import SourceError
from spidertensor.sources.stream import MAX_BYTES, MAX_MESSAGES, Disconnected, Messages, Position, Stream

READ_MESSAGES = 512  # in one answer of the server
TIMEOUT_S = 10  # for an answer of the server
# A starting server, or a replica taking over, refuses for a while.
RETRYABLE = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ReadOnlyError, OSError)

FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
TEXTS = ("username", "password", "client_name")  # stay texts even if they look like numbers


def _client(stream: Stream) -> redis.Redis:
    host, _, port = stream.hosts.partition(":")
    settings = {name: value if name in TEXTS else _typed(value) for name, value in stream.config.items()}
    if "," in stream.hosts or not (port or "6379").isdigit():
        raise SourceError(f"{stream.name}: a Redis stream has one host: redis://host:6379/name")
    missing = [name for name in FILES if name in settings and not Path(settings[name]).is_file()]
    if missing:  # the client's own error does not name the file
        raise SourceError(f"{stream.name}: settings: {missing[0]}: no such file: {settings[missing[0]]}")
    fixed = {
        "host": host, "port": int(port or 6379), "ssl": stream.scheme == "rediss", "protocol": 2,
        "decode_responses": False, "retry": None,
    }  # fmt: skip
    try:
        return redis.Redis(**{"socket_timeout": TIMEOUT_S, "socket_keepalive": True, **settings, **fixed})
    except (TypeError, exceptions.RedisError) as error:
        raise SourceError(f"{stream.name}: settings: {error}") from None


def _typed(value: Any) -> Any:
    """Convert a text to an int or bool: in a file of name=value all values are texts."""
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


class Connection:
    def __init__(self, stream: Stream, position: Position | None) -> None:
        self.stream, self.at_end, self.lag = stream, False, None
        match position:
            case None:
                self._id, self._added, self._messages, self._crc = (0, 0), None, 0, None
            case {"id": str(last), "added": int() | None as added, "messages": int(messages)} if _is_id(last):
                self._id, self._added, self._messages = _parts(last.encode()), added, messages
                self._crc = position.get("crc")
            case _:
                raise stream.refuse_position(position)
        self._is_read = self._id > (0, 0)  # so that the entry with this id must be there
        self._client = _client(stream)
        self._end: tuple[int, int] | None = None
        self._wire: Any = None
        with self._broker_errors():
            self._wire = self._client.connection_pool.get_connection()
            info, entries = self._look(1)
            self._size = max(map(_size, entries), default=0) + 1  # a guess for the next
        self._end = _parts(info[b"last-generated-id"]) if info else (0, 0)

    def poll(self, timeout: float) -> Messages | None:
        with self._broker_errors():
            entries = self._entries()
            if not entries and timeout > 0:
                self._wait(timeout)
                entries = self._entries()
        self.at_end = not entries or self._end is None or self._id >= self._end
        if not entries:
            return None
        self._messages += len(entries)
        fields = [entry[1] for entry in entries]
        if self.stream.format.name != "fields":
            fields = [each[1] if len(each) == 2 else _all(each) for each in fields]
        position = {"id": _text(self._id), "crc": self._crc, "added": self._added, "messages": self._messages}
        return Messages(fields, lambda n: f"id {entries[n][0].decode()}", position)

    def _entries(self) -> list[Any]:
        """The next entries, a few at once: Redis limits them by number only, and the next may be large."""
        entries: list[Any] = []
        left = MAX_BYTES
        while len(entries) < MAX_MESSAGES and (left > self._size or not entries):
            most = max(min(left // self._size, READ_MESSAGES, MAX_MESSAGES - len(entries)), 1)
            _, found = self._look(most)
            if not found:
                break
            entries += found
            sizes = list(map(_size, found))
            self._size, left = max(sizes) + 1, left - sum(sizes)
            self._id, self._crc, self._is_read = _parts(found[-1][0]), _checksum(found[-1][1]), True
            if self._added is not None and self._total is not None:
                # exact at the end; before it, entries deleted in between are not counted
                self._added = self._total if len(found) < most else self._added + len(found)
                self.lag = max(self._total - self._added, 0)
            if len(found) < most:
                break
        return entries

    def _look(self, most: int) -> tuple[dict[bytes, Any], list[Any]]:
        """The server's info about the stream, and the entries after the last one read."""
        topic, wire = self.stream.topic, self._wire
        for command in (
            ("MULTI",),
            ("XINFO", "STREAM", topic),
            (
                "XRANGE",
                topic,
                _text(self._id),
                "+",
                "COUNT",
                most + 1,
            ),  # the last one read, and those after it
            ("EXEC",),
        ):
            wire.send_command(*command)
        answers: list[Any] = [wire.read_response() for _ in range(4)]
        info, entries = answers[-1]
        failed = next((each for each in (info, entries) if isinstance(each, Exception)), None)
        if failed is not None and "no such key" not in str(failed):
            raise failed
        if failed is not None:  # a stream does not exist before its first entry
            info, entries = [], []
        about = dict(zip(info[::2], info[1::2], strict=True))
        last = entries.pop(0)[1] if entries and _parts(entries[0][0]) == self._id else None
        self._check(about, last)
        return about, entries[:most]

    def _check(self, about: dict[bytes, Any], last: list[bytes] | None) -> None:
        """Report a gap if this is not the stream that was read, or if entries are lost.

        last: the fields of the last entry read, if it is there. Servers before Redis 7 do not count the
        entries added, nor say what was deleted, so there only a stream that ends earlier is noticed.
        """
        self._total = about.get(b"entries-added") if about else 0
        removed = None if self._total is None else self._total - about.get(b"length", 0)
        if self._is_read and not self._is_same(about, last):
            last_read = f"entry {_text(self._id)}, the last one read, is not there any more"
            self.stream.gap(f"{last_read}: was the stream restored or recreated?", kind="restored")
            self._is_read, self._added = False, None  # go on after this id: ids are times
        if removed is None or self._added is None:
            self._added = removed
            return
        lost, first = removed - self._added, about.get(b"first-entry")
        if lost > 0 and (first is None or _parts(first[0]) > self._id):
            self.stream.gap(
                f"{lost:,} entries after id {_text(self._id)} were trimmed before they were read", lost
            )
            self._added += lost

    def _is_same(self, about: dict[bytes, Any], last: list[bytes] | None) -> bool:
        """Whether the last entry read is as it was, or was deleted."""
        if last is not None:
            return self._crc in (None, _checksum(last))
        if self._total is not None and self._total < (self._added or 0):
            return False
        newest, first = about.get(b"last-generated-id"), about.get(b"first-entry")
        deleted = about.get(b"max-deleted-entry-id")
        if newest is None or _parts(newest) < self._id:
            return False
        is_trimmed = first is None or _parts(first[0]) > self._id
        return is_trimmed or deleted is None or _parts(deleted) >= self._id

    def _wait(self, timeout: float) -> None:
        """Wait until an entry arrives; `_look` then reads it."""
        milliseconds = max(int(1000 * min(timeout, TIMEOUT_S / 2)), 1)
        last = _text(self._id)
        self._wire.send_command(
            "XREAD", "COUNT", 1, "BLOCK", milliseconds, "STREAMS", self.stream.topic, last
        )
        self._wire.read_response()

    @contextlib.contextmanager
    def _broker_errors(self) -> Any:
        try:
            yield
        except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
            raise SourceError(f"{self.stream.name}: {error}") from None
        except RETRYABLE as error:
            raise Disconnected(str(error) or type(error).__name__) from error
        except exceptions.RedisError as error:
            raise SourceError(f"{self.stream.name}: {error}") from None

    def commit(self, position: Position) -> None:
        pass  # no consumer group, so nothing to report

    def close(self) -> None:
        with contextlib.suppress(*RETRYABLE):
            if self._wire is not None:
                self._wire.disconnect()  # not reused: an answer may be half read
            self._client.close()


def _all(entry: list[bytes]) -> bytes:
    """Content for an entry that should have one field: invalid, and shows what it has."""
    return b"not one field: " + b" ".join(entry)


def _is_id(text: str) -> bool:
    left, _, right = text.partition("-")
    return left.isdecimal() and right.isdecimal() and text.isascii() and len(text) <= 41


def _size(entry: Any) -> int:
    return sum(map(len, entry[1]))


def _checksum(fields: list[bytes]) -> int:
    return zlib.crc32(b"\0".join(fields))


def _parts(entry_id: bytes) -> tuple[int, int]:
    left, _, right = entry_id.partition(b"-")
    return int(left), int(right)


def _text(entry_id: tuple[int, int]) -> str:
    return f"{entry_id[0]}-{entry_id[1]}"


class Sender:
    def __init__(self, stream: Stream) -> None:
        self.stream, self._client = stream, _client(stream)

    def send(self, records: list[bytes]) -> None:
        try:
            pipe = self._client.pipeline(transaction=False)
            for record in records:
                pipe.xadd(self.stream.topic, {"json": record})
            pipe.execute()
        except exceptions.RedisError as error:
            raise SourceError(f"{self.stream.name}: {error}") from None

    def close(self) -> None:
        self._client.close()
