"""A broker that has lost messages after they were learned: restored from a backup, or made anew."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import spidertensor
from command_line import ONCE, eventually, n_entries
from servers import OPEN, in_order, records
from serving import RATINGS, rows, serving, until
from spidertensor import sources
from spidertensor.sources import SourceError

pytestmark = pytest.mark.usefixtures("folder", "warm_kernels")
REMEDY = (
    "go back to a model file from before that, or use --on-gap continue to learn only what is later than the "
    "last message learned"
)
FACTS = ("time", "crc", "last")  # of the last message read, in a position


def content(path) -> bytes:
    """All of a model but its position."""
    spidertensor.load(path).save("content", None)
    return Path("content").read_bytes()


def learned(server, topic: str, spider, *, lost: int = 100) -> tuple[tuple[str, ...], list[dict]]:
    """Learn 300 messages, of which the server then loses the last: the command, and the messages."""
    messages = records(300)
    server.put(topic, messages[: 300 - lost])
    copy = server.backup(topic)
    server.put(topic, messages[300 - lost :])
    fit = ("fit", server.url(topic), *ONCE, "--model", "m.spider", "--until-end", "--quiet")
    assert spider(*fit)[0] == 0
    server.restore(topic, copy)
    return fit, messages


@pytest.mark.parametrize("n", [40, 100, 150])
def test_new_messages_in_the_place_of_those_that_were_learned(server, topic, spider, fails, n):
    """Fewer than were lost, as many, and more."""
    fit, old = learned(server, topic, spider)
    new = records(n, seed=1)
    time.sleep(0.01)  # a later millisecond
    server.put(topic, new)
    before = Path("m.spider").read_bytes()
    text = fails(*fit, "--resume")
    assert text.startswith(f"spider: {server.url(topic)}: ")
    assert text.endswith(f": {REMEDY}\n")
    assert Path("m.spider").read_bytes() == before
    code, _, note = spider(*fit, "--resume", "--on-gap", "continue")
    assert code == 0
    assert "restored" in note
    assert note.count("\n") == (1 if server.name != "kafka" else server.partitions)
    both = in_order(server, old) + in_order(server, new)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in both))
    assert spider("fit", "rows.jsonl", *ONCE, "--model", "file.spider", "--quiet")[0] == 0
    assert content("m.spider") == content("file.spider")
    server.put(topic, records(10, seed=2))
    assert spider(*fit, "--resume")[0] == 0  # it is said once
    assert n_entries("m.spider") == 310 + n


def test_nothing_came_after_the_restoration(server, topic, spider, fails):
    fit, _ = learned(server, topic, spider)
    assert REMEDY in fails(*fit, "--resume")
    assert spider(*fit, "--resume", "--on-gap", "continue")[0] == 0
    assert n_entries("m.spider") == 300
    time.sleep(0.01)
    server.put(topic, records(10, seed=2))
    assert spider(*fit, "--resume", "--on-gap", "continue")[0] == 0
    assert n_entries("m.spider") == 310


def test_a_position_of_an_earlier_version(server, topic, spider, fails):
    """It does not say what the last message was: only a stream that is too short is noticed."""
    fit, old = learned(server, topic, spider, lost=0)
    model = spidertensor.load("m.spider")
    stream = {name: each for name, each in model.position_["stream"].items() if name not in FACTS}
    model.save("m.spider", position=model.position_ | {"stream": stream})
    server.put(topic, records(20, seed=1))
    assert spider(*fit, "--resume")[0] == 0
    assert n_entries("m.spider") == 320
    model.save("m.spider", position=model.position_ | {"stream": stream})
    server.delete(topic)
    server.put(topic, old[:200])
    assert REMEDY in fails(*fit, "--resume")


@pytest.mark.parametrize("server", ["redis", "nats"], indirect=True)
def test_a_message_that_was_deleted_after_it_was_learned(server, topic, spider):
    """The last one, of those that are there."""
    fit, _ = learned(server, topic, spider, lost=0)
    server.delete_one(topic, 300)
    assert spider(*fit, "--resume")[0] == 0
    server.put(topic, records(20, seed=1))
    assert spider(*fit, "--resume")[0] == 0
    assert n_entries("m.spider") == 320


@pytest.mark.parametrize("on_gap", ["raise", "continue"])
def test_a_broker_that_is_restored_while_it_is_read(server, topic, on_gap):
    def some(n: int) -> list[float]:
        found: list[float] = []
        deadline = time.monotonic() + 60
        while len(found) < n and time.monotonic() < deadline:
            chunk = stream.poll(0.1)
            found += [] if chunk is None else chunk.values.tolist()
        return found

    old, new = records(300), records(150, seed=1)
    server.put(topic, old[:200])
    copy = server.backup(topic)
    server.put(topic, old[200:])
    with sources.open(server.url(topic), *OPEN, on_gap=on_gap) as stream:
        assert len(some(300)) == 300
        server.stop()
        eventually(lambda: stream.poll(0.1) is None and not stream.connected)
        server.start()
        server.restore(topic, copy)
        server.put(topic, new)
        if on_gap == "raise":
            with pytest.raises(SourceError, match="restored") as error:
                some(1)
            assert error.value.kind == "restored"
        else:
            assert sorted(some(150)) == sorted(row["rating"] for row in new)
            assert (stream.poll(0.3), stream.lag) == (None, 0)


@pytest.mark.slow
def test_a_served_model_says_it_at_the_start_and_goes_on_if_told(server, topic, spider, fails, folder):
    learned(server, topic, spider)
    time.sleep(0.01)
    server.put(topic, records(150, seed=1))
    serve = ("--model", "m.spider", "--from", server.url(topic))
    assert REMEDY in fails("serve", "--port", "0", *serve)
    with serving(folder, *serve, "--on-gap", "continue") as service:
        until(service, entries=450, lag=0)
        assert service.stop() == 0
    assert "restored" in service.said


@pytest.mark.slow
def test_a_served_model_has_an_alarm(running, topic, folder):
    nats = running("nats")
    nats.put(topic, rows(100))
    copy = nats.backup(topic)
    with serving(folder, "--model", "m.spider", *RATINGS, "--from", nats.url(topic)) as server:
        until(server, entries=100)
        nats.put(topic, rows(50, seed=1))
        until(server, entries=150)
        nats.restore(topic, copy)

        def alarms() -> list[dict]:
            return server.get("/v1/model")["alarms"]

        # while the stream is replaced it may be "not connected; retrying" first
        eventually(lambda: any("was it restored?" in alarm["text"] for alarm in alarms()))
        (alarm,) = alarms()
        assert alarm["kind"] == "stream"
        assert "ends at sequence 100, but was read up to 150: was it restored?" in alarm["text"]
        assert "use --on-gap continue" in alarm["text"]
        assert server.learn(rows(5, seed=2))["entries"] == 155  # it serves meanwhile
        assert server.stop() == 0
