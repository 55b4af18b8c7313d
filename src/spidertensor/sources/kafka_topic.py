"""Kafka: read all partitions of a topic from stored offsets, without a consumer group.

Position: `partitions`, the next offset of each.

Order: within a partition, always its own. Across partitions, rounds: up to ROUND_MESSAGES messages of
partition 0, then of 1, and so on. A round waits for every partition that has more, so the speed of the
brokers does not matter. A complete log is therefore always read in the same order, however often the reader
is killed and continues from a stored position. At the live end, empty partitions are not waited for: there
the order is that of arrival.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import confluent_kafka as kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from spidertensor.sources.source import SourceError
from spidertensor.sources.stream import MAX_MESSAGES, Disconnected, Messages, Position, Stream

ROUND_MESSAGES = 1000  # per partition
MAX_BUFFERED = 8 * ROUND_MESSAGES  # messages per partition; a partition with more is paused
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
    heard: when its broker last answered"""

    where: TopicPartition
    next: int
    end: int
    fetched: int
    high: int = -1
    buffer: deque[Any] = field(default_factory=deque)
    paused: bool = False
    heard: float = 0.0

    def take(self) -> list[Any]:
        """Remove and return its messages for one round."""
        taken = [self.buffer.popleft() for _ in range(min(ROUND_MESSAGES, len(self.buffer)))]
        self.settle()
        return taken

    def settle(self) -> None:
        self.next = self.buffer[0].offset() if self.buffer else self.fetched


class Connection:
    def __init__(self, stream: Stream, position: Position | None) -> None:
        self.stream, self.at_end, self.lag = stream, False, None
        match position:
            case None:
                self._stored, self._messages = None, 0
            case {"partitions": dict(offsets), "messages": int(messages)} if _are_offsets(offsets):
                self._stored, self._messages = (
                    {int(name): offset for name, offset in offsets.items()},
                    messages,
                )
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
        new = []
        for number in sorted(set(found.partitions) - set(self._partitions)):
            where = TopicPartition(topic, number)
            low, high = self._bounds(where)
            start = low
            if self._stored is not None:
                start = self._start(number, self._stored.get(number, 0), low, high)
            new.append(_Partition(where, start, high, start, heard=monotonic()))
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

    def _start(self, number: int, offset: int, low: int, high: int) -> int:
        """The offset to continue from; reports a gap if the stored one no longer exists."""
        if offset < low:
            lost = f"{low - offset:,} messages from offset {offset:,} on were deleted before they were read"
            self.stream.gap(f"partition {number}: {lost}", low - offset)
            return low
        if offset > high:
            what = f"ends at offset {high:,}, but was read up to {offset:,}"
            self.stream.gap(f"partition {number} {what}: was the topic deleted and recreated?")
            return low
        return offset

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
        offsets = {str(number): each.next for number, each in self._partitions.items()}
        return Messages(
            [each.value() for each in messages],
            lambda n: f"partition {messages[n].partition()}, offset {messages[n].offset()}",
            {"partitions": offsets, "messages": self._messages},
        )

    def _rounds(self) -> list[Any]:
        """The messages of as many whole rounds as are complete."""
        taken: list[Any] = []
        partitions = self._partitions.values()
        now = monotonic()
        while len(taken) < MAX_MESSAGES and all(self._is_ready(each, now) for each in partitions):
            before = len(taken)
            for each in partitions:
                taken += each.take()
            if len(taken) == before:
                break
        self._hold_back()
        return taken

    def _is_ready(self, partition: _Partition, now: float) -> bool:
        """Whether its part of a round is complete: enough messages, or all there are."""
        if len(partition.buffer) >= ROUND_MESSAGES or partition.fetched >= partition.high >= 0:
            return True
        return now - partition.heard > PATIENCE_S

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
                partition.buffer.append(message)
                partition.fetched = message.offset() + 1
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
            number = partition.where.partition
            start = self._start(number, partition.fetched, *self._bounds(partition.where))
            if start != partition.fetched:
                partition.fetched = start
                partition.settle()
            self._consumer.seek(TopicPartition(self.stream.topic, number, start))
        elif not error.retriable():
            raise SourceError(f"{self.stream.name}: {error.str()}")

    def _hold_back(self) -> None:
        """Pause partitions far ahead of a slow one, to bound memory."""
        for each in self._partitions.values():
            if each.paused != (len(each.buffer) > MAX_BUFFERED):
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
