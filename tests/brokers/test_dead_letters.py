"""`spider serve --from --dead-letter`: what cannot be learned is sent to another stream, and never lost."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

pytest.importorskip("starlette")

import servers
import spidertensor
from command_line import eventually
from serving import RATINGS, Server, rejected, rows, serving, until
from spidertensor import sources

pytestmark = pytest.mark.usefixtures("folder", "warm_kernels")
MODEL = ("--model", "m.spider", *RATINGS, "--scaling", "3,1")
NOT_A_NUMBER = {"user": 1, "movie": "m", "rating": "x"}
TOO_FAR = {"user": 1, "movie": "m", "rating": 1e300}  # only the model can say so


@pytest.fixture(scope="module")
def office():
    """Where letters are sent to: another server than the one that is read."""
    server = servers.Nats()
    yield server
    server.close()


def letters(office, name: str, names: tuple[str, ...] = ("source", "row", "reason", "place")) -> list[dict]:
    with sources.open(office.url(name), names, until_end=True) as stream:
        return [
            dict(zip(names, row, strict=True)) for chunk in stream for row in zip(*chunk.columns, strict=True)
        ]


def alarms(server: Server) -> dict[str, str]:
    return {each["kind"]: each["text"] for each in server.get("/v1/model")["alarms"]}


@pytest.mark.slow
def test_a_kill_loses_no_letter_and_the_file_has_each_once(tmp_path, broker, topic, office):
    office.put(topic, [])
    more = ("--dead-letter", office.url(topic), "--rejects", "bad.jsonl", "--checkpoint-every", "50")
    options = (*MODEL, "--from", broker.url(topic), *more)
    broker.put(topic, [*rows(100), NOT_A_NUMBER])
    with serving(tmp_path, *options) as server:
        until(server, entries=100, bad=1)
        eventually((tmp_path / "m.spider").exists)  # so that the first letter was sent
        broker.put(topic, [TOO_FAR, *rows(30, seed=1), NOT_A_NUMBER])
        until(server, entries=130, bad=3)
        server.stop(signal.SIGKILL)
    with serving(tmp_path, *options) as server:
        broker.put(topic, [TOO_FAR, *rows(3, seed=2)])
        until(server, entries=133, bad=4)
        assert server.stop() == 0
    file = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [each["row"] for each in file] == [101, 102, 133, 134]
    sent = letters(office, topic)
    assert [each["row"] for each in sent][:1] == [101]
    assert {each["row"] for each in sent} == {101, 102, 133, 134}
    assert len(sent) <= 6  # those since the last checkpoint may come twice
    assert {each["source"] for each in sent} == {broker.url(topic)}
    reasons = {each["row"]: each["reason"] for each in file}
    assert all(each["reason"] == reasons[each["row"]] for each in sent)
    places = {each["row"]: each["place"] for each in file}
    ids = [entry.decode() for entry, _ in broker.client.xrange(topic)]
    assert all(place == f"id {ids[row - 1]}" for row, place in places.items())
    assert all(each["place"] == places[each["row"]] for each in sent)  # also of those sent after the kill


@pytest.mark.slow
def test_letters_wait_for_their_broker_and_the_model_does_not(tmp_path, broker, topic, office):
    office.put(topic, [])
    more = ("--dead-letter", office.url(topic), "--checkpoint-every", "0.1s")
    broker.put(topic, rows(20))
    with serving(tmp_path, *MODEL, "--from", broker.url(topic), *more) as server:
        until(server, entries=20)
        eventually((tmp_path / "m.spider").exists)
        office.stop()
        try:
            broker.put(topic, [NOT_A_NUMBER])
            eventually(lambda: "dead letters not sent" in alarms(server).get("stream", ""))
            eventually(lambda: "before dead letters are sent" in alarms(server).get("checkpoint", ""))
            assert server.learn(rows(5, seed=2))["entries"] == 25  # it serves meanwhile
            broker.put(topic, rows(7, seed=3))
            assert (
                spidertensor.load(tmp_path / "m.spider").n_entries_ == 20
            )  # or a crash would lose the letter
        finally:
            office.start()
        until(server, entries=32, bad=1)
        eventually(lambda: not alarms(server))
        assert server.stop() == 0
    assert [each["row"] for each in letters(office, topic)] == [21]
    assert [row for row, _ in rejected(tmp_path / "m.rejects.jsonl")] == [21]


def test_what_is_refused(fails, spider, folder, broker, topic, office):
    url = broker.url(topic)
    broker.put(topic, rows(30))
    serve = ("serve", "--port", "0", *MODEL)
    assert "are for --from" in fails(*serve, "--dead-letter", url)
    assert "takes the URL of a stream" in fails(*serve, "--from", url, "--dead-letter", "bad.jsonl")
    assert "must not be the stream being read" in fails(*serve, "--from", url, "--dead-letter", url)
    assert "same file" in fails(*serve, "--from", url, "--rejects", "m.spider")
    away = f"nats://127.0.0.1:{servers.free_port()}/dead"
    assert f"{away}: " in fails(*serve, "--from", url, "--dead-letter", away)
    assert not Path("m.spider").exists()
