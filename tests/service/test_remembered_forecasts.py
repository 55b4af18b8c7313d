"""Forecasts that the service remembers until their values come: scored once learned, also through kills."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("starlette")

import spidertensor
from serving import ARROW, RATINGS, Server, arrow, assert_same, rows, serving
from spidertensor import Forecast, SpiderRegressor
from spidertensor.estimator.forecast import no_forecast
from spidertensor.estimator.inputs import Columns
from spidertensor.learner.floors import FLOORS
from spidertensor.service.bodies import JSON, entries
from spidertensor.service.errors import ServiceError
from spidertensor.service.forecasts import Forecasts, Keeping
from spidertensor.service.opening import NewModel, opened
from spidertensor.service.requests import Request
from spidertensor.service.served import wanted_to_learn
from spidertensor.service.snapshots import _problems

SMALL: dict[str, Any] = {"committee": 2, "rank": 2, "hidden": (3,), "random_state": 0}
MODEL = ("--model", "m.spider", *RATINGS)


def ids_of(row: dict[str, Any]) -> tuple[Any, Any]:
    return row["user"], row["movie"]


def learn(model: SpiderRegressor, part: list[dict[str, Any]], forecast: Any = None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the scale of few values
        model.partial_fit([ids_of(row) for row in part], [row["rating"] for row in part], forecast=forecast)


def named(part: list[dict[str, Any]], tokens: list[str | None]) -> list[dict[str, Any]]:
    return [row | {"_forecast": token} for row, token in zip(part, tokens, strict=True)]


def remembered(server: Server, part: list[dict[str, Any]], query: str = "?remember=3h") -> list[str]:
    return [each["forecast"] for each in server.predict(part, query=query)["predictions"]]


def forecast_scores(server: Server) -> list[Any]:
    told = server.get("/v1/model")
    names = ("forecast_error", "forecast_floor_mean", "forecast_floor_biases", "late_median", "forecast_case")
    return [told[name] for name in names]


# --- the file


@pytest.fixture(scope="module")
def model() -> SpiderRegressor:
    model = SpiderRegressor(committee=2, rank=2, hidden=(3,), multilinear=2)
    learn(model, rows(60))
    return model


@pytest.fixture
def store(tmp_path: Path) -> Forecasts:
    return Forecasts(tmp_path / "m.forecasts", "me")


def forecast(model: SpiderRegressor, n: int, seed: int = 0) -> Forecast:
    return model.forecast([ids_of(row) for row in rows(n, seed)])


def of_floors(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, len(FLOORS), 3))


def objects(*ids: Any) -> np.ndarray:
    return np.fromiter(ids, object, len(ids))


def test_what_was_kept_is_found_by_its_ids(store, model):
    assert not store.path.exists()  # before the first
    first, second = forecast(model, 5), forecast(model, 3, seed=1)
    floors = of_floors(5), of_floors(3, seed=1)
    ids = [store.remember(first, floors[0], 60), store.remember(second, floors[1], 60)]
    assert store.path.stat().st_mode & 0o777 == 0o600
    like = no_forecast(model._fitted())
    for again in (store, Forecasts(store.path, "me")):
        found = again.find(
            objects(ids[1][2], None, ids[0][4], "no-1", 7, ids[1][0] + "9", f"{ids[1][0]}x"), like
        )
        assert found.given.tolist() == [True, False, True, False, False, False, False]
        np.testing.assert_array_equal(found.forecast.numbers[0], second.numbers[2])
        np.testing.assert_array_equal(found.forecast.numbers[2], first.numbers[4])
        np.testing.assert_array_equal(found.floors[[0, 2]], [floors[1][2], floors[0][4]])
        assert np.isnan(found.floors[1]).all()
        assert 0 <= found.late[0] < 60
    assert Forecasts(store.path, "another model").find(objects(ids[0][0]), like) is None


def test_forecasts_are_bounded_in_time_and_number(store, model, monkeypatch):
    like = no_forecast(model._fitted())
    short, long = (store.remember(forecast(model, 2), of_floors(2), seconds) for seconds in (10, 1000))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 100)
    assert store.find(objects(short[0], long[0]), like).given.tolist() == [False, True]
    store.drop_expired()
    with sqlite3.connect(store.path) as file:
        assert file.execute("select sum(n) from forecasts").fetchone() == (2,)
    file.close()
    store.keeping = Keeping(most=9)
    kept = [store.remember(forecast(model, 4), of_floors(4), 1000) for _ in range(3)]
    found = store.find(objects(long[0], *(ids[0] for ids in kept)), like)
    assert found.given.tolist() == [False, False, True, True]


def test_more_than_are_kept_are_refused(store, model):
    """An answer with their ids would say that they are."""
    store.keeping = Keeping(most=3)
    kept = store.remember(forecast(model, 3), of_floors(3), 60)
    with pytest.raises(ServiceError, match="no more than 3 are kept"):
        store.remember(forecast(model, 4), of_floors(4), 60)
    assert store.find(objects(*kept), no_forecast(model._fitted())).given.all()


def test_forecasts_of_a_model_fitted_anew_are_not_known(store, model):
    ids = store.remember(forecast(model, 2), of_floors(2), 60)
    other = SpiderRegressor(committee=2, rank=2, hidden=(3,))
    learn(other, rows(60, seed=5))
    assert store.find(objects(*ids), no_forecast(other._fitted())) is None


@pytest.mark.parametrize("text", ["", "3", "h", "-3h", "3w", "8d", "0s", "1e3s", "999999999h", "3h3"])
def test_times_that_are_none(text):
    with pytest.raises(ServiceError, match="invalid remember"):
        Keeping().seconds_of(text)
    with pytest.raises(ServiceError) as caught:
        Keeping(seconds=3600).seconds_of("2h")
    assert caught.value.remedy == "pass a time such as 30m, 3h or 2d, of at most 1h"
    assert [Keeping().seconds_of(text) for text in ("90s", "1.5h", "7d")] == [90, 5400, 604_800]


def test_alarms_are_about_what_was_scored_often_enough():
    """Where nearly all rows come with a forecast, the few others say little about the next entry."""
    few: dict[str, Any] = {
        "read_only": False,
        "entries": 5000,
        "scored": 5000,
        "forecasts": 4990,
        "error": 2.0,
    }
    few |= {
        "floor_mean": 1.0,
        "floor_biases": 1.0,
        "coverage": 0.5,
        "clipped": None,
        "forecast_coverage": 0.7,
        "forecast_error": 2.0,
        "forecast_floor_mean": 2.1,
        "forecast_floor_biases": 1.9,
    }
    assert _problems(few, 0.0) == [
        ("forecasts", "90 % intervals of forecasts cover 70.0%"),
        ("forecast floor", "the error of forecasts 2 is above 1.9, that of one bias per node"),
    ]
    many = few | {"forecasts": 900}
    assert [kind for kind, _ in _problems(many, 0.0)] == ["floor", "floor", "coverage"]


# --- the service


@pytest.fixture(scope="module")
def server(tmp_path_factory, warm_kernels):
    with serving(tmp_path_factory.mktemp("forecasts"), *MODEL) as server:
        server.learn(rows(300))
        yield server


def test_rows_may_name_forecasts_in_any_order_and_format(server):
    part = rows(6, seed=1)
    answers = server.predict(part, query="?remember=3h&interval=0.9")["predictions"]
    tokens = [each["forecast"] for each in answers]
    server.learn(rows(50, seed=2))
    told = server.learn(named(part[::-1], tokens[::-1]))
    assert told["forecasts"] == {"scored": 6, "unknown": 0}
    assert [each["mean"] for each in told["predictions"]] == [
        pytest.approx(each["mean"], rel=1e-12) for each in answers[::-1]
    ]
    table = pa.Table.from_pylist(named(part, [tokens[0], None, *tokens[2:]]))
    response = server.http.post("/v1/learn", content=arrow(table), headers={"Content-Type": ARROW})
    assert response.json()["forecasts"] == {"scored": 5, "unknown": 0}
    assert "forecasts" not in server.learn(rows(3))


def test_floors_are_scored_by_what_they_predicted_at_the_same_time(tmp_path):
    first, asked, between = rows(80), rows(30, seed=1), rows(400, seed=2)
    served = opened(tmp_path / "m.spider", NewModel("SpiderRegressor", ["user", "movie"], "rating", SMALL))
    learner = served.learner

    def sent(part: list[dict[str, Any]]) -> None:
        body = json.dumps(part).encode()
        found = entries(body, JSON, wanted_to_learn(learner, 1000))
        (outcome,) = served.learn([Request(found, body, JSON)])
        assert isinstance(outcome, bytes)

    sent(first)
    ids = [np.array([row[mode] for row in asked], object) for mode in ("user", "movie")]
    forecast, floors = learner.forecast(Columns(ids))
    tokens = served.forecasts.remember(forecast, floors, 60)
    users, movies = ({row[mode] for row in first} for mode in ("user", "movie"))
    assert {row["user"] in users and row["movie"] in movies for row in asked} == {False, True}
    wanted = [np.mean([row["rating"] for row in first])] * len(asked)
    np.testing.assert_allclose(floors[:, 0, 0], wanted, rtol=1e-12)
    sent(between)
    sent(named(asked, list(tokens)))
    scores, value = learner.scores, np.array([row["rating"] for row in asked])
    keep = np.exp(-np.arange(len(asked))[::-1] / scores.memory)
    wanted = [np.average((value - each) ** 2, weights=keep) ** 0.5 for each in floors[:, :, 0].T]
    assert list(scores.forecast_floors.values()) == pytest.approx(wanted)
    assert scores.floors["mean"] != pytest.approx(wanted[0])  # of the entries without a forecast
    served.close()


def test_unknown_ids_are_counted_and_learned_without(server):
    before = server.get("/v1/model")
    part = rows(4, seed=3)
    tokens: list[Any] = [remembered(server, part[:1])[0], "0123-0", 17, None]
    told = server.learn(named(part, tokens))
    assert (told["learned"], told["forecasts"]) == (4, {"scored": 1, "unknown": 2})
    assert [note["kind"] for note in told["notes"]] == ["forecast"]
    after = server.get("/v1/model")
    assert after["entries"] == before["entries"] + 4
    assert after["unknown_forecasts"] == before["unknown_forecasts"] + 2
    assert after["forecasts"] == before["forecasts"] + 1
    assert 0 <= after["late_median"] <= after["late_90"] < 60
    assert "spider_unknown_forecasts_total" in server.http.get("/metrics").text


def test_bad_rows_are_skipped_with_their_forecasts(server):
    part = rows(5, seed=4)
    sent: list[Any] = named(part, list(remembered(server, part)))
    sent[1]["rating"], sent[3]["rating"] = "much", 1e300
    told = server.learn(sent, path="/v1/learn?on_bad=skip")
    assert (told["learned"], told["forecasts"]) == (3, {"scored": 3, "unknown": 0})
    assert [each is None for each in told["predictions"]] == [False, True, False, True, False]


def test_the_calibration_can_be_chosen(server):
    asked, given = rows(3, seed=6), {"given": {"user": 1}, "over": "movie", "n": 2, "interval": 0.9}
    server.learn(named(asked, list(remembered(server, asked))))  # so that there are forecasts

    def ends(calibration: str) -> list[Any]:
        rated = server.predict(asked, query=f"?interval=0.9&calibration={calibration}")["predictions"]
        ranked = server.http.post("/v1/recommend", json=given | {"calibration": calibration}).json()["nodes"]
        return [(each["low"], each["high"]) for each in [*rated, *ranked]]

    assert ends("auto") == ends("next") != ends("forecast")
    for query, kind in (("?interval=0.9&calibration=best", 400), ("?calibration=next", 400)):
        assert server.predict(asked, kind, query)["error"]["kind"] == "calibration"
    refused = server.predict(asked, 422, "?interval=0.9&calibration=rest")["error"]
    assert (refused["kind"], refused["remedy"]) == ("calibration", "leave out calibration")
    for wrong in ("best", ["next"]):
        assert server.http.post("/v1/recommend", json=given | {"calibration": wrong}).status_code == 400


def test_wrong_questions(server):
    assert server.predict(rows(1), 400, "?remember=long")["error"]["kind"] == "remember"
    assert server.predict(rows(1), 400, "?remember=9d")["error"]["kind"] == "remember"


@pytest.mark.slow
def test_followers_and_events_remember_nothing(tmp_path, warm_kernels):
    events = (
        "--model",
        "e.spider",
        "--modes",
        "user,movie",
        "--events",
        "--over",
        "movie",
        "--committee",
        "1",
    )
    with serving(tmp_path, *events) as server:
        server.learn([{"user": n % 3, "movie": n % 4} for n in range(12)])
        assert "no forecasts" in server.predict(rows(1), 422, "?remember=1h")["error"]["message"]
        server.http.post("/v1/checkpoint")
        with serving(tmp_path, "--follow", "e.spider") as follower:
            assert follower.predict(rows(1), 405, "?remember=1h")["error"]["kind"] == "read only"


@pytest.mark.slow
def test_a_kill_loses_no_forecast_and_scores_each_as_it_was(tmp_path, warm_kernels):
    """Even if it is over when the journal is replayed."""
    first, asked, more, last = rows(100), rows(40, seed=1), rows(30, seed=2), rows(20, seed=3)
    model = SpiderRegressor(random_state=1, committee=2)
    learn(model, first)
    said = model.forecast([ids_of(row) for row in asked])
    learn(model, more)
    learn(model, asked[:25], said[:25])
    late = model.forecast([ids_of(row) for row in last])
    learn(model, last, late)
    learn(model, asked[25:], [None if n == 3 else said[25 + n] for n in range(15)])
    with serving(tmp_path, *MODEL) as server:
        server.learn(first)
        tokens = remembered(server, asked)
        server.http.post("/v1/checkpoint")  # removes the journal, not the forecasts
        server.stop(signal.SIGKILL)
    with serving(tmp_path, *MODEL) as server:
        server.learn(more)
        assert server.learn(named(asked[:25], list(tokens[:25])))["forecasts"]["scored"] == 25
        short = remembered(server, last, "?remember=2s")
        told = server.learn(named(last, list(short)), idempotency_key="last")
        assert told["forecasts"]["scored"] == 20
        scores = forecast_scores(server)
        assert None not in scores
        server.stop(signal.SIGKILL)
    time.sleep(2)
    with serving(tmp_path, *MODEL) as server:
        assert forecast_scores(server) == scores
        assert server.get("/v1/model")["forecasts"] == 45
        again = server.learn(named(last, list(short)), idempotency_key="last")
        assert again == told | {"repeated": True}
        rest: list[str | None] = [None if n == 3 else token for n, token in enumerate(tokens[25:])]
        server.learn(named(asked[25:], rest))
        assert server.stop() == 0
    assert_same(tmp_path / "m.spider", model)
    assert spidertensor.load(tmp_path / "m.spider")._learned.state.forecasts.entries == 59
