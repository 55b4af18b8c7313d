"""Faults that a reader of the whole found, where features that were written apart meet."""

from __future__ import annotations

import sqlite3
import warnings

import numpy as np
import pytest

pytest.importorskip("starlette")


from serving import RATINGS, rows, serving
from spidertensor import EntryError, SpiderClassifier, SpiderRegressor
from spidertensor.service.answers import Answer, Answers
from spidertensor.service.following import Following

SMALL = {"rank": 2, "hidden": (4,), "committee": 1}


@pytest.mark.slow
def test_a_server_knows_its_keys_and_its_journal_after_spider_fit(
    tmp_path, spider, monkeypatch, warm_kernels
):
    monkeypatch.chdir(tmp_path)
    more = "user,movie,rating\n" + "".join(f"{n % 9},m{n % 7},{n % 5}\n" for n in range(60))
    (tmp_path / "more.csv").write_text(more)
    with serving(tmp_path, "--model", "m.spider", *RATINGS) as server:
        server.learn(rows(40), Idempotency_Key="one")
        server.http.post("/v1/checkpoint")
        server.learn(rows(5, seed=1), Idempotency_Key="two")
        server.stop(9)  # the second is in the journal alone
    add = ("fit", "more.csv", "--model", "m.spider", "--add", "--value", "rating")
    code, _, error = spider(*add)
    assert code == 2
    assert "start and stop spider serve" in error
    with serving(tmp_path, "--model", "m.spider") as server:
        server.stop()
    assert spider(*add)[0] == 0
    with serving(tmp_path, "--model", "m.spider") as server:
        assert server.get("/v1/model")["entries"] == 40 + 60 + 5
        assert server.learn(rows(40), Idempotency_Key="one")["repeated"]
        assert server.learn(rows(5, seed=1), Idempotency_Key="two")["repeated"]
        for odd in ({"Origin": "http://["}, {"Host": "["}):
            assert server.http.get("/v1/model", headers=odd).status_code == 403


def test_a_follower_goes_on_when_the_model_becomes_one_that_is_not_served(tmp_path):
    path = tmp_path / "m.spider"
    X = [(n % 4, n % 3) for n in range(20)]
    SpiderClassifier(**SMALL).fit(X, [n % 2 for n in range(20)]).save(path, {"value": "v"})
    following = Following(path)
    before = following.learner.estimator
    bins = {"value": "v", "bins": [{"rule": "width:1"}, None]}
    SpiderClassifier(**SMALL).fit(X, [n % 2 for n in range(20)]).save(path, bins)
    following.tick()
    assert following.reader is not None
    following.reader.join()
    following.tick()
    assert following.learner.estimator is before
    assert "has binned modes" in following.trouble["checkpoint"]


def test_answers_are_not_deleted_because_they_cannot_be_opened_now(tmp_path):
    path = tmp_path / "m.answers"
    answer = Answer(1, b"digest", b"body")
    answers = Answers(path, "id", 1)
    answers.add("key", answer)
    answers.write()
    answers._file.close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("pragma locking_mode = exclusive")
    other.execute("begin exclusive")
    with pytest.raises(sqlite3.OperationalError):
        Answers(path, "id", 1).open()
    other.close()
    assert Answers(path, "id", 1).find("key") == answer


def test_a_few_new_integers_are_not_taken_for_another_order_of_the_columns():
    model = SpiderRegressor(scaling=(0, 1), **SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for ids in [(1, 2), (3, 4)]:
            model.learn_one(ids, 1.0)
        model.predict_one((2, 7))
        model.predict_one((2, 1))


def test_ids_by_name_need_names():
    model = SpiderRegressor(scaling=(0, 1), **SMALL)
    model.learn([("anna", "alien")], [1.0])
    for ask in (lambda ids: model.learn_one(ids, 1.0), model.predict_one):
        with pytest.raises(EntryError, match="has learned no names"):
            ask({"movie": "alien", "user": "anna"})
    assert model.n_nodes_ == (1, 1)


@pytest.mark.parametrize("explore", ["mean", "ucb", "thompson"])
def test_a_mode_whose_nodes_are_all_forgotten_can_be_given(explore):
    X = np.array([(n % 4, n % 3) for n in range(40)])
    model = SpiderRegressor(**SMALL).fit(X, np.sin(np.arange(40)))
    model.forget(0, [0, 1, 2, 3])
    found = model.recommend({0: 1}, over=1, n=3, explore=explore, seed=0)
    assert {each.id for each in found} == {0, 1, 2}
