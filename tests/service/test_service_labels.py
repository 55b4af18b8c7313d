"""Labels other than 0 and 1 behind the service."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pytest

pytest.importorskip("starlette")


from serving import ARROW, serving
from spidertensor import SpiderClassifier, load

MODEL = ("--model", "m.spider", "--modes", "user,app", "--value", "opened", "--binary", "--labels", "no,yes")
SMALL = ("--committee", "1", "--seed", "1")


def answers(n: int) -> list[dict]:
    return [
        {"user": k % 5, "app": f"a{k % 3}", "opened": "yes" if (k % 5 + k % 3) % 2 else "no"}
        for k in range(n)
    ]


def probabilities(server) -> list[float]:
    asked = [{"user": user, "app": "a1"} for user in range(5)]
    return [each["probability"] for each in server.predict(asked)["predictions"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, warm_kernels):
    return tmp_path_factory.mktemp("labels")


def test_labels_are_learned_kept_by_the_journal_and_followed(folder):
    with serving(folder, *MODEL, *SMALL) as server:
        assert server.get("/v1/model")["labels"] == ["no", "yes"]
        server.learn(answers(60))
        wrong = [*answers(2), {"user": 1, "app": "a1", "opened": "maybe"}]
        error = server.learn(wrong, expect=422)["error"]
        assert (error["row"], error["column"], error["value"]) == (2, "opened", "maybe")
        assert error["message"] == "opened 'maybe' is not 'no' or 'yes'"
        error = server.learn([{"user": 1, "app": "a1", "opened": 1}], expect=422)["error"]
        assert error["message"] == "opened 1 is not 'no' or 'yes'"
        before = probabilities(server)
        server.stop(9)  # before any checkpoint: the labels are in the journal
    with serving(folder, "--model", "m.spider") as server:
        assert server.get("/v1/model")["labels"] == ["no", "yes"]
        assert probabilities(server) == before
        server.learn(answers(3))
        server.http.post("/v1/checkpoint")
        with serving(folder, "--follow", "m.spider") as follower:
            assert follower.get("/v1/model")["labels"] == ["no", "yes"]
            assert probabilities(follower) == probabilities(server)
        server.stop()
    model = load(folder / "m.spider")
    assert isinstance(model, SpiderClassifier)
    assert list(model.classes_) == ["no", "yes"]
    X = [(each["user"], each["app"]) for each in answers(63)]
    y = [each["opened"] for each in answers(63)]
    python = SpiderClassifier(committee=1, random_state=1)
    python.learn(X[:60], y[:60], classes=["no", "yes"])
    python.learn(X[60:], y[60:])
    assert (model.predict_proba(X[:9]) == python.predict_proba(X[:9])).all()


def test_labels_in_arrow_and_as_numbers(tmp_path, warm_kernels):
    model = ("--model", "m.spider", "--modes", "user,app", "--value", "side", "--binary", "--labels", "1,2")
    with serving(tmp_path, *model, *SMALL) as server:
        table = pa.table({"user": [1, 2, 3], "app": ["a", "b", "a"], "side": [1, 2, 1]})
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        answer = server.http.post("/v1/learn", content=sink.getvalue(), headers={"content-type": ARROW})
        assert answer.json()["learned"] == 3
        rows = [{"user": 1, "app": "a", "side": "1"}, {"user": 1, "app": "a", "side": 2.0}]
        assert server.learn(rows)["learned"] == 2
        assert server.get("/v1/model")["labels"] == [1, 2]
        refused = server.learn([{"user": 1, "app": "a", "side": 0}], expect=422)
        assert refused["error"]["message"] == "side 0 is not '1' or '2'"


def test_a_model_with_labels_is_served_as_it_was_fitted(tmp_path, spider, monkeypatch, warm_kernels):
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps(each) for each in answers(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    fit = ("fit", "a.jsonl", "--model", "m.spider", "--modes", "user,app", "--value", "opened")
    assert spider(*fit, "--binary", "--labels", "no,yes", *SMALL)[0] == 0
    with serving(tmp_path, "--model", "m.spider") as server:
        assert server.get("/v1/model")["entries"] == 40
        server.learn(answers(10))
        server.stop()
    assert load(tmp_path / "m.spider").n_entries_ == 50
    code, _, error = spider("serve", "--model", "m.spider", "--binary", "--labels", "yes,no", "--port", "0")
    assert code == 2
    assert "no,yes" in error
