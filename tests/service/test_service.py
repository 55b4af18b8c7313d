"""`spider serve`, the real server in a process of its own: routes, answers, errors, who may ask, limits."""

from __future__ import annotations

import base64
import json
import re
import socket
import threading
import time

import httpx
import numpy as np
import pyarrow as pa
import pytest

from serving import ARROW, NDJSON, arrow

pytest.importorskip("starlette")


import spidertensor
from serving import PATIENCE, RATINGS, Server, lines, rows, serving
from spidertensor import SpiderClassifier, SpiderRegressor
from spidertensor.estimator.inputs import Columns
from spidertensor.service import openapi
from spidertensor.service.guard import HEADERS

TOKEN = "a-token-of-many-characters"


@pytest.fixture(scope="module")
def server(tmp_path_factory, warm_kernels):
    with serving(tmp_path_factory.mktemp("service"), "--model", "m.spider", *RATINGS) as server:
        server.learn(rows(300))
        yield server


# --- what it answers


def test_learning_answers_what_was_predicted_before_as_the_library_does(tmp_path, warm_kernels):
    first, second = rows(50), rows(40, seed=1)
    with serving(tmp_path, "--model", "m.spider", *RATINGS) as server:
        assert server.predict(first[:1], expect=409)["error"]["kind"] == "nothing learned"
        assert server.http.post("/v1/checkpoint").status_code == 409
        answers = [server.learn(first), server.learn(second)]
        asked = server.predict(second[:3], query="?interval=0.8")["predictions"]
        assert server.stop() == 0
    model = SpiderRegressor(random_state=1, committee=2)
    for part, answer in zip([first, second], answers, strict=True):
        update = model.learn([(row["user"], row["movie"]) for row in part], [row["rating"] for row in part])
        assert [each["mean"] for each in answer["predictions"]] == update.mean.tolist()
        assert [each["std"] for each in answer["predictions"]] == np.sqrt(update.var + update.noise).tolist()
    assert [answer["entries"] for answer in answers] == [50, 90]
    X = [(row["user"], row["movie"]) for row in second[:3]]
    mean, std = model.predict(X, return_std=True)
    low, high = model.predict_interval(X, 0.8)
    expected = zip(mean.tolist(), std.tolist(), low.tolist(), high.tolist(), strict=True)
    assert [(each["mean"], each["std"], each["low"], each["high"]) for each in asked] == list(expected)
    saved = spidertensor.load(tmp_path / "m.spider")
    assert saved.n_entries_ == 90
    assert saved.mode_names_ == ["user", "movie"]
    assert {path.name for path in tmp_path.iterdir()} == {"m.spider", "m.spider.answers"}


def test_three_kinds_of_bodies_mean_the_same(server):
    some = rows(20, seed=5)
    table = pa.Table.from_pylist(some).set_column(
        1, "movie", pa.array([row["movie"] for row in some]).dictionary_encode()
    )
    asked = [
        server.http.post("/v1/predict", content=body, headers={"Content-Type": kind})
        for body, kind in [
            (json.dumps(some), "application/json; charset=utf-8"),
            (b"\n" + lines(some) + b"\n\n", NDJSON),
            (arrow(table), ARROW),
        ]
    ]
    assert [each.status_code for each in asked] == [200, 200, 200], [each.text for each in asked]
    assert asked[0].json() == asked[1].json() == asked[2].json()


def test_ids_keep_their_types(server):
    big = 2**70
    server.learn([{"user": 77, "movie": "same", "rating": 3}, {"user": "77", "movie": "same", "rating": 3}])
    server.learn([{"user": big, "movie": "same", "rating": 3}])
    seen = server.predict(
        [{"user": user, "movie": "same"} for user in (77, "77", "078", 77.5, big, big + 1, float(big))]
    )
    assert [each["seen"]["user"] for each in seen["predictions"]] == [
        True,
        True,
        False,
        False,
        True,
        False,
        True,
    ]


def test_questions_and_lines_with_wide_ids_are_as_strict_as_others(server):
    wide = 2**70
    server.learn([{"user": wide, "movie": "wide", "rating": 3}])
    seen = [
        server.http.post("/v1/recommend", json={"given": {"user": user}, "over": "movie"}).json()["seen"]
        for user in (wide, wide + 1)
    ]
    assert seen == [{"user": True}, {"user": False}]
    refused = server.http.post("/v1/recommend", json={"given": {"user": 3}, "over": "movie", "n": wide})
    assert (refused.status_code, refused.json()["error"]["column"]) == (422, "n")
    lines = b'{"user": 1, "movie": "a", "rating": %s}\n{"user": %s, "movie": "%s", "rating": 2}\n'
    for value, text in [(b"NaN", b"a"), (b"1", b"\\ud800")]:
        body = lines % (value, str(wide).encode(), text)
        refused = server.http.post("/v1/learn", content=body, headers={"Content-Type": NDJSON})
        assert (refused.status_code, refused.json()["error"]["kind"]) == (422, "not json"), refused.text


def test_a_recommendation(server):
    answer = server.http.post(
        "/v1/recommend", json={"given": {"user": 3}, "over": "movie", "n": 4, "interval": 0.9}
    ).json()
    assert len(answer["nodes"]) == 4
    assert answer["seen"] == {"user": True}
    means = [each["mean"] for each in answer["nodes"]]
    assert means == sorted(means, reverse=True)
    pair = {"user": 3, "movie": answer["nodes"][0]["id"]}
    assert server.predict([pair])["predictions"][0]["mean"] == pytest.approx(means[0])


def test_the_lowest_of_some_come_first(server):
    body = {"given": {"user": 3}, "over": "movie", "best": "low", "candidates": ["m1", "m2", "m3", "m4"]}
    ranked = server.http.post("/v1/recommend", json=body | {"exclude": ["m2"]}).json()["nodes"]
    assert {each["id"] for each in ranked} == {"m1", "m3", "m4"}
    means = [each["mean"] for each in ranked]
    assert means == sorted(means)


@pytest.mark.parametrize(
    ("body", "column"),
    [
        ({"given": {"user": 3}}, "over"),
        ({"given": {"user": 3}, "over": "user"}, "given"),
        ({"given": {}, "over": "movie"}, "given"),
        ({"given": {"user": [3]}, "over": "movie"}, "given"),
        ({"given": {"user": 3, "x": 1}, "over": "movie"}, "given"),
        ({"given": {"user": 3}, "over": "movie", "n": 0}, "n"),
        ({"given": {"user": 3}, "over": "movie", "n": True}, "n"),
        ({"given": {"user": 3}, "over": "movie", "explore": "max"}, "explore"),
        ({"given": {"user": 3}, "over": "movie", "seed": -1}, "seed"),
        ({"given": {"user": 3}, "over": "movie", "best": "least"}, "best"),
        ({"given": {"user": 3}, "over": "movie", "candidates": "m3"}, "candidates"),
        ({"given": {"user": 3}, "over": "movie", "exclude": [["m3"]]}, "exclude"),
        ({"given": {"user": 3}, "over": "movie", "no": 1}, "no"),
    ],
)
def test_an_impossible_recommendation_is_told_by_its_field(server, body, column):
    answer = server.http.post("/v1/recommend", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["column"] == column


def test_what_is_alike_and_what_a_prediction_is_made_of(server):
    nodes = server.http.post("/v1/similar", json={"mode": "movie", "id": "m3", "n": 4}).json()["nodes"]
    scores = [each["score"] for each in nodes]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 4
    entry = {"user": 3, "movie": nodes[0]["id"]}
    found = server.http.post("/v1/explain", json={"given": entry}).json()
    assert sum(part["effect"] for part in found["parts"]) == pytest.approx(found["mean"], abs=1e-5)
    assert server.predict([entry])["predictions"][0]["mean"] == pytest.approx(found["mean"])
    assert [part["kind"] for part in found["parts"]] == ["level", "bias", "bias", "pair", "network"]


@pytest.mark.parametrize(
    ("path", "body", "column"),
    [
        ("similar", {"mode": "film", "id": 3}, "mode"),
        ("similar", {"mode": "movie", "id": [3]}, "id"),
        ("similar", {"mode": "movie", "id": 3, "n": 0}, "n"),
        ("similar", {"mode": "movie", "id": 3, "no": 1}, "no"),
        ("explain", {"given": {"user": 3}}, "given"),
        ("explain", {"given": {"user": 3, "movie": 3, "x": 1}}, "given"),
        ("explain", {"given": [3, 3]}, "given"),
    ],
)
def test_an_impossible_question_is_told_by_its_field(server, path, body, column):
    answer = server.http.post(f"/v1/{path}", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["column"] == column


def test_a_node_that_is_not_known_is_like_none(server):
    answer = server.http.post("/v1/similar", json={"mode": "movie", "id": "never seen"})
    assert answer.status_code == 422
    assert "never learned" in answer.json()["error"]["message"]


def test_a_model_of_0_and_1(tmp_path, warm_kernels):
    options = ("--model", "b.spider", "--modes", "user,page", "--value", "clicked", "--binary", "--seed", "1")
    with serving(tmp_path, *options, "--committee", "1") as server:
        clicks = [{"user": n % 5, "page": "p", "clicked": n % 5 > 2} for n in range(100)]
        answer = server.learn(clicks)
        assert set(answer["predictions"][0]) == {"probability"}
        low, high = (server.predict([{"user": user, "page": "p"}])["predictions"][0] for user in (0, 4))
        assert low["probability"] < 0.5 < high["probability"]
        assert server.learn([{"user": 1, "page": "p", "clicked": 2}], expect=422)["error"]["kind"] == "value"
        assert server.predict(clicks[:1], expect=422, query="?interval=0.9")["error"]["kind"] == "interval"
        told = server.get("/v1/model")
        assert told["metric"] == "log_loss"
        assert 0 < told["error"] < 0.69


def test_the_model_tells_about_itself_and_can_be_downloaded(server, tmp_path):
    told = server.get("/v1/model")
    assert set(told["nodes"]) == {"user", "movie"}
    assert sum(each["weight"] for each in told["members"]) == pytest.approx(1)
    assert told["error"] > 0
    assert told["floor_mean"] > 0
    file = server.http.get("/v1/model/file")
    (tmp_path / "copy.spider").write_bytes(file.content)
    assert spidertensor.load(tmp_path / "copy.spider").n_entries_ == told["entries"]
    assert server.http.post("/v1/checkpoint").json()["entries"] == told["entries"]
    assert server.get("/v1/model")["saved_position"] == server.get("/v1/model")["position"]


def test_metrics_are_those_of_the_snapshots_and_count_requests(server):
    def number(name: str) -> float:
        text = server.http.get("/metrics").text
        return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)[1])

    before = number('spider_requests_total{path="/v1/learn",status="422"}') if _has_422(server) else 0
    server.learn([{"user": 1}], expect=422)
    server.http.get("/../../etc/passwd")
    assert number('spider_requests_total{path="/v1/learn",status="422"}') == before + 1
    assert number('spider_requests_total{path="other",status="404"}') >= 1
    assert number("spider_bad_rows_total") >= 1
    time.sleep(1.5)  # a snapshot is taken once a second
    assert number("spider_entries_total") == server.entries()
    assert number('spider_nodes{mode="movie"}') == server.get("/v1/model")["nodes"]["movie"]
    assert number('spider_floor_error{floor="biases"}') > 0


def _has_422(server: Server) -> bool:
    return 'path="/v1/learn",status="422"' in server.http.get("/metrics").text


def test_events_have_the_history_and_then_move(server):
    events = []
    with httpx.stream("GET", f"{server.url}/v1/events", timeout=30) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in stream.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                events.append((name, json.loads(line[6:])))
                if len(events) == 2:
                    strange = {"user": "<b>x</b>", "movie": "strange", "rating": 900.0}
                    server.learn([*rows(5, seed=9), strange])
                if len(events) == 4:
                    break
    assert [name for name, _ in events] == ["history", "snapshot", "snapshot", "snapshot"]
    history, first, _, last = (data for _, data in events)
    described = openapi.DESCRIPTION["components"]["schemas"]
    assert set(history) == set(described["History"]["properties"])
    assert set(first) == set(described["Snapshot"]["properties"])
    assert len({len(column) for column in history.values()}) == 1
    assert last["entries"] == first["entries"] + 6
    assert last["surprises"][0]["ids"] == ["<b>x</b>", "strange"]
    assert last["surprises"][0]["value"] == 900.0
    assert last["surprises"][0]["z"] > 4
    assert last["modes"] == ["user", "movie"]
    assert len(last["members"]) == 2


def test_the_description_has_every_route_and_no_other(server):
    described = server.get("/openapi.json")
    assert described == json.loads(json.dumps(openapi.DESCRIPTION))
    for path, operations in described["paths"].items():
        for method in ("get", "post"):
            answer = server.http.request(method, path) if path != "/v1/events" else None
            if answer is not None:
                assert (answer.status_code == 405) == (method not in operations), (path, method)


def test_the_page_is_served_with_a_strict_policy(server):
    page = server.http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    for answer in (page, server.http.get("/v1/model"), server.http.get("/nothing")):
        for name, text in HEADERS.items():
            assert answer.headers[name] == text
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers


# --- what it refuses


@pytest.mark.parametrize(
    ("row", "kind", "column", "value"),
    [
        ({"movie": "m1", "rating": 3}, "missing", "user", None),
        ({"user": None, "movie": "m1", "rating": 3}, "missing", "user", None),
        ({"user": [1], "movie": "m1", "rating": 3}, "id", "user", "[1]"),
        ({"user": 1, "movie": {"a": 1}, "rating": 3}, "id", "movie", "{'a': 1}"),
        ({"user": 1, "movie": "m" * 1001, "rating": 3}, "id", "movie", "m" * 200),
        ({"user": 1, "movie": "m1", "rating": "3"}, "value", "rating", "3"),
        ({"user": 1, "movie": "m1"}, "missing", "rating", None),
        ({"user": 1, "movie": "m1", "rating": 10**400}, "value", "rating", None),
        ({"user": 1, "movie": "m1", "rating": 1e300}, "too far", "rating", 1e300),
        (5, "not an object", None, 5),
    ],
)
def test_a_bad_row_is_named_and_nothing_of_its_request_is_learned(server, row, kind, column, value):
    before = server.entries()
    answer = server.http.post(
        "/v1/learn", content=json.dumps([*rows(3), row]), headers={"content-type": "application/json"}
    )
    if row == {"user": 1, "movie": "m1", "rating": 10**400}:  # orjson calls the whole body no JSON
        assert answer.status_code == 400
        return
    assert answer.status_code == 422, answer.text
    error = answer.json()["error"]
    assert (error["kind"], error["row"], error["column"], error["value"]) == (kind, 3, column, value)
    assert error["message"]
    assert server.entries() == before


def test_refusals_of_most_rows_are_an_alarm_until_they_are_not(tmp_path, warm_kernels):
    with serving(tmp_path, "--model", "m.spider", *RATINGS) as server:
        server.learn(rows(2))
        far = [each | {"rating": 1e20} for each in rows(30)]

        def alarms() -> dict[str, str]:
            return {each["kind"]: each["text"] for each in server.get("/v1/model")["alarms"]}

        def until(wanted: bool) -> dict[str, str]:
            end = time.monotonic() + PATIENCE
            while ("refused" in alarms()) != wanted:
                assert time.monotonic() < end, alarms()
                time.sleep(0.1)
            return alarms()

        server.learn(far, expect=422)
        assert "94% of the latest rows to learn were refused: value 1e+20 is more" in until(True)["refused"]
        server.learn(rows(60))
        until(False)
        assert server.learn(far[:20] + rows(1) + far[:20], path="/v1/learn?on_bad=skip")["learned"] == 1
        assert server.learn([*far, *far], path="/v1/learn?on_bad=skip")["learned"] == 0
        until(True)


def test_nodes_are_bounded_and_a_kill_changes_nothing(tmp_path, warm_kernels):
    with serving(tmp_path, "--model", "m.spider", *RATINGS, "--max-nodes", "7,none") as server:
        for n in range(10):
            server.learn([each | {"user": f"{n} {each['user']}"} for each in rows(20, n)])
        before = server.get("/v1/model")["nodes"]
        assert before["user"] == 7
        assert before["movie"] > 7
        server.stop(9)
    with serving(tmp_path, "--model", "m.spider") as server:
        assert server.get("/v1/model")["nodes"] == before


def test_bad_rows_can_be_skipped_and_are_listed(server):
    before = server.entries()
    mixed = [{"user": 1}, *rows(2), {"user": 1, "movie": "m1", "rating": 1e300}, 7, *rows(1)]
    answer = server.learn(mixed, path="/v1/learn?on_bad=skip")
    assert answer["learned"] == 3
    assert [each["row"] for each in answer["skipped"]] == [0, 4, 3]
    assert [each is None for each in answer["predictions"]] == [True, False, False, True, True, False]
    assert server.entries() == before + 3
    asked = server.predict([{"user": 1}, *rows(1)], query="?on_bad=skip")
    assert asked["predictions"][0] is None
    assert asked["predictions"][1]["mean"]


@pytest.mark.parametrize(
    ("content", "headers", "status", "kind"),
    [
        (b"[", {"content-type": "application/json"}, 400, "not json"),
        (b"{}", {"content-type": "application/json"}, 400, "not a list"),
        (b"[" * 100_000, {"content-type": "application/json"}, 400, "not json"),
        (b"[]", {"content-type": "text/plain"}, 415, "media type"),
        (b"[]", {}, 415, "media type"),
        (b"[]", {"content-type": "application/json", "content-encoding": "gzip"}, 415, "compressed"),
        (b"nonsense", {"content-type": ARROW}, 400, "not arrow"),
        (b"{}\nnonsense", {"content-type": NDJSON}, 422, "missing"),
        (b"[]", {"content-type": "application/json", "idempotency-key": "x" * 256}, 400, "key"),
        (json.dumps([{}] * 10_001), {"content-type": "application/json"}, 413, "too many rows"),
    ],
)
def test_a_body_that_is_none_is_refused(server, content, headers, status, kind):
    before = server.entries()
    answer = server.http.post("/v1/learn", content=content, headers=headers)
    assert (answer.status_code, answer.json()["error"]["kind"]) == (status, kind)
    assert server.entries() == before


def test_hostile_arrow_streams_are_refused(server):
    table = pa.table({"user": [1, 2], "movie": ["a", "b"], "rating": [1.0, 2.0]})
    long = pa.array(["m" * 5000]).dictionary_encode()
    cases = {
        "compressed": arrow(table, compression="zstd"),
        "id": arrow(
            table.set_column(1, "movie", pa.DictionaryArray.from_arrays(pa.array([0, 0]), long.dictionary))
        ),
        "type": arrow(table.set_column(0, "user", pa.array([[1], [2]]))),
        "column": arrow(table.select(["user", "rating"])),
        "missing": arrow(table.set_column(0, "user", pa.array([1, None]))),
        "value": arrow(table.set_column(2, "rating", pa.array(["1", "2"]))),
    }
    for kind, body in cases.items():
        answer = server.http.post("/v1/learn", content=body, headers={"content-type": ARROW})
        assert answer.json()["error"]["kind"] == kind, (kind, answer.text)
    whole = arrow(table)
    for end in range(0, len(whole) - 8, 37):
        answer = server.http.post("/v1/learn", content=whole[:end], headers={"content-type": ARROW})
        assert answer.status_code in (400, 422), (end, answer.text)


def test_a_repeated_request_is_learned_once(server):
    before = server.entries()
    first = server.learn(rows(4, seed=3), idempotency_key="one")
    again = server.learn(rows(4, seed=3), idempotency_key="one")
    assert again == first | {"repeated": True}
    assert server.entries() == before + 4
    other = server.learn(rows(4, seed=4), expect=422, idempotency_key="one")
    assert other["error"]["kind"] == "key"
    server.learn([{"user": 1}], expect=422, idempotency_key="two")  # nothing was learned, so nothing is known
    server.learn(rows(1), idempotency_key="two")
    assert server.entries() == before + 5


# --- who may ask


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, warm_kernels):
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "token").write_text(f"{TOKEN}\n")
    options = (
        "--token-file",
        "token",
        "--max-rows",
        "50",
        "--max-body",
        "20000",
        "--allow-origin",
        "https://a.example",
    )
    with serving(folder, "--model", "m.spider", *RATINGS, *options) as server:
        yield server


def test_a_token_is_needed_for_everything_but_health(guarded):
    for path in [*openapi.DESCRIPTION["paths"], "/"]:
        method = "POST" if "post" in openapi.DESCRIPTION["paths"].get(path, {}) else "GET"
        answer = guarded.http.request(method, path)
        assert (answer.status_code == 401) == (not path.startswith("/health")), path
    for given in (f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", "Basic ?", TOKEN):
        assert guarded.http.get("/v1/model", headers={"Authorization": given}).status_code == 401
    assert "Basic" in guarded.http.get("/").headers["www-authenticate"]
    guarded.http.headers["Authorization"] = f"Bearer {TOKEN}"
    assert guarded.get("/v1/model")["entries"] == 0
    basic = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
    assert guarded.http.get("/", headers={"Authorization": f"Basic {basic}"}).status_code == 200


def test_limits_of_a_request(guarded):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    guarded.http.headers.update(headers)
    assert guarded.learn(rows(51), expect=413)["error"]["kind"] == "too many rows"
    guarded.learn(rows(50))
    long = [row | {"more": "x" * 500} for row in rows(50)]
    assert guarded.learn(long, expect=413)["error"]["kind"] == "too large"

    def parts():
        for _ in range(50):
            yield b" " * 1000

    answer = guarded.http.post("/v1/learn", content=parts(), headers={"content-type": "application/json"})
    assert answer.status_code == 413  # without a Content-Length
    assert guarded.entries() == 50


def test_pages_of_other_origins_are_refused_unless_they_are_allowed(guarded, server):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    allowed = guarded.http.get("/v1/model", headers=headers | {"Origin": "https://a.example"})
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    refused = guarded.http.get("/v1/model", headers=headers | {"Origin": "https://b.example"})
    assert refused.status_code == 403
    assert server.http.post("/v1/checkpoint", headers={"Origin": "https://a.example"}).status_code == 403
    assert server.http.get("/v1/model", headers={"Origin": server.url}).status_code == 200
    rebound = server.http.get("/v1/model", headers={"Host": "evil.example:8080"})
    assert (rebound.status_code, rebound.json()["error"]["kind"]) == (403, "host")


def test_the_command_refuses_what_cannot_work(tmp_path, fails, monkeypatch, warm_kernels):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("short")
    SpiderRegressor(committee=1).partial_fit([[1, 2]] * 3, [1.0, 2.0, 3.0]).save(tmp_path / "unnamed.spider")
    binned = SpiderRegressor(committee=1).partial_fit([[1, 2]] * 3, [1.0, 2.0, 3.0])
    binned.save(tmp_path / "binned.spider", {"value": "v", "bins": [{"rule": "width:1"}, None]})
    labelled = SpiderClassifier(committee=1).partial_fit([[1, 2]] * 3, ["no", "yes", "no"])
    labelled.save(tmp_path / "labelled.spider", {"value": "v"})
    half = SpiderRegressor(committee=1).partial_fit(Columns([[1, 1], [2, 2]], ("a\ud83d", "b")), [1.0, 2.0])
    half.save(tmp_path / "half.spider", {"value": "v"})
    cases = [
        (("--model", "m.spider", *RATINGS, "--labels", "no,yes"), "--labels is for --binary"),
        (
            ("--model", "labelled.spider", "--binary", "--labels", "yes,no"),
            "has labels 'no,yes', the command says 'yes,no'",
        ),
        (("--follow", "labelled.spider", "--binary", "--labels", "no,yes"), "--follow takes modes, value"),
        (("--model", "binned.spider"), "has binned modes, which cannot be served"),
        (("--follow", "binned.spider"), "has binned modes, which cannot be served"),
        (("--model", "m.spider"), "a new one needs --modes and --value"),
        ((), "use one of --model, --follow and --demo"),
        (("--model", "m.spider", *RATINGS, "--host", "0.0.0.0"), "set a token with --token-file"),
        (("--model", "m.spider", *RATINGS, "--token-file", "short"), "a token is one line of 16"),
        (("--model", "m.spider", *RATINGS, "--token-file", "none"), "none: No such file"),
        (("--model", "m.spider", "--modes", "a,a", "--value", "v"), "named twice"),
        (("--model", "m.spider", *RATINGS, "--checkpoint-every", "often"), "30s, 5m, 1h or never"),
        (("--model", "none/m.spider", *RATINGS), "its folder must exist"),
        (("--follow", "none.spider"), "none.spider: No such file"),
        (("--model", "unnamed.spider"), "does not name the value column"),
        (("--model", "unnamed.spider", "--value", "v", "--modes", "a,b"), "has modes"),
        (("--model", "m.spider", *RATINGS, "--max-nodes", "many"), "--max-nodes takes a number"),
        (("--model", "m.spider", *RATINGS, "--scaling", "0,0"), "--scaling takes two numbers"),
        (("--model", "m.spider", *RATINGS, "--scaling", "nan,1"), "--scaling takes two numbers"),
        (
            ("--model", "m.spider", "--modes", "a,b\udcff", "--value", "v"),
            "is not valid text and cannot be sent",
        ),
        (
            ("--follow", "half.spider"),
            "half.spider: the name 'a\\ud83d' is not valid text and cannot be sent",
        ),
    ]
    for options, text in cases:
        assert text in fails("serve", *options, "--port", "0"), options


def test_a_model_file_whose_name_is_not_text(tmp_path):
    name = b"k\xff.spider".decode(errors="surrogateescape")
    with serving(tmp_path, "--model", name, *RATINGS) as server:
        server.learn(rows(20))
        assert server.get("/v1/model")["model"] == "k?.spider"
        assert server.http.post("/v1/checkpoint").status_code == 200
        with serving(tmp_path, "--follow", name) as follower:
            assert follower.get("/v1/model")["model"] == "k?.spider"
            (tmp_path / name).write_bytes(b"no model")
            end = time.monotonic() + PATIENCE
            while not (alarms := follower.get("/v1/model")["alarms"]):
                assert time.monotonic() < end
                time.sleep(0.05)
            assert alarms[0]["text"].startswith("k?.spider")
            assert follower.http.get("/metrics").status_code == 200
        assert server.stop() == 0


# --- others do not suffer


def test_slow_clients_and_huge_bodies_do_not_stop_others(server):
    slow = []
    for _ in range(20):
        at = socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
        at.sendall(b"POST /v1/learn HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        at.sendall(b"Content-Length: 1000\r\n\r\n[")
        slow.append(at)
    huge = json.dumps([*rows(2), {"user": 1, "movie": "m1", "more": "x" * 7_000_000}]).encode()
    answers: list[int] = []

    def send() -> None:
        headers = {"content-type": "application/json"}
        answers.append(
            httpx.post(f"{server.url}/v1/learn", content=huge, headers=headers, timeout=60).status_code
        )

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(5):
        server.learn(rows(1, seed=number))
        server.predict(rows(1))
    for thread in threads:
        thread.join()
    assert set(answers) <= {422, 429}
    for at in slow:
        at.close()
    server.predict(rows(1))


def test_stalled_bodies_that_fill_the_memory_stop_nobody(server):
    """Eight of the largest size, each without its last byte."""
    largest = 8 << 20
    stalled = []
    for _ in range(8):
        at = socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
        at.sendall(b"POST /v1/learn HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        at.sendall(b"Content-Length: %d\r\n\r\n" % largest + b" " * (largest - 1))
        stalled.append(at)
    for number in range(3):
        server.learn(rows(5, seed=number))
        server.predict(rows(5))
    for at in stalled:
        at.close()


def test_a_full_queue_is_told(tmp_path, warm_kernels):
    with serving(tmp_path, "--model", "m.spider", *RATINGS, "--max-queue", "1") as server:
        server.learn(rows(100))
        codes: list[tuple[int, str]] = []

        def send(seed: int) -> None:
            answer = httpx.post(f"{server.url}/v1/learn", json=rows(2000, seed), timeout=60)
            codes.append((answer.status_code, answer.headers.get("retry-after", "")))

        threads = [threading.Thread(target=send, args=(seed,)) for seed in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {code for code, _ in codes} == {200, 429}
        assert {wait for code, wait in codes if code == 429} == {"1"}
        assert server.entries() == 100 + 2000 * sum(code == 200 for code, _ in codes)
