"""The journal of a model that has learned nothing: it cannot be saved, and yet it is bounded."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("orjson")

from serving import rows
from spidertensor.estimator.columns import Schema
from spidertensor.service import attributes
from spidertensor.service.bodies import JSON, entries
from spidertensor.service.errors import ServiceError
from spidertensor.service.journaled import JournaledLearner
from spidertensor.service.opening import NewModel, opened
from spidertensor.service.requests import Request
from spidertensor.service.served import UNLIMITED, wanted_to_learn

pytestmark = pytest.mark.usefixtures("warm_kernels")


def request(served: JournaledLearner, of: list[dict]) -> Request:
    body = json.dumps(of).encode()
    return Request(entries(body, JSON, wanted_to_learn(served.learner)), body, JSON)


def test_refused_requests_are_not_kept(tmp_path):
    path = tmp_path / "m.spider"
    served = opened(path, NewModel("SpiderRegressor", ["user", "movie"], "rating", {"random_state": 1}))
    too_large = [each | {"rating": 1e300} for each in rows(2000)]
    largest = 0
    for _ in range(40):
        assert isinstance(served.learn([request(served, too_large)])[0], ServiceError)
        served.tick()
        largest = max(largest, served.journal.bytes)
    assert 2**20 - 200_000 < largest < 2**20 + 200_000
    served.learn([request(served, rows(3))])
    _killed(served)
    again = opened(path, None)
    again.replay()
    assert again.learner.entries == 3
    again.close()


def _killed(served: JournaledLearner) -> None:
    for file in (served.journal, served.answers, served.forecasts):
        file.close()


def test_descriptions_are_kept_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("spidertensor.service.journaled.DESCRIBED_BYTES", 10_000)
    monkeypatch.setattr("spidertensor.service.journaled.REFUSED_BYTES", 1_000)
    path = tmp_path / "m.spider"
    schema = Schema.parse({"user": ["age"], "movie": []})
    served = opened(
        path, NewModel("SpiderRegressor", ["user", "movie"], "rating", {"random_state": 1}, schema.to_json())
    )
    body = json.dumps([{"user": n, "age": 20 + n % 50} for n in range(100)]).encode()
    found = attributes.table(body, JSON, served.learner, "user", UNLIMITED)
    whole = Request(found, attributes.packed(body, JSON, "user"), attributes.ATTRIBUTES, mode="user")
    outcomes = []
    for _ in range(10):
        outcomes += served.learn([whole])
        served.tick()
    good = [each for each in outcomes if isinstance(each, bytes)]
    assert 1 < len(good) < 10
    assert "full of descriptions" in outcomes[-1].reason
    assert isinstance(served.learn([request(served, rows(3))])[0], bytes)
    assert isinstance(served.learn([whole])[0], bytes)
    served.close()
    assert path.exists()
