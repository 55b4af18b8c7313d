"""`--bounds` behind the service."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette")

from serving import serving
from spidertensor import load

MODEL = (
    "--model", "m.spider", "--modes", "user,movie", "--value", "stars", "--bounds", "1,5", "--seed", "1",
    "--committee", "2",
)  # fmt: skip
ROWS = [
    {"user": k % 6, "movie": k % 5, "stars": (1, 3, 5)[k % 3] + 0.4 * ((k % 6 < 3) - (k % 3 == 2))}
    for k in range(300)
]
ROWS = [row | {"stars": min(max(row["stars"], 1), 5)} for row in ROWS]
ASKED = [{"user": user, "movie": movie} for user in range(6) for movie in range(5)]


def test_answers_stay_on_the_scale_and_other_values_are_refused(tmp_path, warm_kernels):
    with serving(tmp_path, *MODEL) as server:
        means = [each["mean"] for each in server.learn(ROWS)["predictions"]]
        assert 1 <= min(means) <= max(means) <= 5
        error = server.learn([ROWS[0], {"user": 1, "movie": 1, "stars": 55}], expect=422)["error"]
        assert (error["row"], error["column"]) == (1, "stars")
        assert "55 is not between the bounds 1 and 5" in error["message"]
        before = server.predict(ASKED, query="?interval=0.9")
        found = [each[name] for each in before["predictions"] for name in ("mean", "low", "high")]
        assert (min(found), max(found)) == (1, 5)
        later = [each["mean"] for each in server.predict(ASKED, query="?remember=1h")["predictions"]]
        assert later == [each["mean"] for each in before["predictions"]]
        server.stop(9)  # before any checkpoint
    with serving(tmp_path, *MODEL) as server:
        assert server.predict(ASKED, query="?interval=0.9") == before
        server.stop()
    assert load(tmp_path / "m.spider").get_params()["bounds"] == (1, 5)
