"""Brokers of several machines, of which one dies or hands over while a stream is learned."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

import servers
import spidertensor
from command_line import ONCE
from servers import OPEN, records
from spidertensor import sources
from spidertensor.sources import nats_stream

pytestmark = [pytest.mark.usefixtures("folder", "warm_kernels"), pytest.mark.slow]


@pytest.fixture
def cluster():
    three = servers.NatsCluster()
    yield three
    three.close()


def read(stream, n: int) -> list[float]:
    """At least n values, unless nothing comes for two minutes."""
    found: list[float] = []
    deadline = time.monotonic() + 120
    while len(found) < n and time.monotonic() < deadline:
        chunk = stream.poll(0.2)
        found += [] if chunk is None else chunk.values.tolist()
    return found


def test_the_leader_of_a_nats_cluster_is_killed_while_its_stream_is_read(cluster, monkeypatch):
    """The consumer lives in one server only, and the client is connected to any of them."""
    monkeypatch.setattr(nats_stream, "HEARTBEAT_S", 1.0)
    rows = [{"user": n % 30, "movie": "m", "rating": float(n)} for n in range(900)]
    cluster.put("ratings", rows[:100])
    with sources.open(cluster.url("ratings"), *OPEN) as stream:
        found = read(stream, 100)
        writer = threading.Thread(target=cluster.put, args=("ratings", rows[100:], "later"))
        writer.start()
        found += read(stream, 50)
        cluster.kill_leader("ratings")
        found += read(stream, 900 - len(found))
        writer.join()
        assert found == [row["rating"] for row in rows]
        assert stream.poll(0.5) is None


def test_a_model_learns_a_nats_cluster_as_one_server(cluster, spider):
    rows = records(800)
    cluster.put("ratings", rows[:700])
    fit = ("fit", cluster.url("ratings"), *ONCE, "--model", "m.spider", "--until-end", "--quiet")
    assert spider(*fit)[0] == 0
    cluster.kill_leader("ratings")
    cluster.put("ratings", rows[700:], "later")
    assert spider(*fit, "--resume")[0] == 0
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert spider("fit", "rows.jsonl", *ONCE, "--model", "file.spider", "--quiet")[0] == 0
    for name in ("m", "file"):
        spidertensor.load(f"{name}.spider").save(f"{name}.content", None)
    assert Path("m.content").read_bytes() == Path("file.content").read_bytes()


def test_partitions_of_kafka_move_to_another_broker(topic):
    """Their broker goes down for a while, and another leads them; then a group of its name is rebalanced."""
    import confluent_kafka

    kafka = servers.Kafka(brokers=3)
    group = {"bootstrap.servers": kafka.hosts, "group.id": f"spider.{topic}", "log_level": 0}
    rows = [{"user": n, "movie": "m", "rating": float(n)} for n in range(600)]
    try:
        kafka.put(topic, rows[:200])
        with sources.open(kafka.url(topic), *OPEN) as stream:
            found = read(stream, 200)
            kafka.lead(topic, 2)
            kafka.stop(1)
            kafka.put(topic, rows[200:400])
            found += read(stream, 200)
            kafka.start()
            members = [confluent_kafka.Consumer(group) for _ in range(2)]
            for member in members:
                member.subscribe([topic])
                member.poll(0.5)
            kafka.put(topic, rows[400:])
            stream.commit(stream.position)
            found += read(stream, 200)
            for member in members:
                member.close()
            assert stream.poll(0.3) is None
            assert sorted(found) == [row["rating"] for row in rows]
            assert stream.position["partitions"] == {"0": 300, "1": 300}
    finally:
        kafka.close()
