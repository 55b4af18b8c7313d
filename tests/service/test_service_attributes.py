"""`spider serve` with attributes beside ids: rows with them, described nodes, kills, repeats, errors."""

from __future__ import annotations

import json
import re
import signal
import time
import warnings
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("starlette")

import spidertensor
from serving import ARROW, NDJSON, PATIENCE, Server, arrow, assert_same, lines, serving
from spidertensor import SpiderRegressor
from spidertensor.estimator.columns import Calendar, Context, Many, Number, Recent, Value

pytestmark = pytest.mark.usefixtures("warm_kernels")

MODES = {
    "user": [Number("age"), "gender"],
    "movie": [Many("genres", sep="|")],
    "when": Context(Value("hour"), Calendar("time")),
}
SMALL = {"committee": 2, "hidden": (8,), "rank": 3, "multilinear": 4, "batch_size": 32, "random_state": 1}
MODEL = ("--model", "m.spider", "--value", "rating")
JSON = "application/json"


def rows(n: int, seed: int = 0) -> list[dict[str, Any]]:
    """Women rate higher, and war films are rated higher."""
    rng = np.random.default_rng(seed)
    made = []
    for user, movie, hour in zip(*rng.integers((12, 9, 24), size=(n, 3)).T.tolist(), strict=True):
        genres = ("drama", "drama|war", "comedy")[movie % 3]
        entry = {"user": user, "movie": f"m{movie}", "age": 20.5 + user, "gender": "fm"[user % 2]}
        entry |= {"genres": genres, "hour": hour, "time": f"{datetime(2024, 1, 1) + timedelta(hours=hour)}"}
        value = 3 + (user % 2 == 0) + ("war" in genres) + rng.normal(0, 0.2)
        made.append(entry | {"rating": round(value, 2)})
    return made


def columns(entries: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in entries] for name in entries[0] if name != "rating"}


def fitted(**more: Any) -> SpiderRegressor:
    first = rows(300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SpiderRegressor(modes=MODES, **SMALL, **more).fit(
            columns(first), [row["rating"] for row in first]
        )


@pytest.fixture(scope="module")
def model(tmp_path_factory, warm_kernels) -> Path:
    path = tmp_path_factory.mktemp("attributes") / "m.spider"
    fitted().save(path)
    return path


@pytest.fixture
def folder(model, tmp_path) -> Path:
    (tmp_path / "m.spider").write_bytes(model.read_bytes())
    return tmp_path


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    """For questions, and for requests that change nothing."""
    folder = tmp_path_factory.mktemp("asked")
    (folder / "m.spider").write_bytes(model.read_bytes())
    with serving(folder, *MODEL) as server:
        yield server


def describe(server: Server, mode: str, table: Any, expect: int = 200, **headers: str) -> Any:
    return server.learn(table, expect, f"/v1/attributes/{mode}", **headers)


def means(answer: dict[str, Any]) -> list[float]:
    return [each["mean"] for each in answer["predictions"]]


def test_learning_predicting_and_describing_as_the_library_does(folder):
    model, more, asked = fitted(), rows(60, seed=1), rows(20, seed=2)
    movies = [{"movie": "m0", "genres": "war"}, {"movie": "new", "genres": "drama|war"}]
    with serving(folder, *MODEL) as server:
        learned = server.learn(more)
        assert describe(server, "movie", movies) == {"described": 2, "notes": []}
        predicted = server.predict(asked)
        ids = [{name: row[name] for name in ("user", "movie")} for row in asked]
        of_ids = server.predict([*ids, {"user": 0, "movie": "new"}])
        recommended = server.http.post(
            "/v1/recommend", json={"given": {"user": 0, "hour": 3}, "over": "movie", "n": 20}
        ).json()
        assert server.get("/v1/model")["attributes"]["gender"] == "value"
        assert server.stop() == 0
    update = model.learn(columns(more), [row["rating"] for row in more])
    assert means(learned) == update.mean.tolist()
    model.set_attributes("movie", {name: [row[name] for row in movies] for name in ("movie", "genres")})
    assert means(predicted) == model.predict(columns(asked)).tolist()
    assert predicted["predictions"][0]["seen"] == {"user": True, "movie": True}
    wanted = columns([*ids, {"user": 0, "movie": "new"}])
    assert means(of_ids) == model.predict(wanted).tolist()
    expected = model.recommend({"user": 0, "hour": 3}, "movie", n=20)
    assert [(each["id"], each["mean"]) for each in recommended["nodes"]] == [each[:2] for each in expected]
    assert "new" in [each["id"] for each in recommended["nodes"]]
    assert recommended["seen"] == {"user": True}
    assert_same(folder / "m.spider", model)


def as_arrow(entries: list[dict[str, Any]]) -> bytes:
    table = pa.Table.from_pylist(entries)
    gender = table.schema.get_field_index("gender")
    table = table.set_column(gender, "gender", table.column("gender").dictionary_encode())
    time = pa.array([datetime.fromisoformat(row["time"]) for row in entries], pa.timestamp("ms"))
    return arrow(table.set_column(table.schema.get_field_index("time"), "time", time))


def test_all_kinds_of_bodies_mean_the_same(server):
    some = rows(20, seed=5)
    bodies = [(json.dumps(some), JSON), (lines(some), NDJSON), (as_arrow(some), ARROW)]
    asked = [
        server.http.post("/v1/predict", content=body, headers={"Content-Type": kind}) for body, kind in bodies
    ]
    assert [each.status_code for each in asked] == [200, 200, 200], [each.text for each in asked]
    assert asked[0].json() == asked[1].json() == asked[2].json()


def test_tables_of_attributes_in_all_kinds_of_bodies_mean_the_same(folder):
    table = [{"user": n, "age": 30.5 + n, "gender": "f"} for n in range(3)]
    bodies = [(json.dumps(table), JSON), (lines(table), NDJSON), (arrow(pa.Table.from_pylist(table)), ARROW)]
    asked = [{"user": n, "movie": "m1"} for n in range(3)]
    found = []
    with serving(folder, *MODEL) as server:
        for body, kind in bodies:
            describe(server, "user", [{"user": n, "age": 70, "gender": "m"} for n in range(3)])
            before = means(server.predict(asked))
            sent = server.http.post("/v1/attributes/user", content=body, headers={"Content-Type": kind})
            assert sent.json() == {"described": 3, "notes": []}, sent.text
            found.append(means(server.predict(asked)))
            assert found[-1] != before
    assert found[0] == found[1] == found[2]


def test_lists_and_missing_cells(server):
    """A list is a text that was split; null and nothing are the same."""
    asked = [{"user": 0, "movie": "?", "genres": genres} for genres in ("drama|war", ["drama", "war"], None)]
    listed, *others, nothing = means(server.predict([*asked, {"user": 0, "movie": "?"}]))
    assert others[0] == listed
    assert others[1] == nothing != listed
    table = pa.table({"user": [0], "movie": ["?"], "genres": [["drama", "war"]]})
    sent = server.http.post("/v1/predict", content=arrow(table), headers={"Content-Type": ARROW})
    assert means(sent.json()) == [listed]


def test_what_is_acknowledged_survives_a_kill_in_order_and_once(folder):
    parts = [rows(20, seed=seed) for seed in (1, 2, 3)]
    first = [{"user": 1, "gender": "f"}, {"user": "new", "gender": "m", "age": 33}]
    second = [{"user": 1, "gender": "m"}]
    with serving(folder, *MODEL) as server:
        server.learn(parts[0])
        told = describe(server, "user", first, idempotency_key="first")
        server.learn(parts[1])
        describe(server, "user", second, idempotency_key="second")
        describe(server, "user", [{"user": 1, "age": "old"}], 422)
        server.stop(signal.SIGKILL)
    with serving(folder, *MODEL) as server:
        assert server.entries() == 340
        again = describe(server, "user", first, idempotency_key="first")
        assert again == told | {"repeated": True}  # and the second table still holds
        server.learn(parts[2])
        server.stop(signal.SIGKILL)
    with serving(folder, *MODEL) as server:
        server.http.post("/v1/checkpoint").raise_for_status()
        assert describe(server, "user", first, idempotency_key="first")["repeated"]
        assert describe(server, "user", second, 422, idempotency_key="first")["error"]["kind"] == "key"
        path = "/v1/attributes/movie"
        body = [{"movie": "m1", "user": 1, "gender": "f", "genres": "war"}]
        assert server.learn(body, 422, path, idempotency_key="first")["error"]["kind"] == "key"
        assert server.stop() == 0
    model = fitted()
    for part, table in zip(parts, (first, second, None), strict=True):
        model.partial_fit(columns(part), [row["rating"] for row in part])
        if table:
            model.set_attributes("user", {name: [row.get(name) for row in table] for name in table[-1]})
    assert_same(folder / "m.spider", model)


def test_a_follower_sees_described_nodes_and_describes_none(folder):
    with serving(folder, *MODEL) as server, serving(folder, "--follow", "m.spider") as follower:
        describe(server, "movie", [{"movie": "new", "genres": "war"}])
        server.http.post("/v1/checkpoint").raise_for_status()
        wanted = server.predict([{"user": 1, "movie": "new"}])
        end = time.monotonic() + PATIENCE
        while follower.predict([{"user": 1, "movie": "new"}]) != wanted:
            assert time.monotonic() < end
            time.sleep(0.02)
        assert describe(follower, "movie", [], 405)["error"]["kind"] == "read only"


@pytest.mark.parametrize(
    ("mode", "table", "status", "kind", "part"),
    [
        ("nobody", [{"nobody": 1}], 404, "mode", "no mode 'nobody'"),
        ("when", [{"when": 1, "hour": 3}], 422, "mode", "no ids"),
        ("user", [{"name": 1, "age": 3}], 422, "column", "no column 'user'"),
        ("user", [{"user": 1, "agee": 3}], 422, "column", "no attribute"),
        ("user", [{"user": 1, "age": 3}, {"age": 3}], 422, "missing", "user is missing"),
        ("user", [{"user": 1, "age": 3}, {"user": 1, "age": 4}], 422, "attribute", "second row"),
        ("user", [{"user": 1, "age": 3}, {"user": 2, "age": "old"}], 422, "attribute", "not a number"),
        ("movie", [{"movie": "a"}, {"movie": 1, "genres": 7}], 422, "attribute", "not a list"),
        ("movie", [{"movie": "a"}, {"movie": 1, "genres": [[7]]}], 422, "attribute", "cannot be used"),
        ("movie", [{"movie": "a"}, {"movie": 1, "genres": ["x" * 1001]}], 422, "attribute", "1,000"),
        ("movie", [{"movie": "a"}, {"movie": 1, "genres": "x" * 10_001}], 422, "attribute", "10,000"),
        ("movie", [{"movie": "a"}, {"movie": 1, "genres": [*range(1001)]}], 422, "attribute", "1001 values"),
        ("user", [{"user": 1, "age": 3}, 7], 422, "not an object", "is not an object"),
        ("user", {"user": 1, "age": 3}, 400, "not a list", "not a list"),
    ],
)  # fmt: skip
def test_a_table_that_is_refused_changes_nothing(server, mode, table, status, kind, part):
    asked = rows(10, seed=7)
    before, nodes = server.predict(asked), server.get("/v1/model")["nodes"]
    error = describe(server, mode, table, status)["error"]
    of_a_row = kind in ("attribute", "missing", "not an object")
    assert (error["kind"], error["row"]) == (kind, 1 if of_a_row else None)
    assert part in error["message"]
    assert server.predict(asked) == before
    assert server.get("/v1/model")["nodes"] == nodes


def test_bad_cells_in_rows_are_listed_or_skipped(folder):
    bad = [row | {"age": "old"} if n in (2, 5) else row for n, row in enumerate(rows(8, seed=3))]
    with serving(folder, *MODEL) as server:
        for path in ("/v1/learn", "/v1/predict"):
            refused = server.learn(bad, 422, path)
            assert [(each["row"], each["column"], each["value"]) for each in refused["errors"]] == [
                (2, "age", "old"),
                (5, "age", "old"),
            ]
        assert server.entries() == 300
        predicted = server.predict(bad, query="?on_bad=skip")
        assert [n for n, each in enumerate(predicted["predictions"]) if each is None] == [2, 5]
        learned = server.learn(bad, path="/v1/learn?on_bad=skip")
        assert (learned["learned"], learned["entries"]) == (6, 306)
        assert [each["row"] for each in learned["skipped"]] == [2, 5]
        assert [n for n, each in enumerate(learned["predictions"]) if each is None] == [2, 5]


@pytest.mark.parametrize(
    ("given", "over", "column"),
    [
        ({"user": 1, "color": 2}, "movie", "given"),
        ({"user": 1}, "when", "over"),
        ({"hour": 3}, "movie", "given"),
        ({"user": 1, "age": "old"}, "movie", "age"),
    ],
)
def test_an_impossible_recommendation_is_told_by_its_field(server, given, over, column):
    answer = server.http.post("/v1/recommend", json={"given": given, "over": over})
    assert answer.status_code == 422
    assert answer.json()["error"]["column"] == column


def test_attributes_of_an_unknown_user_move_recommendations(server):
    def best(gender: str) -> float:
        body = {"given": {"user": "?", "gender": gender}, "over": "movie", "n": 1}
        answer = server.http.post("/v1/recommend", json=body).json()
        assert answer["seen"] == {"user": False}
        return answer["nodes"][0]["mean"]

    assert best("f") > best("m") + 0.2


def test_somebody_who_is_not_in_the_model(tmp_path):
    """As in the library; what cannot describe anybody is told by its column, with what to write."""
    first = rows(200)
    modes = {"user": ["age", Recent("movie", n=3)], "movie": []}
    made = SpiderRegressor(modes=modes, **SMALL).partial_fit(
        {name: [row[name] for row in first] for name in ("user", "age", "movie")},
        [row["rating"] for row in first],
    )
    made.save(tmp_path / "m.spider")
    given = {"age": 31.5, "recent(movie)": ["m3", "m1", "nothing"]}
    with serving(tmp_path, *MODEL) as server:

        def ask(given: Any) -> Any:
            return server.http.post("/v1/recommend", json={"given": given, "over": "movie", "n": 3})

        answer = ask(given).json()
        with pytest.warns(spidertensor.SpiderWarning, match="never learned"):
            wanted = made.recommend(given, "movie", n=3)
        assert [(each["id"], each["mean"]) for each in answer["nodes"]] == [each[:2] for each in wanted]
        assert answer["seen"] == {}
        assert [each["message"] for each in answer["notes"]] == [
            "column recent(movie): 1 of 3 ids were never learned, and are left out"
        ]
        for wrong, column, part in (
            (
                {},
                "given",
                "check user (somebody who is not in the model is described by age or recent(movie))",
            ),
            ({"recent(movie)": "m3"}, "recent(movie)", "is not a list of ids of movie"),
            ({"recent(movie)": [[3]]}, "recent(movie)", "has no valid id for movie"),
            ({"recent(film)": ["m3"]}, "given", "known: user, movie, age, recent(movie)"),
        ):
            refused = ask(wrong)
            assert refused.status_code == 422
            assert refused.json()["error"]["column"] == column
            assert part in refused.json()["error"]["message"]


def test_metrics_and_events_know_modes_with_ids_only(server):
    server.http.post("/v1/attributes/nobody", json=[])
    text = server.http.get("/metrics").text
    assert re.findall(r'^spider_nodes\{mode="(\w+)"\}', text, re.MULTILINE) == ["user", "movie"]
    assert 'path="/v1/attributes/{mode}",status="404"' in text
    with server.http.stream("GET", "/v1/events") as stream:
        data = next(line for line in stream.iter_lines() if line.startswith('data: {"time":1'))
    assert json.loads(data[6:])["modes"] == ["user", "movie"]


def test_a_model_without_attributes_has_none_to_describe(tmp_path):
    SpiderRegressor(**SMALL).fit([(1, 2), (2, 3), (1, 3)], [1.0, 2.0, 3.0]).save(tmp_path / "m.spider")
    with serving(tmp_path, *MODEL) as server:
        assert describe(server, "0", [{"0": 1, "age": 3}], 409)["error"]["kind"] == "no attributes"


def test_described_nodes_are_in_the_saved_file(folder):
    with serving(folder, *MODEL) as server:
        describe(server, "movie", [{"movie": f"d{n}", "genres": "war"} for n in range(500)])
        assert server.get("/v1/model")["nodes"]["movie"] == 509
        assert server.stop() == 0
    assert "d499" in spidertensor.load(folder / "m.spider").factors_[1].ids


def test_files_of_attributes_are_read_at_each_start_and_survive_a_kill(tmp_path):
    new = ("--model", "m.spider", "--value", "rating", "--modes", "user+age,movie+genres+year+made")
    kinds = ("--kind", "genres=many:|")
    movies = [("m0", "war|drama", 1990), ("new", "war", 1991), ("other", "", 1992)]
    text = "movie,genres,year,made,unused\n" + "".join(
        f"{movie},{genres},{year},{year}-05-31 12:00,\n" for movie, genres, year in movies
    )
    (tmp_path / "movies.csv").write_text(text)
    asked = [{"user": 1, "movie": "new"}, {"user": 2, "movie": "other"}]
    options = (*new, *kinds, "--seed", "1", "--attributes", "movie=movies.csv")
    with serving(tmp_path, *options) as server:
        server.learn(rows(40))
        expected = means(server.predict(asked))
        server.stop(signal.SIGKILL)
    with serving(tmp_path, *options) as server:  # described twice is described
        assert means(server.predict(asked)) == expected
        assert server.get("/v1/model")["attributes"]["made"] == "calendar"
        describe(server, "movie", [{"movie": "new", "genres": "comedy"}])
        changed = means(server.predict(asked))
        assert changed != expected
        assert server.stop() == 0
    with serving(tmp_path, *options[:-2]) as server:
        assert means(server.predict(asked)) == changed
        assert server.stop() == 0
    python = spidertensor.load(tmp_path / "m.spider")
    assert python.predict({"user": [1, 2], "movie": ["new", "other"]}).tolist() == changed
    with serving(tmp_path, *options) as server:  # the file goes before what was there
        assert means(server.predict(asked)) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("movie,genres\nm0,war\nm0,war\n", "movies.csv line 3: a second row for the same movie"),
        ("movie,genre\nm0,war\n", "movies.csv: none of the columns genres"),
        (
            f"movie,genres\nm0,{'|'.join(map(str, range(2000)))}\n",
            "line 2: column genres: 2000 values in one cell",
        ),
    ],
)
def test_a_bad_file_of_attributes_stops_the_start_and_changes_nothing(
    folder, monkeypatch, fails, text, reason
):
    monkeypatch.chdir(folder)
    (folder / "movies.csv").write_text(text)
    assert reason in fails("serve", *MODEL, "--port", "0", "--attributes", "movie=movies.csv")
    assert spidertensor.load("m.spider").n_nodes_ == fitted().n_nodes_
    assert not (folder / "m.spider.journal").exists()
