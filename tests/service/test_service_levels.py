"""Ordered levels behind the service."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

pytest.importorskip("starlette")

from serving import serving
from spidertensor import SpiderRegressor, load
from spidertensor.cli import app

MODEL = (
    "--model", "m.spider", "--modes", "user,movie", "--value", "stars", "--levels", "3,1,2", "--seed", "1",
    "--committee", "2",
)  # fmt: skip
ROWS = [{"user": k % 5, "movie": f"m{k % 4}", "stars": 1 + (k % 5 + k % 4) % 3} for k in range(60)]
ASKED = [{"user": user, "movie": "m1"} for user in range(5)]


def test_levels_are_learned_kept_by_the_journal_and_followed(tmp_path, warm_kernels):
    with serving(tmp_path, *MODEL) as server:
        answer = server.learn(ROWS)
        assert answer["learned"] == 60
        assert set(answer["predictions"][-1]) == {"mean", "std"}
        error = server.learn([{"user": 1, "movie": "m1", "stars": 2.5}], expect=422)["error"]
        assert (error["row"], error["column"]) == (0, "stars")
        assert "2.5 is not one of the levels 1, 2, 3" in error["message"]
        before = server.predict(ASKED, query="?interval=0.8")
        server.stop(9)  # before any checkpoint
    with serving(tmp_path, *MODEL) as server:
        assert server.predict(ASKED, query="?interval=0.8") == before
        server.http.post("/v1/checkpoint")
        made = server.predict(ASKED[:2], query="?remember=3h&interval=0.8")["predictions"]
        assert [{**each, "forecast": None} for each in made] == [
            {**each, "forecast": None} for each in before["predictions"][:2]
        ]
        with serving(tmp_path, "--follow", "m.spider") as follower:
            assert follower.predict(ASKED, query="?interval=0.8") == before
        server.stop()
    model = load(tmp_path / "m.spider")
    assert isinstance(model, SpiderRegressor)
    shown = CliRunner().invoke(app, ["info", str(tmp_path / "m.spider")]).output
    assert "request 1 to spider serve" in shown
    X = [(each["user"], each["movie"]) for each in ROWS]
    python = SpiderRegressor(likelihood="ordinal", levels=(1, 2, 3), random_state=1, committee=2)
    python.learn(X, [each["stars"] for each in ROWS])
    assert model.predict_levels(X[:9]) == pytest.approx(python.predict_levels(X[:9]), rel=1e-9)
    rows = [(each["user"], each["movie"]) for each in ASKED]
    low, high = python.predict_interval(rows, coverage=0.8)
    found = before["predictions"]
    assert [(each["low"], each["high"]) for each in found] == list(zip(low, high, strict=True))
    assert [each["mean"] for each in found] == pytest.approx(python.predict(rows))
