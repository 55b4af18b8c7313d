"""Requests with attributes, in the thread that owns the model: new models, replays, cells of any kind."""

from __future__ import annotations

import json
import warnings
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette")

from spidertensor.estimator.columns import Calendar, Context, Cross, Many, Number, Recent, Schema
from spidertensor.service import attributes
from spidertensor.service.bodies import JSON, BodyFields, entries
from spidertensor.service.errors import ServiceError
from spidertensor.service.from_stream import packed, unpacked
from spidertensor.service.journaled import JournaledLearner
from spidertensor.service.opening import NewModel, opened
from spidertensor.service.requests import Request
from spidertensor.service.served import UNLIMITED, wanted_to_learn
from spidertensor.sources import Chunk
from spidertensor.spider.likelihoods import GAUSSIAN

pytestmark = pytest.mark.usefixtures("warm_kernels")
SETTINGS = {"random_state": 1, "committee": 1, "rank": 2, "hidden": [4], "scaling": [0.0, 1.0]}


def new(modes: dict[str, Any]) -> NewModel:
    schema = Schema.parse(modes)
    return NewModel("SpiderRegressor", list(schema.names), "rating", SETTINGS, schema.to_json())


def to_learn(served: JournaledLearner, *rows: dict[str, Any], skip: bool = False) -> Request:
    body = json.dumps(rows).encode()
    return Request(entries(body, JSON, wanted_to_learn(served.learner)), body, JSON, skip)


def to_describe(served: JournaledLearner, mode: str, *rows: dict[str, Any]) -> Request:
    body = json.dumps(rows).encode()
    found = attributes.table(body, JSON, served.learner, mode, UNLIMITED)
    return Request(found, attributes.packed(body, JSON, mode), attributes.ATTRIBUTES, mode=mode)


def after_a_kill(served: JournaledLearner, path: Path) -> JournaledLearner:
    served.journal.close()
    served.answers.close()
    again = opened(path, None)
    again.replay()
    return again


def test_a_new_model_is_described_before_its_first_entry_and_comes_back_from_its_journal(tmp_path):
    path = tmp_path / "m.spider"
    served = opened(path, new({"user": ["age"], "movie": ["genres"], "when": Context("hour")}))
    served.warm_up()
    outcomes = served.learn(
        [
            to_describe(served, "movie", {"movie": "a", "genres": ["war"]}, {"movie": "b", "genres": []}),
            to_describe(served, "user", {"user": 1, "age": 31.5}, {"user": 2, "age": 32.5}),
            to_describe(served, "user", {"user": 3, "age": "old"}),
            to_learn(served, {"user": 1, "movie": "a", "hour": 3, "rating": 1.0}),
            to_describe(served, "movie", {"movie": "only described", "genres": ["war"]}),
            to_learn(served, {"user": 2, "movie": "a", "rating": 2.0}),
            to_learn(served, {"user": 2, "movie": "c", "age": 40, "genres": ["war"], "rating": 0.5}),
        ]
    )
    assert [isinstance(each, ServiceError) for each in outcomes] == [False, False, True, *[False] * 4]
    refused = outcomes[2]
    assert isinstance(refused, ServiceError)
    assert refused.body()["error"]["column"] == "age"
    asked = {"user": [1, 2, 9], "movie": ["a", "b", "only described"]}
    expected = served.learner.estimator.predict(asked)
    again = after_a_kill(served, path)
    assert again.learner.modes == ["user", "movie", "when"]
    assert again.learner.estimator.predict(asked).tolist() == expected.tolist()
    again.close()
    saved = opened(path, None)
    assert saved.learner.estimator.predict(asked).tolist() == expected.tolist()
    assert saved.learner.kinds == {"age": "number", "genres": "many", "hour": "value"}
    saved.close()


def objects(*cells: Any) -> np.ndarray:
    return np.fromiter(cells, object, len(cells))


def test_attributes_of_messages_come_back_from_the_journal():
    """With their types; missing ones are left out, and what JSON cannot write makes a message bad."""
    cells = {
        "age": np.array([31.5, np.nan, np.inf, 7.0]),
        "tags": objects(["a", "b"], None, {"a": 0.5}, {"x": 2**70, "y": 1}),
        "time": np.array(["2024-05-31T18:30:00", "NaT", "2024-05-31", "2024-06-01"], "M8[s]"),
    }
    chunk = Chunk(
        [np.arange(4), objects("m", "n", "o", "p")], np.array([1.0, 2.0, 3.0, 4.0]), np.arange(1, 5), [], 4,
        None, place="at {}".format, attributes=cells,
    )  # fmt: skip
    wanted = BodyFields(["user", "movie"], "rating", GAUSSIAN, 10, attributes=["age", "tags", "time", "city"])
    found, messages = unpacked(packed(chunk, wanted.columns, {"row": 4}, texts=True), wanted)
    assert (messages.rows, messages.texts, messages.place) == ([1, 2, 4], True, {"row": 4})
    assert [(bad.row, bad.reason, where) for bad, where in messages.bad] == [(3, "age is infinite", "at 3")]
    assert found.columns[0].tolist() == [0, 1, 3]
    assert found.values.tolist() == [1.0, 2.0, 4.0]
    assert found.given.keys() == {"age", "tags", "time"}
    assert found.given["age"].tolist() == [31.5, None, 7.0]
    assert found.given["tags"].tolist()[:2] == [["a", "b"], None]
    assert found.given["tags"][2]["y"] == 1
    times = [each and datetime.fromisoformat(each) for each in found.given["time"]]
    assert times == [datetime(2024, 5, 31, 18, 30), None, datetime(2024, 6, 1)]


@pytest.mark.parametrize("cell", ["\ud800", ["a", "\ud800"], {"\ud800": 1.0}])
def test_text_that_is_not_unicode_makes_a_message_bad(cell):
    ids, cells = [np.arange(2)], {"tags": objects("a", cell)}
    chunk = Chunk(ids, np.ones(2), np.arange(1, 3), [], 2, None, place=str, attributes=cells)
    wanted = BodyFields(["user"], "rating", GAUSSIAN, 10, attributes=["tags"])
    found, messages = unpacked(packed(chunk, wanted.columns, {}), wanted)
    assert (messages.rows, found.given["tags"].tolist()) == ([1], ["a"])
    assert [(bad.row, bad.reason) for bad, _ in messages.bad] == [(2, "text that is not Unicode")]


plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
)
plain |= st.sampled_from(["2024-05-31", "2024-05-31T18:30", "a|b", 3, 4.5, "f"])
cells = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)
ids = st.integers(0, 3) | st.sampled_from(["a", "b"])
row = st.fixed_dictionaries({"user": ids, "movie": ids, "rating": st.floats(-3, 3)}).flatmap(
    lambda own: st.dictionaries(st.sampled_from("abcdefg"), cells, max_size=4).map(lambda more: own | more)
)
MODES = {
    "user": ["a", Number("b"), Recent("movie", 2)],
    "movie": [Many("c", sep="|"), "d", Cross("a", "user")],
    "when": Context("e", Calendar("f"), Cross("g", "movie")),
}


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(st.tuples(st.sampled_from(["learn", "skip", "user", "movie"]), st.lists(row, max_size=4)))
)
def test_cells_of_any_kind_are_learned_or_refused_and_replayed(tmp_path_factory, parts):
    """An exception here would end the server, and each start after it."""
    path = tmp_path_factory.mktemp("any") / "m.spider"
    served = opened(path, new(MODES))
    first = to_learn(served, {"user": 0, "movie": 0, "rating": 1.0})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        served.learn([first])
        for what, rows in parts:
            try:
                if what in ("user", "movie"):
                    request = to_describe(served, what, *rows)
                else:
                    request = to_learn(served, *rows, skip=what == "skip")
            except ServiceError:
                continue
            for outcome in served.learn([request, first, request]):
                assert isinstance(outcome, bytes) or 400 <= outcome.status < 500
        asked = {"user": [0, 1, "a"], "movie": [0, "b", 2]}
        expected = served.learner.estimator.predict(asked).tolist()
        again = after_a_kill(served, path)
        assert again.learner.estimator.predict(asked).tolist() == expected
        again.close()
        saved = opened(path, None)
        assert saved.learner.estimator.predict(asked).tolist() == expected
        saved.close()
