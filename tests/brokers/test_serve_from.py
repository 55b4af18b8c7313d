"""`spider serve --from`: a stream beside HTTP. Each message counts once, whatever is killed or restarted."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("starlette")

import forked
import servers
import spidertensor
from command_line import eventually
from servers import in_order
from serving import PATIENCE, RATINGS, Server, as_learned, assert_same, rejected, rows, serving, until
from spidertensor import SpiderRegressor

pytestmark = pytest.mark.usefixtures("folder", "warm_kernels")
MODEL = ("--model", "m.spider", *RATINGS, "--scaling", "3,1")


def metrics(server: Server) -> dict[str, float]:
    lines = server.http.get("/metrics").text.splitlines()
    pairs = [line.split() for line in lines if line.startswith("spider_stream")]
    return {name: float(value) for name, value in pairs}


@pytest.mark.slow
def test_a_kill_between_requests_and_messages_loses_nothing_and_repeats_nothing(tmp_path, broker, topic):
    options = (*MODEL, "--from", broker.url(topic), "--checkpoint-every", "250")
    stream, requests = [], []  # good messages in order; (entries after it, its rows)
    with serving(tmp_path, *options) as server:
        for part in range(9):
            messages, sent = rows(40, seed=2 * part), rows(1 + part, seed=2 * part + 1)
            broker.put(topic, [*messages[:20], {"user": 1, "movie": "m", "rating": "x"}])
            requests.append((server.learn(sent)["entries"], sent))
            broker.put(topic, [{"user": 1, "movie": "m", "rating": 1e300}, *messages[20:]])
            stream += messages
        end = time.monotonic() + PATIENCE
        while not (tmp_path / "m.spider").exists():  # what was learned by then is not in the journal any more
            assert time.monotonic() < end
            time.sleep(0.01)
        server.stop(signal.SIGKILL)
    broker.put(topic, rows(30, seed=100))
    stream += rows(30, seed=100)
    with serving(tmp_path, *options) as server:
        sent = rows(7, seed=101)
        requests.append((server.learn(sent)["entries"], sent))
        n = len(stream) + sum(len(sent) for _, sent in requests)
        told = until(server, entries=n, lag=0)["stream"]
        expected = {"url": broker.url(topic), "lag": 0, "reconnects": 0, "connected": True, "bad": 18}
        assert told == expected
        assert server.stop() == 0
    order = as_learned(stream, requests)
    model = SpiderRegressor(random_state=1, committee=2, scaling=(3.0, 1.0))
    model.partial_fit([(row["user"], row["movie"]) for row in order], [row["rating"] for row in order])
    assert_same(tmp_path / "m.spider", model)
    found = rejected(tmp_path / "m.rejects.jsonl")
    assert [row for row, _ in found] == [42 * part + place for part in range(9) for place in (21, 22)]
    assert "rating 'x' is not a number" in found[0][1]
    position = spidertensor.load(tmp_path / "m.spider").position_
    assert (position["row"], position["bad"], position["stream"]["messages"]) == (408, 18, 408)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [servers.Nats, servers.Kafka])
def test_kills_leave_no_trace(folder, topic, kind):
    """Five of them, each some milliseconds after a checkpoint; with messages in between that are bad."""
    server = kind()
    messages = rows(8000)
    for row in messages[::100]:
        row["rating"] = "x"
    server.put(topic, messages)
    serve = ("serve", "--port", "0", *MODEL[2:], "--from", server.url(topic))
    try:
        assert forked.killed(*serve, model="m.spider", kills=5, seed=4) == 5
        assert 0 < spidertensor.load("m.spider").position_["row"] < 8000
        last = forked.start(*serve, "--model", "m.spider", "--checkpoint-every", "0.1s", most=128)
        eventually(lambda: spidertensor.load("m.spider").position_["row"] == 8000)
        last.terminate()
        assert forked.finish(last) == 0
    finally:
        server.close()
    order = in_order(server, messages, size=128)
    good = [row for row in order if row["rating"] != "x"]
    model = SpiderRegressor(random_state=1, committee=2, scaling=(3.0, 1.0))
    model.partial_fit([(row["user"], row["movie"]) for row in good], [row["rating"] for row in good])
    assert_same(folder / "m.spider", model)
    bad = [number for number, row in enumerate(order, 1) if row["rating"] == "x"]
    assert [row for row, _ in rejected(folder / "m.rejects.jsonl")] == bad


@pytest.mark.slow
def test_a_model_of_spider_fit_goes_on_and_a_broker_may_be_away(spider, fails, folder, broker, topic):
    broker.put(topic, rows(300))
    fit = ("fit", broker.url(topic), "--model", "m.spider", "--until-end", "-q")
    assert spider(*fit, *RATINGS, "--scaling", "3,1")[0] == 0
    broker.put(topic, rows(60, seed=1))
    broker.trim(topic, 310)
    serve = ("--model", "m.spider", "--from", broker.url(topic))
    message = fails("serve", "--port", "0", *serve)
    assert "10 entries after id" in message
    assert "--on-gap continue" in message
    with serving(folder, *serve, "--on-gap", "continue") as server:
        until(server, entries=350, lag=0)
        broker.stop()
        try:
            told = until(server, connected=False)
            assert told["stream"]["lag"] is None
            assert server.learn(rows(5, seed=2))["entries"] == 355  # it serves meanwhile
            end = time.monotonic() + PATIENCE
            while "stream" not in [alarm["kind"] for alarm in server.get("/v1/model")["alarms"]]:
                assert time.monotonic() < end
                time.sleep(0.05)
            found = metrics(server)
            assert found["spider_stream_connected"] == 0
            assert "spider_stream_lag" not in found
        finally:
            broker.start()
        broker.put(topic, rows(20, seed=3))
        until(server, entries=375, lag=0, connected=True, reconnects=1)
        end = time.monotonic() + PATIENCE
        while metrics(server).get("spider_stream_reconnects_total") != 1:  # of the latest snapshot
            assert time.monotonic() < end
            time.sleep(0.05)
        assert metrics(server)["spider_stream_lag"] == 0
        assert server.stop() == 0
    broker.put(topic, rows(5, seed=4))
    assert spider(*fit, "--resume")[0] == 0  # and the other way round
    assert spidertensor.load("m.spider").n_entries_ == 380


@pytest.mark.slow
def test_a_stream_of_bad_messages_stops_nothing(tmp_path, broker, topic):
    """JSON, whose ids have types: also what only the service cannot keep."""
    good = [{"user": 2**70, "movie": True, "rating": 3}, {"user": 1.5, "movie": "m", "rating": 4}]
    long = {"user": "x" * 1001, "movie": "m", "rating": 3}
    half = b'{"user": "\\ud800", "movie": "m", "rating": 3}'
    options = (*MODEL, "--from", broker.url(topic), "--format", "json")
    broker.put(topic, [b"no", b"[1]"])
    with serving(tmp_path, *options) as server:
        until(server, bad=2)
        assert server.stop() == 0  # nothing to save, and nothing forgotten
    broker.put(topic, [half, json.dumps(good[0]).encode(), json.dumps(long).encode()])
    broker.put(topic, [json.dumps(good[1]).encode()])
    with serving(tmp_path, *options) as server:
        until(server, bad=4, entries=2)
        known = server.predict([{"user": 2**70, "movie": True}, {"user": 1.5, "movie": "m"}])
        assert all(all(each["seen"].values()) for each in known["predictions"])
        assert server.stop() == 0
    found = rejected(tmp_path / "m.rejects.jsonl")
    assert [row for row, _ in found] == [1, 2, 3, 5]
    assert "not JSON" in found[0][1]
    assert "Unicode" in found[2][1]
    assert "longer than 1000" in found[3][1]


def test_what_is_refused_at_the_start(spider, fails, folder, broker, topic):
    url = broker.url(topic)
    broker.put(topic, rows(30))
    spider("fit", url, *RATINGS, "--model", "m.spider", "--until-end", "-q")
    serve = ("serve", "--port", "0", "--model", "m.spider")
    assert "has learned another stream" in fails(*serve, "--from", broker.url("another"))
    assert "--from takes the URL" in fails(*serve, "--from", "ratings.csv")
    assert "are for --from" in fails(*serve, "--on-gap", "continue")
    assert "--from needs --model" in fails("serve", "--follow", "m.spider", "--from", url)
    Path("m.rejects.jsonl").write_text("my notes\n")
    assert "not a file of rejected rows" in fails(*serve, "--from", url)
    assert spidertensor.load("m.spider").position_["row"] == 30


@pytest.mark.parametrize("kind", ["fields", "json"])
def test_labels_in_a_stream(tmp_path, broker, topic, kind):
    """The journal holds 0 and 1, which must not be taken for labels when it is read again."""
    rows = [{"user": k % 5, "app": f"a{k % 3}", "side": "sell" if k % 2 else "buy"} for k in range(60)]
    bad = {"user": 1, "app": "a1", "side": "1"}
    sent = [*rows[:50], bad, *rows[50:]]
    broker.put(topic, [json.dumps(row).encode() for row in sent] if kind == "json" else sent)
    options = (
        "--model", "m.spider", "--modes", "user,app", "--value", "side", "--binary", "--labels", "buy,sell",
        "--committee", "1", "--from", broker.url(topic), "--format", kind, "--checkpoint-every", "never",
    )  # fmt: skip
    asked = [{"user": user, "app": "a1"} for user in range(5)]
    with serving(tmp_path, *options) as server:
        until(server, entries=60)
        before = server.predict(asked)
        server.stop(signal.SIGKILL)
    with serving(tmp_path, *options) as server:
        assert until(server, entries=60)["labels"] == ["buy", "sell"]
        assert server.predict(asked) == before
    [(row, reason)] = rejected(tmp_path / "m.rejects.jsonl")
    assert (row, reason) == (51, "side '1' is not 'buy' or 'sell'")
