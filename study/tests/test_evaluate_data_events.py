"""`spider-study evaluate` of the data sets as events: nodes are ranked, beside popularity."""

from __future__ import annotations

import json

import numpy as np
import pytest

from spidertensor_study import cli, grid
from spidertensor_study.rows import ExperimentError

pytestmark = pytest.mark.usefixtures("warm_kernels")


@pytest.fixture
def evaluate(tmp_path, monkeypatch, capsys):
    """Run `spider-study evaluate` where movielens-100k and anime are small: two kinds of users, each with
    movies of its own, in an order of time that is not that of the file."""
    rng = np.random.default_rng(0)
    user, movie = rng.integers(40, size=3000), rng.integers(30, size=3000)
    index = np.unique(np.stack([user, 2 * movie + user % 2], axis=1)[rng.random(3000) < 0.6], axis=0)
    arrays = {"indices": index, "values": np.full(len(index), 9.0), "shape": np.array([40, 60])}
    np.savez(tmp_path / "movielens-100k.npz", **arrays, time_order=rng.permutation(len(index)))
    np.savez(tmp_path / "anime.npz", **arrays)
    for name, value in {"NO_COLOR": "1", "COLUMNS": "120", "TERM": "dumb", "SPIDER_DATA": tmp_path}.items():
        monkeypatch.setenv(name, str(value))

    def run(*arguments):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["evaluate", *arguments])
        out, err = capsys.readouterr()
        return stopped.value.code, out, err

    return run


def test_the_last_events_are_ranked_beside_popularity(evaluate):
    code, out, err = evaluate("movielens-100k-events", "--method", "spider-single", "--json")
    assert code == 0, err
    record = json.loads(out)
    assert (record["protocol"], record["over"], record["n_scored"]) == ("last-out", "movie", 40)
    own, floor = (record["ranks"][name]["full"] for name in ("spider-single", "popularity"))
    assert own["mrr"] > 1.5 * floor["mrr"]  # popularity does not know that there are two kinds
    assert 0 < own["coverage_10"] <= 1
    _, out, _ = evaluate("movielens-100k-events", "--protocol", "last-out", "--method", "spider-single")
    assert "NDCG@10" in out
    assert f"{own['ndcg_10']:.4f}" in out
    assert f"{record['ranks']['popularity']['sampled']['hr_10']:.4f}" in out
    assert "sampled ranks look too good" in " ".join(out.split())


def test_events_in_time_order_are_ranked_before_they_are_learned(evaluate):
    arguments = ("movielens-100k-events", "--protocol", "prequential", "--method", "spider-single")
    record = json.loads(evaluate(*arguments, "--json")[1])
    assert record["n_scored"] == record["n_entries"] // 100 - record["skipped"] // 100
    assert record["ranks"]["popularity"].keys() == {"full"}
    assert "first tenth" in " ".join(evaluate(*arguments)[1].split())


def test_without_time_an_event_drawn_by_seed_is_held_out(evaluate):
    records = [
        json.loads(evaluate("anime-events", "--method", "spider-single", "--seed", seed, "--json")[1])
        for seed in ("0", "1", "0")
    ]
    assert records[0]["ranks"] == records[2]["ranks"] != records[1]["ranks"]
    assert any("one random event of each user" in note for note in records[0]["notes"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("movielens-100k-events", "--events", "--over", "movie"), "--events is for files"),
        (("movielens-100k-events", "--protocol", "held-out"), "--protocol takes last-out or prequential"),
        (
            ("movielens-100k-events", "--method", "biases"),
            "cannot learn from events alone",
        ),
        (("movielens-100k-events", "--test", "0.2"), "--test does not apply to the events"),
        (("movielens-100k-events", "--plot", "a.png"), "--plot does not apply to the events"),
        (("movielens-100k-events", "--modes", "user,movie"), "--modes is for files"),
        (("anime-events", "--protocol", "prequential"), "the events of anime-events have no times"),
    ],
)
def test_what_cannot_be_ranked(evaluate, arguments, reason):
    code, out, err = evaluate(*arguments)
    assert code != 0
    assert not out
    assert reason in " ".join(err.split())


def test_a_grid_has_no_events(tmp_path):
    (tmp_path / "grid.toml").write_text('[[grid]]\nmethod = "spider"\ndata = "dblp-events"\n')
    with pytest.raises(ExperimentError, match="events and no values"):
        grid.plan(tmp_path / "grid.toml")
