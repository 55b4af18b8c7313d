"""Streams in brokers, with the real servers: nothing lost and nothing twice, whatever breaks."""

from __future__ import annotations

import json
import os
import signal
import time
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

import forked
import servers
import spidertensor
from command_line import ONCE, eventually, n_entries, table
from servers import NAMES, OPEN, in_order, records
from spidertensor import sources
from spidertensor.sources import SourceError, kafka_topic, nats_stream, open_stream, redis_stream

pytestmark = pytest.mark.usefixtures("folder", "warm_kernels")


def content(path) -> bytes:
    """All of a model but its position."""
    spidertensor.load(path).save("content", None)
    return Path("content").read_bytes()


def file_model(spider, rows: list[dict], *options) -> bytes:
    """The model that a file with these rows makes."""
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert spider("fit", "rows.jsonl", *ONCE, *options, "--model", "file.spider", "--force", "-q")[0] == 0
    return content("file.spider")


def read(stream, n: int) -> list:
    """Chunks with at least n rows, good or bad: how they are cut is not certain."""
    chunks, found = [], 0
    deadline = time.monotonic() + 120
    while found < n and time.monotonic() < deadline:
        chunk = stream.poll(1)
        if chunk is not None:
            chunks.append(chunk)
            found += len(chunk.rows) + len(chunk.bad)
    assert found == n
    return chunks


def values(chunks) -> list[float]:
    return [value for chunk in chunks for value in chunk.values.tolist()]


def ratings_of(rows: list[dict]) -> list[float]:
    return [row["rating"] for row in rows]


# --- a stream is a source


def test_messages_have_attributes(server, topic, spider):
    """Some have none: the model knows them from earlier messages."""
    rows = [row | {"liked": "yes" if row["user"] % 2 else "no"} for row in records(700)]
    for row in rows[600:]:
        del row["liked"]
    server.put(topic, rows)
    named = ("--modes", "user+liked,movie", "--kind", "liked=value")
    fit = ("fit", server.url(topic), *ONCE, *named, "--model", "m.spider", "--until-end", "--quiet")
    assert spider(*fit)[0] == 0
    assert content("m.spider") == file_model(spider, in_order(server, rows), *named)
    (attribute,) = json.loads(spider("info", "m.spider", "--json")[1])["attributes"]
    assert (attribute["column"], attribute["values"]) == ("liked", 2)


def test_a_stream_makes_the_model_that_a_file_makes(server, topic, spider):
    first, second = records(700), records(500, seed=1)
    server.put(topic, first)
    fit = ("fit", server.url(topic), *ONCE, "--model", "m.spider", "--until-end")
    code, out, _ = spider(*fit, "--quiet", "--json")
    facts = json.loads(out)
    assert (code, facts["entries"], facts["lag"], facts["reconnects"]) == (0, 700, 0, 0)
    assert content("m.spider") == file_model(spider, in_order(server, first))
    server.put(topic, second)
    assert spider(*fit, "--quiet", "--resume")[0] == 0
    both = in_order(server, first) + in_order(server, second)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in both))
    assert content("m.spider") == file_model(spider, both)
    assert spider(*fit, "--quiet", "--resume")[0] == 0  # nothing new
    assert n_entries("m.spider") == 1200
    assert "already learned" in spider("fit", server.url(topic), "--model", "m.spider", "--add")[2]
    assert "message 1,200 of " in spider("info", "m.spider")[1].replace("\n", " ")


def test_a_stream_in_python(server, topic):
    rows = records(300)
    server.put(topic, rows[:200])
    with sources.open(server.url(topic), *OPEN) as stream:
        first = read(stream, 200)
        assert (first[0].rows[0], first[-1].end, stream.lag, stream.at_end) == (1, 200, 0, True)
        assert values(first) == ratings_of(in_order(server, rows[:200]))
        assert stream.poll(0) is None
        assert stream.position == first[-1].position
        server.put(topic, rows[200:])
        more = read(stream, 100)
        assert more[-1].end == 300
    stored = json.loads(json.dumps(first[-1].position))
    with sources.open(server.url(topic), *OPEN, position=stored, until_end=True) as stream:
        again = list(stream)
        assert (again[0].rows[0], again[-1].position) == (201, more[-1].position)
    assert sorted(values(again)) == sorted(values(more))


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_messages_that_are_lines(running, topic, kind):
    mark = {"csv": ",", "tsv": "\t"}[kind]
    rows = table(50)
    running("nats").put(topic, [mark.join(map(str, row)).encode() + b"\r\n" for row in rows])
    lines = {"format": kind, "columns": NAMES, "until_end": True}
    with sources.open(running("nats").url(topic), *OPEN, **lines) as stream:
        found = [row for chunk in stream for row in zip(*chunk.columns, chunk.values, strict=True)]
    assert found == rows


def test_an_entry_of_redis_may_hold_json(running, topic):
    running("redis").put(topic, [json.dumps(row).encode() for row in records(50)])
    with sources.open(running("redis").url(topic), *OPEN, format="json") as stream:
        assert values(read(stream, 50)) == ratings_of(records(50))
    with sources.open(running("redis").url(topic), *OPEN) as stream:
        reason = read(stream, 50)[0].bad[0].reason
        assert reason == "no field user: if entries hold JSON in one field, use format json"


def test_entries_with_other_fields(running, topic):
    """Fields in any order, more than are needed, some missing, bytes that are no text."""
    entry = {"user": 1, "movie": "a", "rating": 2.5}
    other = [{"rating": 1, "x": 2, "user": "007", "movie": "b"}, {"user": 1, "rating": 3}]
    running("redis").put(topic, [entry, *other, {"user": b"\xff", "movie": "c", "rating": 1}, entry])
    with sources.open(running("redis").url(topic), *OPEN) as stream:
        (chunk,) = read(stream, 5)
    assert [list(column) for column in chunk.columns] == [[1, "007", 1], ["a", "b", "a"]]
    assert [(each.row, each.reason) for each in chunk.bad] == [(3, "no field movie"), (4, "not UTF-8 text")]


def test_large_entries_of_redis_are_read_few_at_once(running, topic):
    large = [each | {"more": "x" * (1 << 20)} for each in records(100)]
    running("redis").put(topic, large)
    with sources.open(running("redis").url(topic), *OPEN) as stream:
        chunks = read(stream, 100)
    assert values(chunks) == ratings_of(large)
    assert max(len(each.values) for each in chunks) <= 16


def test_large_entries_after_small_ones_are_read_few_at_once(running, topic, monkeypatch):
    """The server limits entries by number only, so how large the next are is found out a few at a time."""
    monkeypatch.setattr(redis_stream, "MAX_BYTES", 100_000)
    monkeypatch.setattr(redis_stream, "READ_MESSAGES", 8)
    rows = [each | {"more": "x" * (n // 100 * 10_000)} for n, each in enumerate(records(200))]
    running("redis").put(topic, [*rows, *records(1)])
    with sources.open(running("redis").url(topic), *OPEN) as stream:
        sizes = [len(chunk.values) for chunk in read(stream, 201)]
    assert 100 <= sizes[0] <= 118  # one reading too much
    assert max(sizes[1:]) <= 10


def test_rounds_of_kafka_have_a_size_in_bytes(running, topic, monkeypatch):
    """Each partition gives as many messages as fit into its share, at least one, wherever reading starts."""
    monkeypatch.setattr(kafka_topic, "ROUND_BYTES", 6000)
    kafka = running("kafka")
    rng = np.random.default_rng(0)
    sizes = rng.choice([1, 200, 1500, 5000], size=80).tolist()
    rows = [{"user": n, "movie": "x" * size, "rating": 1.0} for n, size in enumerate(sizes)]
    kafka.put(topic, rows)
    parts, wanted = [rows[0::2], rows[1::2]], []
    while any(parts):
        for part in parts:
            left = 3000
            while part and (left == 3000 or cost(part[0]) <= left):
                left -= cost(part[0])
                wanted.append(part.pop(0)["user"])
    found, positions = [], [None]
    for at in range(100):
        with sources.open(kafka.url(topic), *OPEN, position=positions[-1], until_end=True) as stream:
            if stream.at_end:
                break
            chunk = next(iter(stream)) if at % 2 else stream.poll(10)
        found += chunk.columns[0].tolist()
        assert sum(map(cost, (rows[user] for user in chunk.columns[0]))) <= 2 * (6000 + 5200)
        positions.append(chunk.position)
    assert len(positions) > 5
    assert found == wanted


def cost(row: dict) -> int:
    return len(json.dumps(row)) + kafka_topic.MESSAGE_BYTES


# --- what breaks


@pytest.mark.slow
def test_kills_leave_no_trace(server, topic, spider):
    rows = records(8000)
    server.put(topic, rows)
    fit = ("fit", server.url(topic), *ONCE, "--until-end", "--quiet")
    assert forked.killed(*fit, model="m.spider", kills=5, seed=3) == 5
    assert 0 < n_entries("m.spider") < 8000
    for name in ("m.spider", "whole.spider"):
        assert forked.finish(forked.start(*fit, "--resume", "--model", name, most=128)) == 0
    assert content("m.spider") == content("whole.spider")
    assert content("m.spider") == file_model(spider, in_order(server, rows, size=128))


@pytest.mark.slow
def test_a_stream_is_followed_through_a_restart_and_silence(server, topic):
    server.put(topic, records(300))
    child = forked.start("fit", server.url(topic), *ONCE, "--model", "m.spider", "--checkpoint-every", "0.1s")
    eventually(lambda: n_entries("m.spider") == 300)
    server.stop()
    time.sleep(1)
    server.start()
    server.put(topic, records(200, seed=1))
    eventually(lambda: n_entries("m.spider") == 500)
    server.put(topic, records(3, seed=2))  # nothing comes after them
    eventually(lambda: n_entries("m.spider") == 503)
    before = os.stat("m.spider").st_ino
    time.sleep(1.5)
    assert os.stat("m.spider").st_ino == before  # not saved again and again
    child.terminate()
    assert forked.finish(child) == 128 + signal.SIGTERM
    said = Path("output.txt").read_text()
    assert ": not connected (" in said
    assert ": reconnected after " in said
    assert said.splitlines()[-1].startswith("stopped by SIGTERM after message 503 of ")
    assert spidertensor.load("m.spider").position_["row"] == 503


@pytest.mark.slow
def test_waiting_for_a_server_gets_longer(server, topic, monkeypatch, caplog):
    """Also: while it is away, poll returns in time, and --until-end does not take it for the end."""
    monkeypatch.setattr(open_stream, "FIRST_DELAY_S", 0.1)
    monkeypatch.setattr(kafka_topic, "TIMEOUT_S", 0.2)
    server.put(topic, records(10))
    with sources.open(server.url(topic), *OPEN) as stream:
        read(stream, 10)
        server.stop()
        eventually(lambda: stream.poll(0.05) is None and not stream.connected)
        for _ in range(60):
            stream.poll(0.02)
        server.start()
        delays = [record.args[-1] for record in caplog.records if "trying again" in record.message]
        assert delays[:3] == [0.1, 0.2, 0.4]
        assert (stream.lag, stream.at_end) == (None, False)
        server.put(topic, records(5))
        read(stream, 5)
        assert stream.reconnects >= 1


@pytest.mark.slow
def test_messages_that_retention_took(server, topic, spider, fails):
    fit = ("fit", server.url(topic), *ONCE, "--model", "m.spider", "--until-end", "--quiet")
    server.put(topic, records(200))
    assert spider(*fit)[0] == 0
    server.trim(topic, 200)
    assert spider(*fit, "--resume")[0] == 0  # all of these were read
    server.put(topic, records(200, seed=1))
    server.trim(topic, 60 if server.name != "kafka" else 260)
    lost = 30 if server.name == "kafka" else 60
    text = fails(*fit, "--resume")
    assert f"{lost} {'entries after id' if server.name == 'redis' else 'messages from '}" in text
    assert "before they were read: use --on-gap continue to go on without them" in text
    assert n_entries("m.spider") == 200
    assert spider(*fit, "--resume", "--on-gap", "continue")[0] == 0
    assert n_entries("m.spider") == 340
    assert spider(*fit, "--resume")[0] == 0  # and it is told once


@pytest.mark.parametrize("on_gap", ["raise", "continue"])
def test_messages_that_retention_took_while_reading(server, topic, monkeypatch, on_gap):
    for module in (redis_stream, nats_stream, kafka_topic):
        monkeypatch.setattr(module, "MAX_MESSAGES", 50)
    monkeypatch.setattr(kafka_topic, "ROUND_MESSAGES", 25)
    server.put(topic, records(20))
    with sources.open(server.url(topic), *OPEN, on_gap=on_gap) as stream:
        read(stream, 20)
        server.stop()  # or it would read ahead
        eventually(lambda: stream.poll(0.1) is None and not stream.connected)
        server.start()
        server.put(topic, records(600))
        server.trim(topic, 400)
        if on_gap == "continue":
            read(stream, 220)
            return
        with pytest.raises(SourceError, match="were read") as gap:
            read(stream, 220)
        assert (gap.value.kind, gap.value.value) == ("gap", 190 if server.name == "kafka" else 380)


def test_a_stream_that_was_made_anew(server, topic, spider, fails):
    fit = ("fit", server.url(topic), *ONCE, "--model", "m.spider", "--until-end", "--quiet")
    server.put(topic, records(200))
    assert spider(*fit)[0] == 0
    server.delete(topic)
    server.put(topic, records(100, seed=1))
    assert "recreated" in fails(*fit, "--resume")
    assert spider(*fit, "--resume", "--on-gap", "continue")[0] == 0
    assert n_entries("m.spider") == 300


def test_a_partition_that_is_added(running, topic, spider, monkeypatch):
    """A topic cannot grow here, so it is made again with the same messages and one partition more."""
    kafka = running("kafka")
    rows = records(100)
    kafka.put(topic, rows, at=1000)
    fit = ("fit", kafka.url(topic), *ONCE, "--model", "m.spider", "--until-end", "--quiet")
    assert spider(*fit)[0] == 0
    assert spidertensor.load("m.spider").position_["stream"]["partitions"] == {"0": 50, "1": 50}
    kafka.delete(topic)
    third = records(50, seed=2)
    grown = chain(*zip(rows[::2], rows[1::2], third, strict=True))
    kafka.put(topic, list(grown), partitions=3, at=1000)
    assert spider(*fit, "--resume")[0] == 0
    position = spidertensor.load("m.spider").position_
    assert position["stream"]["partitions"] == {"0": 50, "1": 50, "2": 50}
    assert n_entries("m.spider") == 150
    kafka.delete(topic)
    kafka.put(topic, rows, at=1000)
    assert "partition 2 is gone: was the topic deleted" in spider(*fit, "--resume")[2]


def test_a_partition_that_is_added_while_the_topic_is_read(running, topic, monkeypatch):
    """As above. Meanwhile the client fetches nothing, so that it sees the topic only before and after."""
    monkeypatch.setattr(kafka_topic, "NEW_PARTITIONS_S", 0.2)
    kafka, rows, third = running("kafka"), records(100), records(50, seed=2)
    kafka.put(topic, rows)
    with sources.open(kafka.url(topic), *OPEN) as stream:
        read(stream, 100)
        consumer = stream._connection._consumer
        consumer.pause(consumer.assignment())
        kafka.delete(topic)
        kafka.put(topic, list(chain(*zip(rows[::2], rows[1::2], third, strict=True))), partitions=3)
        consumer.resume(consumer.assignment())
        assert values(read(stream, 50)) == ratings_of(third)
        assert stream.position["partitions"] == {"0": 50, "1": 50, "2": 50}
        kafka.put(topic, rows[:6], partitions=3)
        assert sorted(values(read(stream, 6))) == sorted(ratings_of(rows[:6]))
        assert (stream.lag, stream.reconnects) == (0, 0)


def test_what_kafka_delivers_again_is_not_learned_again(running, topic):
    from confluent_kafka import TopicPartition

    rows = records(4000)
    running("kafka").put(topic, rows)
    with sources.open(running("kafka").url(topic), *OPEN, until_end=True) as stream:
        got = [stream.poll(10)]
        stream._connection._consumer.seek(TopicPartition(topic, 1, 0))
        got += list(stream)
    assert values(got) == ratings_of(in_order(running("kafka"), rows))


def test_what_nats_delivers_again_or_not_at_all(running, topic):
    """A second copy of a message comes, then one is lost on the way."""
    nats, rows = running("nats"), records(9)
    nats.put(topic, rows[:3])
    with sources.open(nats.url(topic), *OPEN) as stream:
        connection = stream._connection
        eventually(lambda: len(connection._received) == 3)
        connection._received.append(connection._received[0])
        assert values(read(stream, 3)) == ratings_of(rows[:3])
        nats.put(topic, rows[3:])
        eventually(lambda: len(connection._received) == 6)
        del connection._received[2]
        assert values(read(stream, 6)) == ratings_of(rows[3:])
        assert stream.reconnects == 1


# --- messages that cannot be used


AVRO = "Avro and Protobuf are not supported: have a connector or ksqlDB write the topic as JSON"
BAD = [
    (b"", "an empty message"),
    (b"  \n ", "an empty message"),
    (b'{"user": 1,\n "movie": 2}', "rating is missing"),
    (b"[1, 2]", "not a JSON object"),
    (b"{", "not JSON"),
    (b'{"user": "a\nb", "movie": 2, "rating": 1}', "not JSON"),
    (b"\xff\xfe", "not UTF-8 text"),
    (b'{"user": null, "movie": 2, "rating": 1}', "user is missing"),
    (b"\x00\x00\x00\x00\x07\x02\x06foo", AVRO),
]  # fmt: skip


@pytest.mark.parametrize("target", ["redis", "nats", "kafka"])
def test_bad_messages_in_between(server, running, topic, spider, fails, target):
    rows, extra = records(60), {"format": "json"} if server.name == "redis" else {}
    good = [json.dumps(row, indent=n % 2 or None).encode() for n, row in enumerate(rows)]
    mixed = [good[0], *chain(*zip(good[1:], (bad for bad, _ in BAD), strict=False)), *good[10:]]
    server.put(topic, mixed)
    options = chain(*((f"--{name}", each) for name, each in extra.items()))
    fit = ["fit", server.url(topic), *ONCE, "--model", "m.spider", "--until-end", "--quiet", *options]
    assert f"{server.url(topic)} message " in fails(*fit)
    assert not Path("m.spider").exists()
    dead = f"dead{topic}"
    running(target).put(dead, [{"x": 1}])
    letters = ("--dead-letter", running(target).url(dead))
    assert spider(*fit, "--on-bad", "file", *letters)[0] == 0
    rejected = [json.loads(line) for line in Path("m.rejects.jsonl").read_text().splitlines()]
    assert sorted(each["reason"] for each in rejected) == sorted(reason for _, reason in BAD)
    start = {"redis": "id ", "nats": "sequence ", "kafka": "partition "}[server.name]
    assert all(each["place"].startswith(start) for each in rejected)
    assert len({each["place"] for each in rejected}) == len(BAD)
    assert n_entries("m.spider") == 60
    format_of = {"format": "json"} if target == "redis" else {}
    with sources.open(running(target).url(dead), ["place", "reason"], **format_of, until_end=True) as sent:
        found = [list(zip(*chunk.columns, strict=True)) for chunk in sent]
    assert sorted(chain(*found)) == sorted((each["place"], each["reason"]) for each in rejected)


def test_values_that_only_the_model_can_judge_have_a_place_too(server, topic, spider):
    rows = records(600)
    rows[550]["rating"] = 1e300
    server.put(topic, rows)
    fit = ("fit", server.url(topic), *ONCE, "--model", "m.spider", "--until-end", "--quiet")
    assert spider(*fit, "--on-bad", "file")[0] == 0
    (bad,) = [json.loads(line) for line in Path("m.rejects.jsonl").read_text().splitlines()]
    number = in_order(server, rows).index(rows[550]) + 1
    assert (bad["row"], bad["raw"]["rating"]) == (number, 1e300)
    if server.name != "redis":
        assert bad["place"] == {"nats": "sequence 551", "kafka": "partition 0, offset 275"}[server.name]


# --- URLs, settings, positions


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("kafka://h:1/t", ["--format", "avro"], "avro is not supported: have a connector or ksqlDB write"),
        ("kafka://h:1/t", ["--format", "fields"], "messages are json, csv or tsv (redis: also fields)"),
        ("kafka://h:1/t", ["--format", "csv"], "csv needs column names: see --format and --columns"),
        ("kafka://h:1/t", ["--columns", "a,b"], "json already names its columns"),
        ("amqp://h:1/t", [], "amqp://h:1/t: unknown kind of stream, use kafka://"),
        ("redis://h:1", [], "redis://h:1: the URL of a stream is redis://host:port/name"),
        ("redis://h:1/0/t", [], "the URL of a stream is"),
        ("redis://h:1,g:2/t", [], "a Redis stream has one host"),
        ("redis://me:secret@h:1/t", [], "pass --broker-config FILE"),
        ("redis://h:1/t?password=secret", [], "pass --broker-config FILE"),
        ("rows.csv", ["--until-end"], "--until-end and --on-gap are for streams"),
        ("rows.csv", ["--dead-letter", "x.csv"], "--dead-letter takes the URL of a stream, not 'x.csv'"),
        ("redis://127.0.0.1:1/t", [], "Connection refused"),
        ("nats://127.0.0.1:1/t", [], "Connect call failed"),
    ],
)
def test_mistakes_are_told(fails, url, options, text):
    found = fails("fit", url, *ONCE, "--model", "m.spider", *options)
    assert text in found
    assert "secret" not in found


def test_a_stream_that_is_not_there(running, topic, fails, spider):
    for name, text in (("nats", "stream not found"), ("kafka", "Unknown topic")):
        assert text in fails("fit", running(name).url(topic), *ONCE, "--model", "m.spider")
    running("redis").client.set(topic, "a text")
    assert "WRONGTYPE" in fails("fit", running("redis").url(topic), *ONCE, "--model", "m.spider")
    nothing = running("redis").url(f"{topic}x")  # one of Redis begins to exist with its first entry
    assert "no rows to learn" in fails("fit", nothing, *ONCE, "--model", "m.spider", "--until-end")


def test_settings_from_a_file(topic, spider, fails):
    server = servers.Redis()
    server.client.config_set("requirepass", "0012345678")
    try:
        server.put(topic, records(300))
        fit = ("fit", server.url(topic), *ONCE, "--model", "m.spider", "--until-end", "--quiet", "--force")
        assert "uthentication" in fails(*fit)
        Path("redis.properties").write_text("# of the test\npassword = 0012345678\nsocket_timeout=5\n")
        Path("redis.toml").write_text('password = "0012345678"\n')
        for name in ("redis.properties", "redis.toml"):
            assert spider(*fit, "--broker-config", name)[0] == 0
            assert b"0012345678" not in Path("m.spider").read_bytes()
        Path("wrong.properties").write_text("password\n")
        assert "wrong.properties: line 1 is not name=value" in fails(
            *fit, "--broker-config", "wrong.properties"
        )
        Path("wrong.toml").write_text("password\n")
        assert "wrong.toml: " in fails(*fit, "--broker-config", "wrong.toml")
        Path("odd.toml").write_text("no_such_setting = 1")
        assert "no_such_setting" in fails(*fit, "--broker-config", "odd.toml")
    finally:
        server.close()


def test_settings_of_kafka(running, topic, fails, spider):
    kafka = running("kafka")
    kafka.put(topic, records(300))
    fit = ("fit", kafka.url(topic), *ONCE, "--model", "m.spider", "--until-end", "--quiet")
    Path("odd").write_text("no.such.setting=1")
    assert 'No such configuration property: "no.such.setting"' in fails(*fit, "--broker-config", "odd")
    Path("ours").write_text("auto.offset.reset=latest")
    assert "auto.offset.reset cannot be set" in fails(*fit, "--broker-config", "ours")
    Path("group").write_text("group.id=mine")
    assert spider(*fit, "--broker-config", "group")[0] == 0
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": kafka.hosts, "group.id": "mine"})
    found = consumer.committed([TopicPartition(topic, n) for n in range(2)], timeout=10)
    consumer.close()
    assert [each.offset for each in found] == [150, 150]  # for those who watch the lag


def test_a_position_of_something_else(server, topic):
    server.put(topic, records(3))
    odd = [{"id": "1"}, {"next": 0, "created": ""}, {"partitions": {"a": 1}}, {"partitions": {"0": -1}}]
    for position in ({}, *({**each, "added": 1, "messages": 1} for each in odd)):
        with pytest.raises(SourceError, match="the stored position does not fit this stream"):
            sources.open(server.url(topic), *OPEN, position=position)


def test_positions_of_the_version_before(spider, fails):
    rows = records(400)
    whole = file_model(spider, rows)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:300]))
    assert spider("fit", "rows.jsonl", *ONCE, "--model", "m.spider", "-q")[0] == 0
    model = spidertensor.load("m.spider")
    old = {name: each for name, each in model.position_.items() if name not in ("version", "stream")}
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for position in (old, old | {"version": 3}):
        model.save("m.spider", position)
        if "version" in position:
            assert "newer version" in fails("fit", "rows.jsonl", "--model", "m.spider", "--resume")
        else:
            assert spider("fit", "rows.jsonl", "--model", "m.spider", "--resume", "-q")[0] == 0
            assert content("m.spider") == whole
            assert spidertensor.load("m.spider").position_["version"] == 2


def test_the_same_stream_on_another_host_is_noted(running, topic, spider):
    redis = running("redis")
    redis.put(topic, records(300))
    assert spider("fit", redis.url(topic), *ONCE, "--model", "m.spider", "--until-end", "-q")[0] == 0
    other = redis.url(topic).replace("127.0.0.1", "localhost")
    _, _, err = spider("fit", other, "--model", "m.spider", "--until-end", "-q", "--resume")
    assert err == f"note: m.spider was learned from {redis.url(topic)} and continues with {other}\n"


def test_rounds_do_not_depend_on_how_fast_partitions_are_read(running, topic, monkeypatch):
    """Three partitions of different length, in rounds of 7, whatever is read at once."""
    kafka = running("kafka")
    rows = [{"user": n, "movie": 0, "rating": 1.0} for n in range(300)]
    kafka.put(topic, rows, partitions=3)
    kafka.put(topic, rows[:1], partitions=3)
    monkeypatch.setattr(kafka_topic, "ROUND_MESSAGES", 7)
    parts = [[row["user"] for row in [*rows, rows[0]][n::3]] for n in range(3)]
    wanted = [user for at in range(0, 101, 7) for part in parts for user in part[at : at + 7]]
    for most in (1, 13, 500):
        monkeypatch.setattr(kafka_topic, "MAX_MESSAGES", most)
        with sources.open(kafka.url(topic), *OPEN, until_end=True) as stream:
            found = np.concatenate([chunk.columns[0] for chunk in stream])
        assert found.tolist() == wanted


def test_missing_ids_and_bins_are_those_of_a_file(running, topic, spider):
    rows = records(400)
    for row in rows[::50]:
        row["movie"] = None
    running("nats").put(topic, rows)
    options = ("--missing-id", "own", "--bin", "user=quantiles:4")
    fit = ("fit", running("nats").url(topic), *ONCE, "--model", "m.spider", "--until-end", "-q")
    assert spider(*fit, *options)[0] == 0
    assert content("m.spider") == file_model(spider, rows, *options)
