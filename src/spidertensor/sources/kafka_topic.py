"""Kafka: a topic is read with all its partitions, from offsets that we keep, without a consumer group.

Position: `partitions`, the next offset of each.

Order. Inside a partition messages are read in their order, always. Across partitions they are read in rounds:
up to ROUND messages of partition 0, then of 1, and so on. A round waits for each partition that has more, so
how fast the brokers answer does not matter. A log that is complete is therefore read in one and the same
order, however often the reader is killed and goes on from a stored position. At the live end a partition that
has nothing yet is not waited for, so there the order is that of arrival.
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
from spidertensor.sources.stream import MOST, Disconnected, Messages, Position, Stream

ROUND = 1000  # messages of a partition
ENOUGH = 8 * ROUND  # messages of a partition that wait for another one: more are not read
PATIENCE = 30.0  # seconds that the others wait for a partition whose broker does not answer
SECONDS = 5.0  # within which a broker answers
NEW_PARTITIONS = 30.0  # seconds between two looks for them
SLICE = 0.05  # seconds: the client does not notice signals while it waits

# The rules above rest on these, so a file of settings must not change them.
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
    # Without a logger the client writes lines to standard error; what matters is told by us.
    return {"log_level": 0, **more, **stream.config, "bootstrap.servers": stream.hosts}


@dataclass
class _Partition:
    """next: the offset behind the last message that was handed out; fetched: behind the last in the buffer;
    end: how far it went when it was first seen."""

    where: TopicPartition
    next: int
    end: int
    fetched: int
    high: int = -1
    buffer: deque[Any] = field(default_factory=deque)
    paused: bool = False
    heard: float = 0.0

    def take(self) -> list[Any]:
        """A round's share."""
        taken = [self.buffer.popleft() for _ in range(min(ROUND, len(self.buffer)))]
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
        self._reason = ""  # what the client has told last
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

    # --- partitions, and where they are read from

    def _find_partitions(self) -> None:
        """Read those that are not read yet. One that a stored position does not know is new: all of it."""
        topic = self.stream.topic
        with self._asking():
            found = self._consumer.list_topics(topic, timeout=SECONDS).topics[topic]
        if found.error is not None:  # a broker that starts knows its topics only after a while
            raise Disconnected(found.error.str())
        self._looked = monotonic()
        gone = sorted(set(self._stored or ()) - set(found.partitions))
        if gone:
            self.stream.gap(f"partition {gone[0]} is gone: was the topic deleted and made anew?")
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
        with self._asking():
            return self._consumer.get_watermark_offsets(where, timeout=SECONDS)

    def _start(self, number: int, offset: int, low: int, high: int) -> int:
        """Where to go on from a stored offset, if it is still there."""
        if offset < low:
            lost = f"{low - offset:,} messages from offset {offset:,} on were deleted before they were read"
            self.stream.gap(f"partition {number}: {lost}", low - offset)
            return low
        if offset > high:
            what = f"ends at offset {high:,}, but was read up to {offset:,}"
            self.stream.gap(f"partition {number} {what}: was the topic deleted and made anew?")
            return low
        return offset

    # --- messages

    def poll(self, timeout: float) -> Messages | None:
        deadline = monotonic() + timeout
        if monotonic() - self._looked > NEW_PARTITIONS:
            self._find_partitions()
        while not (messages := self._rounds()):
            left = deadline - monotonic()
            self._fetch(min(max(left, 0.0), SLICE))
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
        """As many whole rounds as there are messages for."""
        taken: list[Any] = []
        partitions = self._partitions.values()
        now = monotonic()
        while len(taken) < MOST and all(self._is_ready(each, now) for each in partitions):
            before = len(taken)
            for each in partitions:
                taken += each.take()
            if len(taken) == before:
                break
        self._hold_back()
        return taken

    def _is_ready(self, partition: _Partition, now: float) -> bool:
        """Whether its share of a round is complete: enough, or all that it has."""
        if len(partition.buffer) >= ROUND or partition.fetched >= partition.high >= 0:
            return True
        return now - partition.heard > PATIENCE

    def _fetch(self, timeout: float) -> None:
        try:
            messages = self._consumer.consume(MOST, timeout)
        except KafkaException as error:
            raise Disconnected(error.args[0].str()) from error
        now = monotonic()
        message: Any  # its methods return None only for one without an offset, which is never consumed
        for message in messages:
            partition = self._partitions[message.partition()]
            partition.heard = now
            error = message.error()
            if error is not None:
                self._take_error(partition, message, error)
            elif message.offset() >= partition.fetched:  # else it came before
                partition.buffer.append(message)
                partition.fetched = message.offset() + 1
        for each in self._partitions.values():  # as the last answer of its broker said; costs no question
            _, each.high = self._consumer.get_watermark_offsets(each.where, cached=True) or (0, -1)
        if self._failed is not None:
            raise self._failed

    def _take_error(self, partition: _Partition, message: Any, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            # Behind the last message may be marks of transactions, which are no messages.
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
        """A partition far ahead of one that is slow is not read on, or memory would fill up."""
        for each in self._partitions.values():
            if each.paused != (len(each.buffer) > ENOUGH):
                each.paused = not each.paused
                change = self._consumer.pause if each.paused else self._consumer.resume
                change([each.where])

    def _count(self) -> None:
        self.at_end = all(each.next >= each.end for each in self._partitions.values())
        self.lag = sum(max(each.high, each.end) - each.next for each in self._partitions.values())

    # --- the broker

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._failed = Disconnected(self._reason or error.str())
        elif error.fatal() or error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            self._failed = SourceError(f"{self.stream.name}: {error.str()}")
        else:
            self._reason = error.str()

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            if not self._partitions:  # so that this yields no message, but calls _on_error with the reason
                self._consumer.poll(0)
            if isinstance(self._failed, SourceError):
                raise self._failed from None
            raise Disconnected(self._reason or error.args[0].str()) from error

    def commit(self, position: Position) -> None:
        offsets = [
            TopicPartition(self.stream.topic, int(each), at) for each, at in position["partitions"].items()
        ]
        with contextlib.suppress(KafkaException):  # perhaps we may not: only tools look at it
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
                except BufferError:  # its queue is full
                    self._producer.poll(0.1)
                except KafkaException as error:  # such as a letter that is too long
                    raise SourceError(f"{self.stream.name}: {error.args[0].str()}") from None
        self._producer.flush()
        if failed:
            raise SourceError(f"{self.stream.name}: {failed[0].str()}")

    def close(self) -> None:
        self._producer.flush(0)
