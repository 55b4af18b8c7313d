"""`spider evaluate` of events: nodes are ranked, beside popularity."""

from __future__ import annotations

import json

import numpy as np
import pytest

from spidertensor import cli
from spidertensor_study import grid
from spidertensor_study.rows import ExperimentError

pytestmark = pytest.mark.usefixtures("warm_kernels")


@pytest.fixture
def spider(tmp_path, monkeypatch, capsys):
    """Run `spider evaluate` where movielens-100k and anime are small: two kinds of users, each with movies of
    its own, in an order of time that is not that of the file."""
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


def test_the_last_events_are_ranked_beside_popularity(spider):
    code, out, err = spider("movielens-100k-events", "--method", "spider-single", "--json")
    assert code == 0, err
    record = json.loads(out)
    assert (record["protocol"], record["over"], record["n_scored"]) == ("last-out", "movie", 40)
    own, floor = (record["ranks"][name]["full"] for name in ("spider-single", "popularity"))
    assert own["mrr"] > 1.5 * floor["mrr"]  # popularity does not know that there are two kinds
    assert 0 < own["coverage_10"] <= 1
    _, out, _ = spider("movielens-100k-events", "--protocol", "last-out", "--method", "spider-single")
    assert "NDCG@10" in out
    assert f"{own['ndcg_10']:.4f}" in out
    assert f"{record['ranks']['popularity']['sampled']['hr_10']:.4f}" in out
    assert "sampled ranks flatter" in " ".join(out.split())


def test_events_in_time_order_are_ranked_before_they_are_learned(spider):
    arguments = ("movielens-100k-events", "--protocol", "prequential", "--method", "spider-single")
    record = json.loads(spider(*arguments, "--json")[1])
    assert record["n_scored"] == record["n_entries"] // 100 - record["skipped"] // 100
    assert record["ranks"]["popularity"].keys() == {"full"}
    assert "first tenth" in " ".join(spider(*arguments)[1].split())


def test_without_time_an_event_drawn_by_seed_is_held_out(spider):
    records = [
        json.loads(spider("anime-events", "--method", "spider-single", "--seed", seed, "--json")[1])
        for seed in ("0", "1", "0")
    ]
    assert records[0]["ranks"] == records[2]["ranks"] != records[1]["ranks"]
    assert any("of each user one drawn by seed" in note for note in records[0]["notes"])


@pytest.fixture
def plays(tmp_path):
    """A file of such events, with times that run backwards, and one row that is none."""
    rng = np.random.default_rng(1)
    user = rng.integers(40, size=3000)
    song = 2 * np.minimum(rng.geometric(0.1, 3000), 30) + user % 2
    rows = [f"u{u},s{s},{3000 - row}" for row, (u, s) in enumerate(zip(user, song, strict=True))]
    (tmp_path / "plays.csv").write_text("\n".join(["user,song,when", *rows, "u1,,1"]))
    return str(tmp_path / "plays.csv")


def test_events_of_a_file_are_ranked(spider, plays):
    file = (plays, "--modes", "user,song", "--events", "--over", "song", "--method", "spider-single")
    code, out, err = spider(*file, "--on-bad", "skip", "--time", "when", "--json")
    assert code == 0, err
    record = json.loads(out)
    assert (record["protocol"], record["over"]) == ("last-out", "song")
    assert record["n_entries"] + record["n_scored"] == 3000
    own, floor = (record["ranks"][name]["full"] for name in ("spider-single", "popularity"))
    assert own["mrr"] > 1.2 * floor["mrr"]
    by_rows = json.loads(spider(*file, "--on-bad", "skip", "--json")[1])
    assert by_rows["ranks"]["popularity"] != record["ranks"]["popularity"]  # other events are the last
    ranked = spider(*file, "--on-bad", "skip", "--protocol", "prequential")[1]
    assert "first tenth" in " ".join(ranked.split())
    assert "song is missing" in " ".join(spider(*file)[2].split())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--modes", "user,song", "--events"), "--events needs --over"),
        (("--modes", "user,song", "--value", "when", "--over", "song"), "--over needs --events"),
        (
            ("--modes", "user,song", "--events", "--over", "shop"),
            "--over shop: name one of the modes user, song",
        ),
        (("--events", "--over", "song"), "a file needs --modes, the names"),
        (("--modes", "user,song", "--events", "--over", "song", "--binary"), "leave out --value, --binary"),
        (("--modes", "user,song", "--events", "--over", "song", "--test", "0.1"), "--test is not for events"),
    ],
)
def test_options_of_a_file_that_do_not_fit(spider, plays, arguments, reason):
    code, out, err = spider(plays, *arguments)
    assert code != 0
    assert not out
    assert reason in " ".join(err.split())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("movielens-100k-events", "--events", "--over", "movie"), "--events is for files"),
        (("movielens-100k-events", "--protocol", "held-out"), "--protocol takes last-out or prequential"),
        (
            ("movielens-100k-events", "--method", "biases"),
            "learns nothing from events alone",
        ),
        (("movielens-100k-events", "--test", "0.2"), "--test is not for events"),
        (("movielens-100k-events", "--plot", "a.png"), "--plot is not for events"),
        (("movielens-100k-events", "--modes", "user,movie"), "--modes is for files"),
        (("anime-events", "--protocol", "prequential"), "time of the events of anime-events is not known"),
        (("synthetic", "--protocol", "last-out"), "last-out is for events"),
    ],
)
def test_what_cannot_be_ranked(spider, arguments, reason):
    code, out, err = spider(*arguments)
    assert code != 0
    assert not out
    assert reason in " ".join(err.split())


def test_a_grid_has_no_events(tmp_path):
    (tmp_path / "grid.toml").write_text('[[grid]]\nmethod = "spider"\ndata = "dblp-events"\n')
    with pytest.raises(ExperimentError, match="events and no values"):
        grid.plan(tmp_path / "grid.toml")


def test_bad_rows_of_a_file_of_events_are_counted(spider, tmp_path):
    rng = np.random.default_rng(1)
    rows = [f"{user},{song}" for user, song in rng.integers((9, 30), size=(200, 2))]
    (tmp_path / "plays.csv").write_text("\n".join(["user,song", *rows, *["3,"] * 7]) + "\n")
    file = (str(tmp_path / "plays.csv"), "--modes", "user,song", "--events", "--over", "song")
    how = ("--on-bad", "skip", "--method", "spider-single")
    code, out, err = spider(*file, *how, "--json")
    assert code == 0, err
    assert json.loads(out)["bad_rows"] == 7
    assert "bad rows, left out" in spider(*file, *how)[1]


@pytest.mark.parametrize(
    ("modes", "reason"), [("user,song", "no event can be ranked"), ("song", "needs a second mode")]
)
def test_events_that_cannot_be_ranked_are_refused(spider, tmp_path, modes, reason):
    """Each user has one event."""
    rows = ["user,song", *(f"{user},{user % 7}" for user in range(80))]
    (tmp_path / "plays.csv").write_text("\n".join(rows) + "\n")
    arguments = ("--modes", modes, "--events", "--over", "song", "--method", "spider-single")
    code, _, err = spider(str(tmp_path / "plays.csv"), *arguments)
    assert code == 2
    assert reason in " ".join(err.split())
