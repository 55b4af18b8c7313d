"""`--missing-id own`: the node of all missing ids is learned like any other, and never recommended."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pyarrow import parquet

import spidertensor
from spidertensor import SpiderRegressor, cli
from spidertensor.estimator.recommend import EXPLORE
from spidertensor.sources import MISSING_ID

SMALL = {"rank": 2, "hidden": (4,), "committee": 1}


def fitted(**settings) -> SpiderRegressor:
    """Nobody is liked as much as the film that is missing."""
    rng = np.random.default_rng(0)
    films = [MISSING_ID, "a", "b", "c", "d"]
    index = rng.integers((6, 5), size=(600, 2))
    X = [(int(user), films[film]) for user, film in index]
    value = np.where(index[:, 1] == 0, 9.0, index[:, 1]) + 0.1 * rng.normal(size=600)
    return SpiderRegressor(**SMALL, **settings).fit(X, value)


@pytest.mark.parametrize("settings", [{}, {"max_nodes": 6}])
@pytest.mark.parametrize("explore", EXPLORE)
def test_the_node_of_missing_ids_is_not_recommended(explore, settings):
    model = fitted(**settings)
    assert model.seen([(1, MISSING_ID)]).all()
    every = model.recommend({0: 1}, 1, 9, explore=explore, seed=0)
    assert sorted(each.id for each in every) == ["a", "b", "c", "d"]
    for each in every:  # the numbers are still those of the node that is named
        assert each.mean == pytest.approx(model.predict([(1, each.id)])[0], rel=1e-5)
    for candidates in (["a", MISSING_ID, "b"], {1: [MISSING_ID, "b", "a"]}):
        (best,) = model.recommend_many({0: [1]}, 1, 9, explore, candidates=candidates)
        assert sorted(each.id for each in best) == ["a", "b"]
    assert model.recommend({0: 1}, 1, candidates=[MISSING_ID]) == []


def test_it_may_be_given():
    assert len(fitted().recommend({1: MISSING_ID}, 0, 3)) == 3


def test_the_command_writes_a_ranking_of_typed_columns(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [f"u{n % 3},{'' if n % 4 == 0 else n % 4},{9 if n % 4 == 0 else n % 4}" for n in range(60)]
    (tmp_path / "a.csv").write_text("user,film,rating\n" + "\n".join([*lines, ",2,3"]) + "\n")
    (tmp_path / "u.csv").write_text("user,age\nu1,30\n,40\n")
    columns = ("--modes", "user,film", "--value", "rating", "--missing-id", "own", "--quiet")
    for command in (
        ("fit", "a.csv", *columns, "--rank", "2", "--hidden", "4", "--committee", "1"),
        ("recommend", "a.spider", "--given", "user=u1", "--over", "film", "--out", "best.parquet"),
        (
            "recommend",
            "a.spider",
            "--given-file",
            "u.csv",
            "--over",
            "film",
            "-n",
            "1",
            "--out",
            "given.parquet",
        ),
    ):
        with pytest.raises(SystemExit) as stopped:
            cli.main(list(command))
        assert stopped.value.code in (0, None), capsys.readouterr().err
    assert MISSING_ID in spidertensor.load("a.spider").factors()[1].ids
    assert sorted(parquet.read_table("best.parquet")["film"].to_pylist()) == [1, 2, 3]
    assert parquet.read_table("given.parquet")["user"].to_pylist() == ["u1", None]
    capsys.readouterr()
    with pytest.raises(SystemExit):
        cli.main(["recommend", "a.spider", "--given", "user=u1", "--over", "film", "--json"])
    assert sorted(each["id"] for each in json.loads(capsys.readouterr().out)["nodes"]) == [1, 2, 3]
