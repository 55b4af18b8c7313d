"""Kafka: read all partitions of a topic from stored offsets, without a consumer group.

Position: `partitions`, the next offset of each, and `last`, its last message read:
offset, time in milliseconds, checksum.

Order: within a partition, always its own. Across partitions, rounds: up to ROUND_MESSAGES messages of
partition 0, then of 1, and so on; fewer if they are large, so that a round has at most ROUND_BYTES. A round
waits for every partition that has more, so the speed of the brokers does not matter. A complete log is
therefore always read in the same order, however often the reader is killed and continues from a stored
position. At the live end, empty partitions are not waited for: there the order is that of arrival.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import confluent_kafka as kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from spidertensor.sources.source import SourceError
from spidertensor.sources.stream import MAX_BYTES, MAX_MESSAGES, Disconnected, Messages, Position, Stream

ROUND_MESSAGES = 1000  # per partition
ROUND_BYTES = MAX_BYTES // 2  # of all partitions, each with an equal share
MESSAGE_BYTES = 100  # of a message besides its content
MAX_BUFFERED = 8 * ROUND_MESSAGES  # messages per partition; a partition with more is paused
MAX_BUFFERED_BYTES = 1 << 26  # of all partitions; beyond that, one that has its round is paused
PATIENCE_S = 30.0  # how long a round waits for a partition whose broker does not answer
TIMEOUT_S = 5.0  # for an answer of a broker
NEW_PARTITIONS_S = 30.0  # between two checks for new partitions
SLICE_S = 0.05  # longest single wait: the client does not notice signals meanwhile

# The rules above depend on these settings, so users cannot change them.
FIXED = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}


def _settings(stream: Stream, **more: Any) -> dict[str, Any]:
    wrong = [name for name in ("bootstrap.servers", *FIXED) if name in stream.config]
    if wrong:
        raise SourceError(f"{stream.name}: settings: {wrong[0]} cannot be set")
    # Silent: otherwise the client logs to standard error what we report ourselves.
    return {"log_level": 0, **more, **stream.config, "bootstrap.servers": stream.hosts}


@dataclass
class _Partition:
    """next: the offset after the last message returned; fetched: after the last one in the buffer;
    high: the current end, -1 if unknown; end: the end when the partition was first seen;
    last: what is known about the last message returned; heard: when its broker last answered"""

    where: TopicPartition
    next: int
    end: int
    fetched: int
    last: list[int] | None = None
    high: int = -1
    buffer: deque[Any] = field(default_factory=deque)
    bytes: int = 0  # of the buffer
    paused: bool = False
    heard: float = 0.0

    def put(self, message: Any) -> None:
        self.buffer.append(message)
        self.bytes += _size(message)
        self.fetched = message.offset() + 1

    def has_round(self, share: int) -> bool:
        """Whether its messages of a round are there, or there are no more. share: of ROUND_BYTES"""
        is_full = len(self.buffer) >= ROUND_MESSAGES or self.bytes >= share
        return is_full or self.fetched >= self.high >= 0

    def take(self, share: int) -> list[Any]:
        """Remove and return its messages for one round. share: of ROUND_BYTES"""
        taken: list[Any] = []
        while self.buffer and len(taken) < ROUND_MESSAGES:
            size = _size(self.buffer[0])
            if taken and size > share:
                break
            taken.append(self.buffer.popleft())
            share -= size
            self.bytes -= size
        if taken:
            self.last = _facts(taken[-1])
        self.settle()
        return taken

    def settle(self) -> None:
        self.next = self.buffer[0].offset() if self.buffer else self.fetched


def _size(message: Any) -> int:
    return len(message) + MESSAGE_BYTES


def _facts(message: Any) -> list[int]:
    """What distinguishes a message from another one with its offset."""
    return [message.offset(), message.timestamp()[1], zlib.crc32(message.value() or b"")]


class Connection:
    def __init__(self, stream: Stream, position: Position | None) -> None:
        self.stream, self.at_end, self.lag = stream, False, None
        match position:
            case None:
                self._stored, self._messages, self._last = None, 0, {}
            case {"partitions": dict(offsets), "messages": int(messages)} if _are_offsets(offsets):
                self._stored, self._messages = (
                    {int(name): offset for name, offset in offsets.items()},
                    messages,
                )
                last = position.get("last", {})  # not in positions of earlier versions
                self._last = {number: last[str(number)] for number in self._stored if str(number) in last}
            case _:
                raise stream.refuse_position(position)
        self._failed: SourceError | Disconnected | None = None
        self._reason = ""  # the last error from the client
        self._partitions: dict[int, _Partition] = {}
        settings = {
            "group.id": f"spider.{stream.topic}", "client.id": "spidertensor", "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": 4096, "error_cb": self._on_error,
        }  # fmt: skip
        try:
            self._consumer = kafka.Consumer(_settings(stream, **settings) | FIXED)
        except KafkaException as error:
            raise SourceError(f"{stream.name}: settings: {error.args[0].str()}") from None
        try:
            self._find_partitions()
        except BaseException:
            self.close()
            raise

    # --- partitions and offsets

    def _find_partitions(self) -> None:
        """Start reading new partitions. One that is not in the stored position is read from its beginning."""
        topic = self.stream.topic
        with self._broker_errors():
            found = self._consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        if found.error is not None:  # a starting broker does not know its topics yet
            raise Disconnected(found.error.str())
        self._looked = monotonic()
        gone = sorted(set(self._stored or ()) - set(found.partitions))
        if gone:
            self.stream.gap(f"partition {gone[0]} is gone: was the topic deleted and recreated?")
        numbers = sorted(set(found.partitions) - set(self._partitions))
        bounds = {number: self._bounds(TopicPartition(topic, number)) for number in numbers}
        starts = {number: low for number, (low, _) in bounds.items()}
        if self._stored is not None:
            starts = self._starts(bounds)
        new = [
            _Partition(
                TopicPartition(topic, number), starts[number], bounds[number][1], starts[number],
                self._last.get(number), heard=monotonic(),
            )
            for number in numbers
        ]  # fmt: skip
        if self._stored is None:  # partitions that appear from now on are new
            self._stored = {}
        if new:
            self._consumer.incremental_assign(
                [TopicPartition(topic, each.where.partition, each.next) for each in new]
            )
        known = {each.where.partition: each for each in new} | self._partitions
        self._partitions = dict(sorted(known.items()))
        self._count()

    def _bounds(self, where: TopicPartition) -> tuple[int, int]:
        with self._broker_errors():
            return self._consumer.get_watermark_offsets(where, timeout=TIMEOUT_S)

    def _starts(self, bounds: dict[int, tuple[int, int]]) -> dict[int, int]:
        """The offset of each partition to continue from; reports gaps. Before anything is assigned."""
        assert self._stored is not None
        known = {
            number: last
            for number, last in self._last.items()
            if number in bounds and bounds[number][0] <= last[0] < bounds[number][1]
        }
        there = self._first_messages({number: last[0] for number, last in known.items()})
        starts = {}
        for number, (low, high) in bounds.items():
            offset, message = self._stored.get(number, 0), there.get(number)
            starts[number] = max(offset, low)
            if offset < low:
                self._deleted(number, offset, low)
            elif offset > high:
                what = f"ends at offset {high:,}, but was read up to {offset:,}"
                self.stream.gap(
                    f"partition {number} {what}: was the topic restored or recreated?", kind="restored"
                )
                starts[number] = self._first_later(number, low, high)
            elif message and message.offset() == known[number][0] and _facts(message) != known[number]:
                what = f"the message at offset {message.offset():,}, the last one read, is another one"
                self.stream.gap(f"partition {number}: {what}: was the topic restored?", kind="restored")
                starts[number] = self._first_later(number, low, high)
        return starts

    def _deleted(self, number: int, offset: int, low: int) -> None:
        lost = f"{low - offset:,} messages from offset {offset:,} on were deleted before they were read"
        self.stream.gap(f"partition {number}: {lost}", low - offset)

    def _first_later(self, number: int, low: int, high: int) -> int:
        """The offset of the first message that is later than the last one read, by halving."""
        if number not in self._last:
            return low
        _, time, _ = self._last[number]
        while low < high:
            middle = (low + high) // 2
            message = self._first_messages({number: middle})[number]
            if message is None or message.timestamp()[1] > time:
                high = middle
            else:
                low = message.offset() + 1
        return low

    def _first_messages(self, offsets: dict[int, int]) -> dict[int, Any]:
        """The first message from an offset of each partition on; None at its end."""
        found: dict[int, Any] = {}
        at = [TopicPartition(self.stream.topic, number, offset) for number, offset in offsets.items()]
        deadline = monotonic() + TIMEOUT_S
        with self._broker_errors():
            self._consumer.incremental_assign(at)
            while len(found) < len(at):
                message: Any
                for message in self._consumer.consume(MAX_MESSAGES, SLICE_S):
                    error = message.error()
                    if error is None or error.code() == KafkaError._PARTITION_EOF:
                        found.setdefault(message.partition(), None if error else message)
                    elif not error.retriable():
                        raise Disconnected(error.str())
                if self._failed is not None:
                    raise self._failed
                if monotonic() > deadline:
                    raise Disconnected(self._reason or "no answer")
            self._consumer.incremental_unassign(at)
        return found

    # --- messages

    def poll(self, timeout: float) -> Messages | None:
        deadline = monotonic() + timeout
        if monotonic() - self._looked > NEW_PARTITIONS_S:
            self._find_partitions()
        while not (messages := self._rounds()):
            left = deadline - monotonic()
            self._fetch(min(max(left, 0.0), SLICE_S))
            if left <= 0 and not (messages := self._rounds()):
                self._count()
                return None
            if messages:
                break
        self._count()
        self._messages += len(messages)
        partitions = self._partitions.items()
        position = {
            "partitions": {str(number): each.next for number, each in partitions},
            "last": {str(number): each.last for number, each in partitions if each.last is not None},
            "messages": self._messages,
        }
        return Messages(
            [each.value() for each in messages],
            lambda n: f"partition {messages[n].partition()}, offset {messages[n].offset()}",
            position,
        )

    def _rounds(self) -> list[Any]:
        """The messages of as many whole rounds as are complete."""
        taken: list[Any] = []
        partitions, now, left = self._partitions.values(), monotonic(), ROUND_BYTES
        while (
            len(taken) < MAX_MESSAGES and left > 0 and all(self._is_ready(each, now) for each in partitions)
        ):
            before = len(taken)
            for each in partitions:
                taken += each.take(self._share)
            left -= sum(map(_size, taken[before:]))
            if len(taken) == before:
                break
        self._hold_back()
        return taken

    @property
    def _share(self) -> int:
        return ROUND_BYTES // len(self._partitions)

    def _is_ready(self, partition: _Partition, now: float) -> bool:
        return partition.has_round(self._share) or now - partition.heard > PATIENCE_S

    def _fetch(self, timeout: float) -> None:
        try:
            messages = self._consumer.consume(MAX_MESSAGES, timeout)
        except KafkaException as error:
            raise Disconnected(error.args[0].str()) from error
        now = monotonic()
        message: Any  # typed Optional, but never None for a consumed message
        for message in messages:
            partition = self._partitions[message.partition()]
            partition.heard = now
            error = message.error()
            if error is not None:
                self._take_error(partition, message, error)
            elif message.offset() >= partition.fetched:  # else a duplicate
                partition.put(message)
        for each in self._partitions.values():  # cached from the last answer: no request
            _, each.high = self._consumer.get_watermark_offsets(each.where, cached=True) or (0, -1)
        if self._failed is not None:
            raise self._failed

    def _take_error(self, partition: _Partition, message: Any, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            # Transaction markers, which are not messages, may follow the last message.
            partition.fetched = max(partition.fetched, message.offset())
            partition.settle()
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            number, (low, _) = partition.where.partition, self._bounds(partition.where)
            if partition.fetched >= low:  # the log was cut: connect again, which compares what is there
                raise Disconnected(error.str())
            self._deleted(number, partition.fetched, low)
            partition.fetched = low
            partition.settle()
            self._consumer.seek(TopicPartition(self.stream.topic, number, low))
        elif not error.retriable():
            raise SourceError(f"{self.stream.name}: {error.str()}")

    def _hold_back(self) -> None:
        """Pause partitions far ahead of a slow one, to bound memory."""
        partitions, share = self._partitions.values(), self._share
        full = sum(each.bytes for each in partitions) > MAX_BUFFERED_BYTES
        for each in partitions:
            if each.paused != (len(each.buffer) > MAX_BUFFERED or (full and each.bytes >= share)):
                each.paused = not each.paused
                change = self._consumer.pause if each.paused else self._consumer.resume
                change([each.where])

    def _count(self) -> None:
        self.at_end = all(each.next >= each.end for each in self._partitions.values())
        self.lag = sum(max(each.high, each.end) - each.next for each in self._partitions.values())

    # --- errors, commit, close

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._failed = Disconnected(self._reason or error.str())
        elif error.fatal() or error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            self._failed = SourceError(f"{self.stream.name}: {error.str()}")
        else:
            self._reason = error.str()

    @contextlib.contextmanager
    def _broker_errors(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            if not self._partitions:  # no partition is assigned: returns no message, but calls _on_error
                self._consumer.poll(0)
            if isinstance(self._failed, SourceError):
                raise self._failed from None
            raise Disconnected(self._reason or error.args[0].str()) from error

    def commit(self, position: Position) -> None:
        offsets = [
            TopicPartition(self.stream.topic, int(each), at) for each, at in position["partitions"].items()
        ]
        with contextlib.suppress(KafkaException):  # may be forbidden; only tools need it
            self._consumer.commit(offsets=offsets, asynchronous=True)

    def close(self) -> None:
        with contextlib.suppress(KafkaException):
            self._consumer.close()


def _are_offsets(offsets: dict[Any, Any]) -> bool:
    return all(
        isinstance(name, str) and name.isdecimal() and type(at) is int and 0 <= at < 2**63
        for name, at in offsets.items()
    )


class Sender:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        try:
            self._producer = kafka.Producer(_settings(stream, acks="all", **{"message.timeout.ms": 30_000}))
        except KafkaException as error:
            raise SourceError(f"{stream.name}: settings: {error.args[0].str()}") from None

    def send(self, records: list[bytes]) -> None:
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Any) -> None:
            if error is not None:
                failed.append(error)

        for record in records:
            while True:
                try:
                    self._producer.produce(self.stream.topic, record, on_delivery=delivered)
                    break
                except BufferError:  # the queue is full
                    self._producer.poll(0.1)
                except KafkaException as error:  # such as a message that is too large
                    raise SourceError(f"{self.stream.name}: {error.args[0].str()}") from None
        self._producer.flush()
        if failed:
            raise SourceError(f"{self.stream.name}: {failed[0].str()}")

    def close(self) -> None:
        self._producer.flush(0)
