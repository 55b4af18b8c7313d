"""Streams of messages in brokers: the common part, and the interface that each broker implements.

A broker is one module (`kafka_topic.py`, `redis_stream.py`, `nats_stream.py`) with two classes: a
`Connection` reads from a position, a `Sender` writes dead letters. It is imported on first use, because each
needs its own client package.

A position is a JSON object. It has `messages`, the number of messages read so far, and the broker's own
counters. It is saved in the same file as the model, so both always agree, whatever state the broker keeps.
No consumer group, acknowledgement or transaction is needed for correctness.

A broker may lose what it has acknowledged: it is restored from a backup, or a replica that lacks the latest
messages takes over. Then other messages may take the places of those that were read. So a position also says
which message was the last one read, and each connection compares: its time, and a checksum if that is not
enough. Positions of earlier versions lack this.
"""

from __future__ import annotations

import logging
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from spidertensor.sources.messages import FORMATS, MessageFormat
from spidertensor.sources.source import SourceError
from spidertensor.writing import naming

# URL scheme -> extra with the client, module, default format of messages
BROKERS = {
    "kafka": ("kafka", "kafka_topic", "json"),
    "redis": ("redis", "redis_stream", "fields"),
    "rediss": ("redis", "redis_stream", "fields"),
    "nats": ("nats", "nats_stream", "json"),
}
MAX_MESSAGES = 8192  # read at once
MAX_BYTES = 1 << 24  # of these; once parsed, JSON may take 30 times as much memory

GAPS = {  # kind of gap -> what on_gap="continue" does, and what else helps
    "gap": ("go on without them", ""),
    "restored": (
        "learn only what is later than the last message learned",
        "go back to a model file from before that, or ",
    ),
}
_log = logging.getLogger("spidertensor.sources")

Position = dict[str, Any]


class Disconnected(Exception):
    """The broker cannot be reached now; retrying may help."""


class Messages(NamedTuple):
    """Messages in the order of the stream."""

    contents: list[Any]  # bytes; for a Redis entry, the names and values of its fields in turn
    place: Callable[[int], str]  # n -> where in the broker the n-th of them is
    position: Position  # after the last of them


class Connection(Protocol):
    """A connection that reads a stream. The constructor connects; each call may raise Disconnected.

    at_end: whether everything present at the time of connecting has been read
    lag:    the number of messages still to be read, if known
    """

    at_end: bool
    lag: int | None

    def __init__(self, stream: Stream, position: Position | None) -> None:
        """Start after the position, or at the oldest message kept if it is None.

        SourceError if that is impossible, with kind "gap" if messages were deleted before they were read, and
        "restored" if the last message read is not there any more, though nothing deleted it.
        """
        ...

    def poll(self, timeout: float) -> Messages | None:
        """Return about MAX_MESSAGES messages at most; None if nothing arrives within `timeout` seconds."""
        ...

    def commit(self, position: Position) -> None:
        """Report the position to the broker's own tools. It is never read back."""
        ...

    def close(self) -> None: ...


class Sender(Protocol):
    """Sends messages to a stream. The constructor connects."""

    def __init__(self, stream: Stream) -> None: ...

    def send(self, records: list[bytes]) -> None:
        """Return when the broker has stored them all."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Stream:
    """A stream by its URL, not connected; usable like a Source.

    hosts, topic: the parts of the URL, "a:9092,b:9092" and the name of the topic or stream
    config:       settings of the client: passwords, certificates
    on_gap:       "raise" or "continue" if messages were deleted before they were read
    until_end:    stop at the current end of the stream
    """

    name: str
    scheme: str
    hosts: str
    topic: str
    format: MessageFormat
    names: tuple[str, ...] | None = None
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    on_gap: str = "raise"
    until_end: bool = False
    path: None = None
    decimal: str = "."

    def head(self) -> dict[str, Any]:
        """What identifies a stream. Without its hosts, which may change."""
        return {"stream": f"{BROKERS[self.scheme][0]}:{self.topic}"}

    def has_head(self, head: Mapping[str, Any] | None) -> bool:
        return head == self.head()

    def connect(self, position: Position | None) -> Connection:
        return self._module().Connection(self, position)

    def sender(self) -> Sender:
        return self._module().Sender(self)

    def gap(self, what: str, value: int | None = None, *, kind: str = "gap") -> None:
        """Messages are lost: raise SourceError unless on_gap accepts it. kind: see Connection"""
        then, other = GAPS[kind]
        if self.on_gap == "raise":
            remedy = f'{other}pass on_gap="continue" to {then}'
            raise SourceError(f"{self.name}: {what}", kind=kind, value=value, remedy=remedy)
        _log.warning("%s: %s; on_gap: %s", self.name, what, then)

    def refuse_position(self, position: Any) -> SourceError:
        return SourceError(f"{self.name}: the stored position does not fit this stream: {position!r:.200}")

    def _module(self) -> Any:
        extra, module, _ = BROKERS[self.scheme]
        try:
            return import_module(f"spidertensor.sources.{module}")
        except ModuleNotFoundError as error:
            raise SourceError(
                f"{self.name}: needs {error.name}: pip install 'spidertensor[{extra}]'"
            ) from None


def is_url(name: str) -> bool:
    return "://" in name


def stream_at(
    url: str,
    format: str | None = None,  # noqa: A002
    columns: Sequence[str] | None = None,
    *,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    on_gap: str = "raise",
    until_end: bool = False,
) -> Stream:
    """The stream for a URL. Parameters: see `spidertensor.sources.open`"""
    parts = urlsplit(url)
    hosts, topic = parts.netloc, unquote(parts.path.strip("/"))
    shown = f"{parts.scheme}://{hosts.rpartition('@')[2]}{parts.path}"  # a password must not be shown
    if parts.scheme not in BROKERS:
        raise SourceError(
            f"{shown}: unknown kind of stream, use {', '.join(f'{each}://' for each in BROKERS)}"
        )
    if "@" in hosts or parts.query or parts.fragment:
        raise SourceError(
            f"{shown}: a URL has only hosts and a name: a password in it would show up in process lists and "
            "the shell's history",
            kind="secret",
            remedy="pass user names, passwords and other settings as config",
        )
    if not (hosts and topic) or "/" in topic:
        raise SourceError(f"{shown}: the URL of a stream is {parts.scheme}://host:port/name")
    name = format or BROKERS[parts.scheme][2]
    if name in ("avro", "protobuf"):
        raise SourceError(
            f"{shown}: {name} is not supported: have a connector or ksqlDB write the topic as JSON"
        )
    if name not in FORMATS or (name == "fields" and not parts.scheme.startswith("redis")):
        raise SourceError(f"{shown}: messages are json, csv or tsv (redis: also fields), not {name!r}")
    if (columns is not None) != FORMATS[name].headless:
        problem = "needs column names" if columns is None else "already names its columns"
        raise SourceError(f"{shown}: {name} {problem}", kind="columns")
    if on_gap not in ("raise", "continue"):
        raise SourceError(f'on_gap is "raise" or "continue", not {on_gap!r}')
    settings = config if isinstance(config, Mapping) else {} if config is None else read_config(config)
    tables = {extra: settings[extra] for extra, *_ in BROKERS.values() if extra in settings}
    if tables:  # dead letters may go to a broker of another kind
        settings = tables.get(BROKERS[parts.scheme][0], {})
    names = None if columns is None else tuple(columns)
    return Stream(shown, parts.scheme, hosts, topic, FORMATS[name], names, settings, on_gap, until_end)


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a settings file: TOML if it ends in .toml, else lines of name=value, as in Kafka's tools."""
    with naming(path):
        text = Path(path).read_text(encoding="utf-8")
    if str(path).endswith(".toml"):
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise SourceError(f"{path}: {error}") from None
    settings = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if line and line[0] not in "#!":
            name, found, value = line.partition("=")
            if not found:  # the line itself may be a password
                raise SourceError(f"{path}: line {number} is not name=value")
            settings[name.strip()] = value.strip()
    return settings
