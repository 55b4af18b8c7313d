"""Streams in brokers, with the real servers: nothing lost and nothing twice, whatever breaks."""
# ruff: noqa: F811 (fixtures of another file)

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import chain, count
from pathlib import Path

import numpy as np
import pytest

import servers
import spidertensor
from spidertensor import sources
from spidertensor.cli import learner
from spidertensor.sources import SourceError, kafka_topic, nats_stream, open_stream, redis_stream
from test_cli import FIT, eventually, fails, folder, spider, table  # noqa: F401

pytestmark = pytest.mark.usefixtures("warm_kernels")
NAMES = ("user", "movie", "rating")
OPEN = (["user", "movie"], "rating")
_numbers = count()


@pytest.fixture(scope="module")
def running():
    """The servers of this file, each started when it is first used."""
    started = {}

    def get(name: str):
        if name not in started:
            started[name] = {"redis": servers.Redis, "nats": servers.Nats, "kafka": servers.Kafka}[name]()
        return started[name]

    yield get
    for server in started.values():
        server.close()


@pytest.fixture(params=["redis", "nats", "kafka"])
def server(request, running):
    return running(request.param)


@pytest.fixture
def topic():
    return f"ratings{next(_numbers)}"


def records(n=1200, seed=0) -> list[dict]:
    return [dict(zip(NAMES, row, strict=True)) for row in table(n, seed)]


def in_order(server, rows: list) -> list:
    """As the stream is read: of Kafka in rounds, which these streams are short enough to be one of."""
    return list(chain(*(rows[n :: server.partitions] for n in range(server.partitions)))) if (
        server.name == "kafka"
    ) else rows  # fmt: skip


def content(path) -> bytes:
    """All of a model but its position."""
    spidertensor.load(path).save("content", None)
    return Path("content").read_bytes()


def file_model(spider, rows: list[dict], *options) -> bytes:
    """The model that a file with these rows makes."""
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert spider("fit", "rows.jsonl", *FIT, *options, "--model", "file.spider", "--force", "-q")[0] == 0
    return content("file.spider")


def follow(url, *options, most=8192) -> subprocess.Popen[str]:
    """`spider fit` in a process of its own; most: messages that it reads at once."""
    code = (
        "import sys\n"
        "from spidertensor import cli\n"
        "from spidertensor.sources import kafka_topic, nats_stream, redis_stream\n"
        f"kafka_topic.MOST = nats_stream.MOST = redis_stream.MOST = {most}\n"
        f"kafka_topic.ROUND = {min(most, kafka_topic.ROUND)}\n"
        "cli.main(sys.argv[1:])\n"
    )
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, "fit", url, *FIT, "--model", "m.spider", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def entries(path="m.spider") -> int:
    return spidertensor.load(path).n_entries_ if Path(path).exists() else 0


# --- a stream is a source


def test_a_stream_makes_the_model_that_a_file_makes(server, topic, spider):
    first, second = records(700), records(500, seed=1)
    server.put(topic, first)
    fit = ("fit", server.url(topic), *FIT, "--model", "m.spider", "--until-end")
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
    assert entries() == 1200
    assert "has learned" in spider("fit", server.url(topic), "--model", "m.spider", "--add")[2]
    assert "message 1,200 of " in spider("info", "m.spider")[1].replace("\n", " ")


def test_a_stream_in_python(server, topic):
    rows = records(300)
    server.put(topic, rows[:200])
    with sources.open(server.url(topic), *OPEN) as stream:
        chunk = stream.poll(10)
        assert chunk is not None
        assert (len(chunk.rows), chunk.end, stream.lag, stream.at_end) == (200, 200, 0, True)
        assert list(chunk.values) == [row["rating"] for row in in_order(server, rows[:200])]
        assert stream.poll(0) is None
        server.put(topic, rows[200:])
        more = stream.poll(10)
        assert more is not None
        assert more.end == 200 + len(more.rows)
    again = sources.open(server.url(topic), *OPEN, position=json.loads(json.dumps(chunk.position)))
    read = again.poll(10)
    assert read is not None
    assert (read.rows[0], len(read.rows)) == (201, 100)
    assert again.position == read.position == more.position or len(more.rows) < 100
    again.close()


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_messages_that_are_lines(running, topic, kind):
    mark = {"csv": ",", "tsv": "\t"}[kind]
    rows = table(50)
    running("nats").put(topic, [mark.join(map(str, row)).encode() + b"\r\n" for row in rows])
    with sources.open(running("nats").url(topic), *OPEN, format=kind, columns=NAMES) as stream:
        chunk = stream.poll(10)
    assert list(zip(*chunk.columns, chunk.values, strict=True)) == rows


def test_an_entry_of_redis_may_hold_json(running, topic):
    running("redis").put(topic, [json.dumps(row).encode() for row in records(50)])
    with sources.open(running("redis").url(topic), *OPEN, format="json") as stream:
        assert list(stream.poll(10).values) == [row["rating"] for row in records(50)]
    with sources.open(running("redis").url(topic), *OPEN) as stream:
        reason = stream.poll(10).bad[0].reason
        assert reason == "no field user: if the entries hold JSON in one field, say format json"


def test_entries_with_other_fields(running, topic):
    """Fields in any order, more than are needed, some missing, bytes that are no text."""
    entry = {"user": 1, "movie": "a", "rating": 2.5}
    other = [{"rating": 1, "x": 2, "user": "007", "movie": "b"}, {"user": 1, "rating": 3}]
    running("redis").put(topic, [entry, *other, {"user": b"\xff", "movie": "c", "rating": 1}, entry])
    with sources.open(running("redis").url(topic), *OPEN) as stream:
        chunk = stream.poll(10)
    assert [list(column) for column in chunk.columns] == [[1, "007", 1], ["a", "b", "a"]]
    assert [(each.row, each.reason) for each in chunk.bad] == [(3, "no field movie"), (4, "not UTF-8 text")]


# --- what breaks


def killed(server, topic, kills: int, seed: int) -> int:
    """Learn a stream, killed so many times at random moments; how many of the kills came in its middle."""
    rng, inside = random.Random(seed), 0
    for _ in range(kills):
        child = follow(server.url(topic), "--until-end", "--resume", "--checkpoint-every", "0s", most=128)
        before = os.stat("m.spider").st_ino if Path("m.spider").exists() else None
        while child.poll() is None:
            if Path("m.spider").exists() and os.stat("m.spider").st_ino != before:
                time.sleep(rng.random() * 0.1)
                break
            time.sleep(0.005)
        child.kill()
        child.communicate()
        inside += child.returncode == -signal.SIGKILL
    return inside


def test_kills_leave_no_trace(server, topic, spider):
    rows = records(16_000)
    server.put(topic, rows)
    assert killed(server, topic, 5, seed=3) >= 3
    assert 0 < entries() <= 16_000
    child = follow(server.url(topic), "--until-end", "--resume", most=128)
    _, err = child.communicate(timeout=300)
    assert child.returncode == 0, err
    whole = follow(server.url(topic), "--until-end", "--force", "--model", "whole.spider", most=128)
    assert whole.wait(300) == 0
    assert content("m.spider") == content("whole.spider")
    assert entries() == 16_000
    if server.name != "kafka":
        assert content("m.spider") == file_model(spider, rows)


def test_a_server_that_restarts(server, topic):
    server.put(topic, records(300))
    child = follow(server.url(topic), "--checkpoint-every", "0.1s")
    eventually(lambda: entries() == 300)
    server.stop()
    time.sleep(1)
    server.start()
    server.put(topic, records(200, seed=1))
    eventually(lambda: entries() == 500)
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM
    assert ": not connected (" in err
    assert ": connected again after " in err
    assert err.splitlines()[-1].startswith("stopped by SIGTERM after message 500 of ")
    model = spidertensor.load("m.spider")
    assert (model.n_entries_, model.position_["row"]) == (500, 500)


def test_waiting_for_a_server_gets_longer(server, topic, monkeypatch, caplog):
    """Also: while it is away, poll returns in time, and --until-end does not take it for the end."""
    monkeypatch.setattr(open_stream, "FIRST_DELAY", 0.1)
    monkeypatch.setattr(kafka_topic, "SECONDS", 0.2)
    server.put(topic, records(10))
    with sources.open(server.url(topic), *OPEN) as stream:
        assert len(stream.poll(10).rows) == 10
        server.stop()
        eventually(lambda: stream.poll(0.05) is None and not stream.connected)
        for _ in range(60):
            stream.poll(0.02)
        server.start()
        delays = [record.args[-1] for record in caplog.records if "trying again" in record.message]
        assert delays[:3] == [0.1, 0.2, 0.4]
        assert (stream.lag, stream.at_end) == (None, False)
        server.put(topic, records(5))
        got = []
        eventually(lambda: got.append(stream.poll(0.1)) or got[-1] is not None)
        eventually(lambda: got[-1] is None or got.append(stream.poll(0.1)))
        assert sum(len(chunk.rows) for chunk in got if chunk) == 5
        assert stream.reconnects >= 1


def test_messages_that_retention_took(server, topic, spider, fails):
    fit = ("fit", server.url(topic), *FIT, "--model", "m.spider", "--until-end", "--quiet")
    server.put(topic, records(200))
    assert spider(*fit)[0] == 0
    server.trim(topic, 200)
    assert spider(*fit, "--resume")[0] == 0  # all of these were read
    server.put(topic, records(200, seed=1))
    server.trim(topic, 60 if server.name != "kafka" else 260)
    lost = 30 if server.name == "kafka" else 60
    text = fails(*fit, "--resume")
    assert f"{lost} {'entries after id' if server.name == 'redis' else 'messages from '}" in text
    assert "before they were read: --on-gap continue goes on without them" in text
    assert entries() == 200
    assert spider(*fit, "--resume", "--on-gap", "continue")[0] == 0
    assert entries() == 340
    assert spider(*fit, "--resume")[0] == 0  # and it is told once


def test_messages_that_retention_took_while_reading(server, topic, monkeypatch):
    for module in (redis_stream, nats_stream, kafka_topic):
        monkeypatch.setattr(module, "MOST", 50)
    monkeypatch.setattr(kafka_topic, "ROUND", 25)
    server.put(topic, records(20))
    for on_gap in ("raise", "continue"):
        with sources.open(server.url(topic), *OPEN, on_gap=on_gap) as stream:
            assert len(stream.poll(10).rows) == 20
            if on_gap == "raise":
                server.put(topic, records(600))
                server.trim(topic, 400)
                with pytest.raises(SourceError, match="were read") as gap:
                    for _ in range(100):
                        stream.poll(1)
                assert gap.value.kind == "gap"


def test_a_stream_that_was_made_anew(server, topic, spider, fails):
    fit = ("fit", server.url(topic), *FIT, "--model", "m.spider", "--until-end", "--quiet")
    server.put(topic, records(200))
    assert spider(*fit)[0] == 0
    server.delete(topic)
    server.put(topic, records(100, seed=1))
    assert " anew" in fails(*fit, "--resume")
    assert spider(*fit, "--resume", "--on-gap", "continue")[0] == 0
    assert entries() == 300


def test_a_partition_that_is_added(running, topic, spider, monkeypatch):
    """A topic cannot grow here, so it is made again with the same messages and one partition more."""
    kafka = running("kafka")
    rows = records(100)
    kafka.put(topic, rows)
    fit = ("fit", kafka.url(topic), *FIT, "--model", "m.spider", "--until-end", "--quiet")
    assert spider(*fit)[0] == 0
    assert spidertensor.load("m.spider").position_["stream"]["partitions"] == {"0": 50, "1": 50}
    monkeypatch.setattr(kafka_topic, "NEW_PARTITIONS", 0.0)
    with sources.open(kafka.url(topic), *OPEN, position={"partitions": {"0": 50}, "messages": 50}) as stream:
        assert [int(row) for row in stream.poll(10).rows] == list(range(51, 101))
    kafka.delete(topic)
    third = records(40, seed=2)
    three = [row for n in range(50) for row in (rows[2 * n], rows[2 * n + 1], *third[n : n + 1])]
    kafka.put(topic, three[:120], partitions=3)
    assert spider(*fit, "--resume")[0] == 0
    position = spidertensor.load("m.spider").position_
    assert position["stream"]["partitions"]["2"] == 40
    assert entries() == 140


def test_what_is_delivered_again_is_not_learned_again(running, topic):
    """The broker goes back in the middle, or sends a message a second time and another one too late."""
    from confluent_kafka import TopicPartition

    kafka, nats = running("kafka"), running("nats")
    rows = records(4000)
    kafka.put(topic, rows)
    with sources.open(kafka.url(topic), *OPEN, until_end=True) as stream:
        got = [stream.poll(10)]
        stream._connection._consumer.seek(TopicPartition(topic, 1, 0))
        got += list(stream)
    assert sum(len(chunk.rows) for chunk in got) == 4000
    nats.put(topic, rows[:5])
    with sources.open(nats.url(topic), *OPEN) as stream:
        assert len(stream.poll(10).rows) == 5
        connection = stream._connection
        reply = f"$JS.ACK.{topic}.x.1.{{}}.{{}}.1.0"

        async def send(client, _):
            await client.publish(connection._inbox, b"again", reply=reply.format(3, 3))
            await client.publish(connection._inbox, b"too early", reply=reply.format(9, 9))

        nats.run(send)
        nats.put(topic, rows[5:8])
        got = []
        eventually(lambda: got.append(stream.poll(0.5)) or sum(len(c.rows) for c in got if c) == 3)
        assert [list(chunk.values) for chunk in got if chunk] and stream.reconnects == 1
    assert list(chain(*(chunk.values for chunk in got if chunk))) == [row["rating"] for row in rows[5:8]]


# --- messages that cannot be used


BAD = [
    (b"", "an empty message"),
    (b"  \n ", "an empty message"),
    (b'{"user": 1,\n "movie": 2}', "rating is missing"),
    (b"[1, 2]", "not a JSON object"),
    (b"{", "not JSON"),
    (b'{"user": "a\nb", "movie": 2, "rating": 1}', "not JSON"),
    (b"\xff\xfe", "not UTF-8 text"),
    (b'{"user": null, "movie": 2, "rating": 1}', "user is missing"),
    (b"\x00\x00\x00\x00\x07\x02\x06foo", "Avro or Protobuf bytes, which are not read: let a connector or "
     "ksqlDB write the topic as JSON"),
]  # fmt: skip


@pytest.mark.parametrize("target", ["redis", "nats", "kafka"])
def test_bad_messages_in_between(server, running, topic, spider, fails, target):
    rows, extra = records(60), {"format": "json"} if server.name == "redis" else {}
    good = [json.dumps(row, indent=n % 2 or None).encode() for n, row in enumerate(rows)]
    mixed = [good[0], *chain(*zip(good[1:], (bad for bad, _ in BAD), strict=False)), *good[10:]]
    server.put(topic, [each for each in mixed])
    options = chain(*((f"--{name}", each) for name, each in extra.items()))
    fit = ["fit", server.url(topic), *FIT, "--model", "m.spider", "--until-end", "--quiet", *options]
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
    assert entries() == 60
    format_of = {"format": "json"} if target == "redis" else {}
    with sources.open(running(target).url(dead), ["place", "reason"], **format_of, until_end=True) as sent:
        found = [list(zip(*chunk.columns, strict=True)) for chunk in sent]
    assert sorted(chain(*found)) == sorted((each["place"], each["reason"]) for each in rejected)


def test_values_that_only_the_model_can_judge_have_a_place_too(server, topic, spider):
    rows = records(600)
    rows[550]["rating"] = 1e300
    server.put(topic, rows)
    fit = ("fit", server.url(topic), *FIT, "--model", "m.spider", "--until-end", "--quiet")
    assert spider(*fit, "--on-bad", "file")[0] == 0
    (bad,) = [json.loads(line) for line in Path("m.rejects.jsonl").read_text().splitlines()]
    number = in_order(server, rows).index(rows[550]) + 1
    assert (bad["row"], bad["raw"]["rating"]) == (number, 1e300)
    if server.name != "redis":
        assert bad["place"] == {"nats": "sequence 551", "kafka": "partition 0, offset 275"}[server.name]


# --- quiet streams


def test_a_quiet_stream_is_learned_and_saved(server, topic, monkeypatch, spider):
    monkeypatch.setattr(learner, "QUIET", 0.2)
    server.put(topic, records(40))
    child = follow(server.url(topic), "--checkpoint-every", "0.1s")
    eventually(lambda: entries() == 40)
    server.put(topic, records(3, seed=1))
    eventually(lambda: entries() == 43)
    before = os.stat("m.spider").st_ino
    time.sleep(1.5)
    assert os.stat("m.spider").st_ino == before  # not again and again
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "is quiet, so the scale is that of its first 40 values" in err


# --- URLs, settings, positions


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("kafka://h:1/t", ["--format", "avro"], "avro is not read: let a connector or ksqlDB write"),
        ("kafka://h:1/t", ["--format", "fields"], "messages are json, csv or tsv (redis: also fields)"),
        ("kafka://h:1/t", ["--format", "csv"], "csv needs the names of its columns: see --format and --col"),
        ("kafka://h:1/t", ["--columns", "a,b"], "json has names for its columns already"),
        ("amqp://h:1/t", [], "amqp://h:1/t: unknown kind of stream, use kafka://"),
        ("redis://h:1", [], "redis://h:1: a stream is named like redis://host:port/name"),
        ("redis://h:1/0/t", [], "a stream is named like"),
        ("redis://h:1,g:2/t", [], "a stream of Redis has one host"),
        ("redis://me:secret@h:1/t", [], "pass --broker-config FILE"),
        ("redis://h:1/t?password=secret", [], "pass --broker-config FILE"),
        ("rows.csv", ["--until-end"], "--until-end and --on-gap are for streams"),
        ("rows.csv", ["--dead-letter", "x.csv"], "--dead-letter takes the URL of a stream, not 'x.csv'"),
        ("redis://127.0.0.1:1/t", [], "Connection refused"),
        ("nats://127.0.0.1:1/t", [], "Connect call failed"),
    ],
)
def test_mistakes_are_told(fails, url, options, text):
    found = fails("fit", url, *FIT, "--model", "m.spider", *options)
    assert text in found
    assert "secret" not in found


def test_a_stream_that_is_not_there(running, topic, fails, spider):
    for name, text in (("nats", "stream not found"), ("kafka", "Unknown topic")):
        assert text in fails("fit", running(name).url(topic), *FIT, "--model", "m.spider")
    running("redis").client.set(topic, "a text")
    assert "WRONGTYPE" in fails("fit", running("redis").url(topic), *FIT, "--model", "m.spider")
    nothing = running("redis").url(f"{topic}x")  # one of Redis begins to exist with its first entry
    assert "no good rows" in fails("fit", nothing, *FIT, "--model", "m.spider", "--until-end")


def test_settings_from_a_file(topic, spider, fails):
    server = servers.Redis(requirepass="s3cret")
    try:
        server.put(topic, records(300))
        fit = ("fit", server.url(topic), *FIT, "--model", "m.spider", "--until-end", "--quiet", "--force")
        assert "uthentication" in fails(*fit)
        Path("redis.properties").write_text("# of the test\npassword = s3cret\nsocket_timeout=5\n")
        Path("redis.toml").write_text('password = "s3cret"\n')
        for name in ("redis.properties", "redis.toml"):
            assert spider(*fit, "--broker-config", name)[0] == 0
            assert b"s3cret" not in Path("m.spider").read_bytes()
        Path("wrong.properties").write_text("password\n")
        assert "wrong.properties: line 1 is not name=value" in fails(*fit, "--broker-config", "wrong.properties")
        Path("wrong.toml").write_text("password\n")
        assert "wrong.toml: " in fails(*fit, "--broker-config", "wrong.toml")
        Path("odd.toml").write_text("no_such_setting = 1")
        assert "no_such_setting" in fails(*fit, "--broker-config", "odd.toml")
    finally:
        server.close()


def test_settings_of_kafka(running, topic, fails, spider):
    kafka = running("kafka")
    kafka.put(topic, records(300))
    fit = ("fit", kafka.url(topic), *FIT, "--model", "m.spider", "--until-end", "--quiet")
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


@pytest.mark.parametrize("position", [{}, {"id": "1"}, {"next": 0}, {"partitions": {"a": 1}}, {"messages": 1}])
def test_a_position_of_something_else(server, topic, position):
    server.put(topic, records(3))
    with pytest.raises(SourceError, match="a stored position that does not fit this stream"):
        sources.open(server.url(topic), *OPEN, position=position)


def test_positions_of_the_version_before(spider, fails):
    rows = records(400)
    whole = file_model(spider, rows)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:300]))
    assert spider("fit", "rows.jsonl", *FIT, "--model", "m.spider", "-q")[0] == 0
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
    assert spider("fit", redis.url(topic), *FIT, "--model", "m.spider", "--until-end", "-q")[0] == 0
    other = redis.url(topic).replace("127.0.0.1", "localhost")
    _, _, err = spider("fit", other, "--model", "m.spider", "--until-end", "-q", "--resume")
    assert err == f"note: m.spider was learned from {redis.url(topic)}, and goes on with {other}\n"


def test_rounds_do_not_depend_on_how_fast_partitions_are_read(running, topic, monkeypatch):
    """Three partitions of different length, in rounds of 7, whatever is read at once."""
    kafka = running("kafka")
    rows = [{"user": n, "movie": 0, "rating": 1.0} for n in range(300)]
    kafka.put(topic, rows, partitions=3)
    kafka.put(topic, rows[:1], partitions=3)
    monkeypatch.setattr(kafka_topic, "ROUND", 7)
    parts = [[row["user"] for row in [*rows, rows[0]][n::3]] for n in range(3)]
    wanted = [user for at in range(0, 101, 7) for part in parts for user in part[at : at + 7]]
    for most in (1, 13, 500):
        monkeypatch.setattr(kafka_topic, "MOST", most)
        with sources.open(kafka.url(topic), *OPEN, until_end=True) as stream:
            found = np.concatenate([chunk.columns[0] for chunk in stream])
        assert found.tolist() == wanted
