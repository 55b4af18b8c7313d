"""NATS JetStream: read a stream through an ephemeral consumer, which the server removes by itself.

Position: `next`, the sequence number of the first unread message; `time`, of the message before it in
nanoseconds, which the server has set; and `created`, when the stream was created: a recreated stream counts
from 1 again.

The consumer needs no acknowledgements, so messages lost with a connection are not sent again. Each message
carries its consumer sequence number; if one is missing, or nothing is heard, a new consumer starts. It starts
at the last message read, to see that it is the same.

The client is asynchronous. It runs in its own thread, which also reads ahead while the model learns.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
import threading
from collections import deque
from collections.abc import Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from nats import errors
from nats.aio.client import Client
from nats.js import api
from nats.js import errors as js_errors

from spidertensor.sources.source import SourceError
from spidertensor.sources.stream import MAX_BYTES, MAX_MESSAGES, Disconnected, Messages, Position, Stream

TIMEOUT_S = 10.0  # for an answer of the server
EXPIRES_S = 20.0  # after which the server drops a request for messages, and reports that
HEARTBEAT_S = 4.0  # between its signs of life until then; a node of a cluster may die with the consumer
TLS = ("tls_ca", "tls_cert", "tls_key")


class _Wire(Client):
    """The client, with changes for which it has no settings."""

    sid = -1  # the subscription whose messages go to `received`, as (reply, data, headers)
    received: deque[tuple[bytes, bytes, bytes | None]]
    arrived: threading.Event

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> None:
        """Bypass the client's object and queue per message, which take longer than everything else."""
        if sid != self.sid:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        self.received.append((reply, data, headers))
        if not self.arrived.is_set():
            self.arrived.set()

    async def hang_up(self) -> None:
        """Abort a half-open connection: the client leaves it open, and its `close` may wait forever."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
            await asyncio.sleep(0.01)  # let the event loop run

    def _connect_command(self) -> bytes:
        """The login. Refuses to send it unencrypted: the client would if the server offers no TLS."""
        if "tls" in self.options and not self._server_info.get("tls_required"):
            raise ssl.SSLError(1, "the server has no TLS, which the settings require")
        return super()._connect_command()


class _Client:
    """A connection to a server, running in its own thread and used from others."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="nats", daemon=True)
        self._thread.start()
        try:
            self.wire = self.call(self._connect())
        except BaseException:
            self.close()
            raise

    async def _connect(self) -> Any:
        settings = dict(self.stream.config)
        context = self._tls(settings)
        if context is not None:
            settings["tls"] = context
            logging.getLogger("asyncio").addFilter(_is_worth_a_line)

        reasons: list[Exception] = []  # without a callback the client logs stack traces

        async def note(error: Exception) -> None:
            reasons.append(error)

        servers = [f"nats://{host}" for host in self.stream.hosts.split(",")]
        settings |= {"allow_reconnect": False, "max_reconnect_attempts": 1, "reconnect_time_wait": 0.1}
        settings |= {"ping_interval": 10, "max_outstanding_pings": 2, "connect_timeout": TIMEOUT_S / 2}
        wire = _Wire()
        try:
            await wire.connect(servers, error_cb=note, **settings)
        except BaseException as error:
            await wire.hang_up()
            if isinstance(error, errors.NoServersError):
                raise Disconnected(str(reasons[-1]) if reasons else "no server") from None
            if isinstance(error, (TypeError, ssl.SSLError)):
                raise SourceError(f"{self.stream.name}: settings: {error}") from None
            raise
        return wire

    def _tls(self, settings: dict[str, Any]) -> ssl.SSLContext | None:
        """Remove the TLS settings and make a context from them; None if TLS is not wanted."""
        authority, certificate, key = [settings.pop(name, None) for name in TLS]
        if settings.pop("tls", False) not in (True, "true") and not (authority or certificate):
            return None
        try:
            context = ssl.create_default_context(cafile=authority)
            if certificate:
                context.load_cert_chain(certificate, key)
        except OSError as error:  # it does not name the file
            raise SourceError(f"{self.stream.name}: settings: {', '.join(TLS)}: {error}") from None
        return context

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the client's thread and wait for it."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(2 * TIMEOUT_S)
        except js_errors.ServiceUnavailableError as error:  # a starting server
            raise Disconnected("JetStream is not available") from error
        except (js_errors.NotFoundError, js_errors.BadRequestError) as error:
            raise SourceError(f"{self.stream.name}: {error.description}") from None
        except errors.AuthorizationError as error:
            raise SourceError(f"{self.stream.name}: {error}") from None
        except (errors.Error, OSError, TimeoutError, asyncio.CancelledError) as error:
            raise Disconnected(str(error) or type(error).__name__) from error
        finally:
            future.cancel()

    def close(self) -> None:
        wire = getattr(self, "wire", None)
        if wire is not None and not wire.is_closed:
            with contextlib.suppress(Exception):
                asyncio.run_coroutine_threadsafe(wire.close(), self.loop).result(1)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(2)
        if not self._thread.is_alive():
            _forget_tasks(self.loop)
            self.loop.close()


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Drop asyncio's warning about the client's TLS setup, logged whenever such a connection ends."""
    return "eof_received() has no effect" not in str(record.msg)


def _forget_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel pending tasks, which would otherwise log complaints when they are deleted."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


class Connection:
    def __init__(self, stream: Stream, position: Position | None) -> None:
        self.stream, self.at_end, self.lag = stream, False, None
        match position:
            case None:
                self._next, self._created, self._messages, self._time = None, None, 0, None
            case {"next": int(number), "created": str(created), "messages": int(messages)} if number > 0:
                self._next, self._created, self._messages = number, created, messages
                time = position.get("time")
                self._time = time if type(time) is int and 0 <= time < 2**63 else None
            case _:
                raise stream.refuse_position(position)
        self._received: deque[Any] = deque()  # not yet returned: reply, data, headers
        self._arrived = threading.Event()
        self._inbox: Any = None
        self._client = _Client(stream)
        try:
            self._client.call(self._begin())
        except BaseException:
            self.close()
            raise

    async def _begin(self) -> None:
        """Create a consumer at the first unread message, and send a first request."""
        info = await self._client.wire.jsm(timeout=TIMEOUT_S).stream_info(self.stream.topic)
        first, self._end, created = info.state.first_seq, info.state.last_seq, str(info.created)
        before, self._created = self._created, created
        if self._next is None:
            self._next = max(first, 1)
        elif before != created:
            await self._begin_again("the stream was deleted and recreated since it was last read", first)
            return
        elif self._next > self._end + 1:
            read = f"ends at sequence {self._end:,}, but was read up to {self._next - 1:,}"
            await self._begin_again(f"the stream {read}: was it restored?", self._end + 1)
            return
        self._check_gap(first)
        start = self._next if self._time is None else max(self._next - 1, 1)
        await self._consume(api.DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=start)
        if self._time is None or not self.lag:  # not known, or deleted, and nothing comes after it
            return
        number, _, time, _ = _numbers(await self._first_reply())
        if number == self._next - 1:
            self.lag -= 1
            self.at_end = not self.lag
            if time != self._time:
                what = f"message {number:,}, the last one read, is another one"
                await self._begin_again(f"{what}: was the stream restored?", self._next)

    async def _begin_again(self, what: str, otherwise: int) -> None:
        """Report that this is not the stream that was read; if that is accepted, begin with later messages.

        otherwise: the sequence number to begin with if the time of the last message read is not known
        """
        self.stream.gap(what, kind="restored")
        if self._time is None:
            self._next = max(otherwise, 1)
            await self._consume(api.DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=self._next)
            return
        later = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self._time // 1000 + 1)
        self._next = await self._consume(api.DeliverPolicy.BY_START_TIME, opt_start_time=later)

    async def _consume(self, policy: api.DeliverPolicy, **start: Any) -> int:
        """Create a consumer and send a first request. Returns the sequence number it starts at."""
        wire, name = self._client.wire, self.stream.topic
        manager = wire.jsm(timeout=TIMEOUT_S)
        if self._inbox is not None:
            await self._inbox.unsubscribe()
        wire.sid, wire.received, wire.arrived = -1, self._received, self._arrived
        self._received.clear()
        consumer = await manager.add_consumer(
            name, deliver_policy=policy, **start,
            ack_policy=api.AckPolicy.NONE, inactive_threshold=60.0, mem_storage=True, num_replicas=1,
        )  # fmt: skip
        self._consumed, self.lag = 0, consumer.num_pending
        self.at_end = not consumer.num_pending
        self._inbox = await wire.subscribe(wire.new_inbox())
        wire.sid = self._inbox._id
        self._pull = f"{manager._prefix}.CONSUMER.MSG.NEXT.{name}.{consumer.name}"
        self._open = 0  # messages of the request still to come
        await self._ask()
        return consumer.delivered.stream_seq + 1 if consumer.delivered else 1

    async def _first_reply(self) -> bytes:
        """Wait for the first message of the consumer, and leave it where it is."""
        deadline = monotonic() + TIMEOUT_S
        while not (self._received and self._received[0][0]):
            if monotonic() > deadline:
                raise Disconnected("the server sends no messages")
            if self._received:
                self._handle_status(self._received.popleft()[2] or b"")
            await asyncio.sleep(0.002)
        return self._received[0][0]

    def _check_gap(self, first: int) -> None:
        assert self._next is not None
        if first > self._next:
            lost = (
                f"{first - self._next:,} messages from sequence {self._next:,} on were deleted before they "
            )
            self.stream.gap(f"{lost}were read", first - self._next)
            self._next = first

    async def _ask(self) -> None:
        self._open, self._heard = MAX_MESSAGES, monotonic()
        most = MAX_BYTES + 2 * self._client.wire.max_payload  # or the largest message would never come
        request = {
            "batch": MAX_MESSAGES, "max_bytes": most, "expires": int(EXPIRES_S * 1e9),
            "idle_heartbeat": int(HEARTBEAT_S * 1e9),
        }  # fmt: skip
        await self._client.wire.publish(self._pull, json.dumps(request).encode(), self._inbox.subject)

    def poll(self, timeout: float) -> Messages | None:
        deadline = monotonic() + timeout
        while True:
            left = deadline - monotonic()
            if not self._received and left > 0:
                self._arrived.wait(min(left, 1.0))
            self._arrived.clear()
            # a fixed count: the client's thread keeps adding meanwhile
            received = [self._received.popleft() for _ in range(len(self._received))]
            messages = self._in_order(received)
            if messages:
                break
            self._heard = monotonic() if received else self._heard
            if self._client.wire.is_closed or monotonic() - self._heard > 3 * HEARTBEAT_S:
                raise Disconnected("the server is gone")
            if monotonic() >= deadline:
                return None
        contents = [data for _, data in messages]
        self._messages += len(messages)
        position = {"next": self._next, "time": self._time, "created": self._created}
        return Messages(
            contents, lambda n: f"sequence {messages[n][0]}", position | {"messages": self._messages}
        )

    def _in_order(self, received: list[Any]) -> list[tuple[int, bytes]]:
        """The new messages with their sequence numbers; handles the server's status messages."""
        assert self._next is not None
        found = []
        for reply, data, headers in received:
            if not reply:
                self._handle_status(headers or b"")
                continue
            number, consumed, time, pending = _numbers(reply)
            if consumed <= self._consumed:
                continue  # a duplicate
            if consumed > self._consumed + 1:
                raise Disconnected("messages were lost in transit")
            self._consumed, self.lag, self._open = consumed, pending, self._open - 1
            if number < self._next:
                continue  # the last one read, which the consumer starts at
            if number > self._next:  # single deleted messages are not a gap
                info = self._client.call(self._client.wire.jsm().stream_info(self.stream.topic))
                self._check_gap(min(info.state.first_seq, number))
            self._next, self._time = number + 1, time
            found.append((number, data))
        if found:
            self.at_end = self.at_end or self._next > self._end or self.lag == 0
        if self._open <= 0:
            self._client.call(self._ask())
        return found

    def _handle_status(self, headers: bytes) -> None:
        """Handle a status such as NATS/1.0 408 Request Timeout: the request has ended, or an error."""
        _, status, text, *_ = [*headers.partition(b"\r\n")[0].decode().split(" ", 2), "", ""]
        if status in ("404", "408") or (status == "409" and ("Max" in text or "Batch" in text)):
            self._open = 0
        elif status not in ("", "100"):
            raise Disconnected(text or f"status {status}")

    def commit(self, position: Position) -> None:
        pass  # the consumer is ephemeral, so nothing to report

    def close(self) -> None:
        self._client.close()


def _numbers(reply: bytes) -> Iterator[int]:
    """Its numbers in the stream and for the consumer, its time in ns, and how many messages are to come."""
    # $JS.ACK.STREAM.CONSUMER.delivered.sequence.consumed.time.pending; maybe two parts before STREAM
    parts = reply.split(b".")
    at = 5 if len(parts) == 9 else 7
    return map(int, parts[at : at + 4])


class Sender:
    """Sends messages to a subject, which some stream must store."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._client: _Client | None = None
        try:
            self._client = _Client(stream)
        except Disconnected as error:
            raise SourceError(f"{stream.name}: {error}") from None

    def send(self, records: list[bytes]) -> None:
        async def publish(client: _Client) -> None:
            stream = client.wire.jetstream()
            for record in records:
                await stream.publish(self.stream.topic, record)

        try:
            if self._client is None:
                self._client = _Client(self.stream)
            self._client.call(publish(self._client))
        except Disconnected as error:
            self.close()  # the next attempt reconnects
            raise SourceError(f"{self.stream.name}: {error}") from None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
