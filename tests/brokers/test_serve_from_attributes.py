"""`spider serve --from` a stream whose messages have attributes: each counts once, kills or not."""

from __future__ import annotations

import json
import signal
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")

import spidertensor
from servers import in_order
from serving import PATIENCE, as_learned, assert_same, rejected, serving, until
from spidertensor import Calendar, Context, Many, Number, Recent, SpiderRegressor, Value

pytestmark = [pytest.mark.usefixtures("folder", "warm_kernels"), pytest.mark.slow]

MODES = "user+age+gender+recent(movie,3),movie+genres,when=hour+time"
KINDS = ("age=number", "gender=value", "genres=many:|", "hour=value", "time=calendar")
MODEL = (
    "--model", "m.spider", "--modes", MODES, *(word for kind in KINDS for word in ("--kind", kind)),
    "--value", "rating", "--seed", "1", "--committee", "2", "--scaling", "3,1",
)  # fmt: skip


def rows(n: int, seed: int = 0) -> list[dict[str, Any]]:
    """Women rate higher, and war films are rated higher. Some rows lack attributes."""
    rng = np.random.default_rng(seed)
    made = []
    for place, (user, movie, hour) in enumerate(rng.integers((12, 9, 24), size=(n, 3)).tolist()):
        genres = ("drama", "drama|war", "comedy")[movie % 3]
        value = 3 + (user % 2 == 0) + ("war" in genres) + rng.normal(0, 0.2)
        row = {"user": user, "movie": f"m{movie}", "hour": hour, "rating": round(value, 2)}
        if place % 5:
            time_of = datetime(2024, 1, 1) + timedelta(hours=hour + 100 * seed)
            row |= {"age": 20.5 + user, "gender": "fm"[user % 2], "genres": genres, "time": f"{time_of}"}
        made.append(row)
    return made


def in_python(order: list[dict[str, Any]]) -> SpiderRegressor:
    """The model that these rows make."""
    modes = {
        "user": [Number("age"), Value("gender"), Recent("movie", 3)],
        "movie": [Many("genres", sep="|")],
        "when": Context(Value("hour"), Calendar("time")),
    }
    model = SpiderRegressor(modes=modes, random_state=1, committee=2, scaling=(3.0, 1.0))
    names = ("user", "movie", "age", "gender", "genres", "hour", "time")

    def learn(part: list[dict[str, Any]]) -> None:
        columns = {name: [row.get(name) for row in part] for name in names}
        model.partial_fit(columns, [row["rating"] for row in part])

    learn(order[:20])  # too few for knots, which so do not depend on how the others are cut into calls
    learn(order[20:])
    return model


def bad(**cell: Any) -> dict[str, Any]:
    return {"user": 1, "movie": "m1", "rating": 3, **cell}


@pytest.mark.parametrize("kind", ["fields", "json"])
def test_a_kill_loses_nothing_and_repeats_nothing(tmp_path, broker, topic, kind):
    """Fields are texts, which get their types from the model's columns; JSON has types."""

    def put(messages: list[dict[str, Any]]) -> None:
        broker.put(topic, [json.dumps(row).encode() for row in messages] if kind == "json" else messages)

    options = (*MODEL, "--from", broker.url(topic), "--format", kind, "--checkpoint-every", "250")
    put(rows(20, seed=1000))
    stream, requests = rows(20, seed=1000), []  # good messages in order; (entries after it, its rows)
    with serving(tmp_path, *options) as server:
        until(server, entries=20)
        for part in range(6):
            messages, sent = rows(40, seed=2 * part), rows(1 + part, seed=2 * part + 1)
            put([*messages[:20], bad(age="old")])
            requests.append((server.learn(sent)["entries"], sent))
            put([bad(time="2024-13-01"), *messages[20:]])
            stream += messages
        end = time.monotonic() + PATIENCE
        while not (tmp_path / "m.spider").exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        server.stop(signal.SIGKILL)
    put(rows(30, seed=100))
    stream += rows(30, seed=100)
    with serving(tmp_path, *options) as server:
        sent = rows(7, seed=101)
        requests.append((server.learn(sent)["entries"], sent))
        n = len(stream) + sum(len(sent) for _, sent in requests)
        told = until(server, entries=n, lag=0)
        assert (told["stream"]["bad"], told["attributes"]["genres"]) == (12, "many")
        assert server.stop() == 0
    order = as_learned(stream, requests)
    assert_same(tmp_path / "m.spider", in_python(order))
    found = rejected(tmp_path / "m.rejects.jsonl")
    assert [row for row, _ in found] == [20 + 42 * part + place for part in range(6) for place in (21, 22)]
    assert "age" in found[0][1]
    assert "'old'" in found[0][1]
    assert "is not a time" in found[1][1]


def test_every_broker_gives_attributes(tmp_path, server, topic):
    server.put(topic, rows(20, seed=1000))
    options = (*MODEL, "--from", server.url(topic))
    with serving(tmp_path, *options) as served:
        until(served, entries=20)
        server.put(topic, rows(300))
        until(served, entries=320, lag=0)
        assert served.stop() == 0
    assert_same(
        tmp_path / "m.spider", in_python(in_order(server, rows(20, seed=1000)) + in_order(server, rows(300)))
    )


def test_a_model_of_spider_fit_goes_on(spider, folder, broker, topic):
    """Also what its first rows have decided without a word from the user, and the other way round."""
    first, second, third = rows(300), rows(60, seed=1), rows(50, seed=2)
    named = ("--modes", MODES, "--kind", "genres=many:|", "--value", "rating", "--committee", "1")
    for name in ("fitted", "served"):
        broker.put(f"{topic}{name}", first)
        fit = ("fit", broker.url(f"{topic}{name}"), "--model", f"{name}.spider", "--until-end", "-q")
        assert spider(*fit, *named)[0] == 0
        broker.put(f"{topic}{name}", second)
        if name == "fitted":
            assert spider(*fit, "--resume")[0] == 0
        else:
            with serving(
                folder, "--model", "served.spider", "--from", broker.url(f"{topic}{name}")
            ) as server:
                until(server, entries=360, lag=0)
                assert server.stop() == 0
        broker.put(f"{topic}{name}", third)
        assert spider(*fit, "--resume")[0] == 0
    expected = spidertensor.load("fitted.spider")
    assert isinstance(expected, SpiderRegressor)
    assert expected.n_entries_ == 410
    assert_same(folder / "served.spider", expected)


def test_texts_are_typed_by_what_the_model_knows_when_they_are_learned(tmp_path, broker, topic):
    """A request decides that a column has numbers; then a message with a text in it is bad, not a value."""
    options = (
        "--model", "m.spider", "--modes", "user+age,movie", "--value", "rating", "--committee", "1",
        "--scaling", "3,1", "--from", broker.url(topic),
    )  # fmt: skip
    with serving(tmp_path, *options) as server:
        server.learn([{"user": n, "movie": "m", "age": 20.5 + n, "rating": 3} for n in range(40)])
        assert server.get("/v1/model")["attributes"] == {"age": "number"}
        broker.put(topic, [bad(age="35"), bad(age="x"), bad(age="")])
        until(server, entries=42, bad=1, lag=0)
        server.stop(signal.SIGKILL)
    with serving(tmp_path, *options) as server:
        assert until(server, entries=42)["stream"]["bad"] == 1
        assert server.stop() == 0
    ((row, reason),) = rejected(tmp_path / "m.rejects.jsonl")
    assert (row, "age 'x' is not a number" in reason) == (2, True)


def test_attributes_of_a_served_model_are_those_that_it_was_made_with(fails, folder):
    with serving(folder, *MODEL) as server:
        server.learn(rows(5))
        assert server.stop() == 0
    with serving(folder, *MODEL) as server:  # the same command goes on
        assert server.entries() == 5
    start = ("serve", "--port", "0", "--model", "m.spider")
    assert "spider fit --add" in fails(*start, "--modes", "user+age+city,movie+genres,when=hour+time")
    assert "cannot take away" in fails(*start, "--modes", "user,movie,when")
    assert "named twice" in fails(
        "serve", "--model", "n.spider", "--modes", "user+age,movie", "--value", "age"
    )
    assert "--kind is for attributes" in fails("serve", "--model", "n.spider", "--kind", "age=number")
    assert not Path("n.spider").exists()
