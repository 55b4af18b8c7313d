"""`forget`: nodes that are removed on request, from a model and from its file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spidertensor
from command_line import FIT
from model_files import saved
from naive_ids import NaiveMode
from spidertensor import EntryError, SpiderClassifier, SpiderRegressor
from spidertensor.estimator.eviction import BoundedIndex
from spidertensor.estimator.ids import NodeIndex
from spidertensor.file_lock import held

pytestmark = pytest.mark.usefixtures("folder")

SMALL = {"rank": 2, "hidden": (4,), "multilinear": 2, "batch_size": 8, "committee": 2, "scaling": (0.0, 1.0)}
USERS, FILMS = ["zoë-4711", "ben", "carl", "dora"], ["Alien", "Brazil", "Casablanca"]


def visits(n=80) -> tuple[list[tuple[str, str]], np.ndarray]:
    rng = np.random.default_rng(0)
    X = [(USERS[a], FILMS[b]) for a, b in rng.integers((4, 3), size=(n, 2))]
    return X, rng.normal(size=n)


@pytest.mark.parametrize("max_nodes", [None, 4])
def test_a_forgotten_node_is_gone_and_the_others_stay(tmp_path, max_nodes):
    X, y = visits()
    model = SpiderRegressor(**SMALL, max_nodes=max_nodes).fit(X, y)
    others = [(user, film) for user in USERS[1:] for film in FILMS]
    before, own = model.predict(others, return_std=True), model.factors_[0]
    row = own.mean[own.ids.index(USERS[0])].tobytes()
    file = saved(model, tmp_path)
    assert USERS[0].encode() in file
    assert row in file
    assert model.forget(0, [USERS[0], "never there", USERS[0]]) == 1
    assert model.forget(0, [USERS[0]]) == 0
    assert np.array_equal(model.predict(others, return_std=True), before)
    assert model.seen([(USERS[0], "Alien")]).tolist() == [[False, True]]
    assert model.predict([(USERS[0], "Alien")]) == model.predict([("never there", "Alien")])
    assert (model.n_nodes_, model.n_entries_) == ((3, 3), 80)
    file = saved(model, tmp_path)
    assert USERS[0].encode() not in file
    assert row not in file
    again = spidertensor.load(tmp_path / "model")
    for each in (model, again):
        each.learn(X, y)
    assert model.n_nodes_ == (4, 3)
    assert saved(again, tmp_path) == saved(model, tmp_path)


def test_integers_are_gone_from_the_table_too(tmp_path):
    model = SpiderClassifier(rank=2, hidden=(4,)).fit([(7, 0), (8, 1), (9, 0)], [0, 1, 1])
    model.save(tmp_path / "model")
    assert model.forget(0, np.array([8, 1000])) == 1
    assert model.seen([(7, 0), (8, 0), (9, 0)])[:, 0].tolist() == [True, False, True]
    assert [factors.ids for factors in model.factors_] == [[7, 9], [0, 1]]
    model.partial_fit([(10, 1), (8, 1)], [1, 0])
    assert model.factors_[0].ids == [7, 9, 10, 8]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=40), st.integers(1, 5))
def test_the_order_of_the_others_stays(steps, limit):
    """Seeing and forgetting, in any order, with a limit and without."""
    naive, bounded, free, ids = NaiveMode(limit), BoundedIndex(limit), NodeIndex(), []
    for entry, (forget, raw) in enumerate(steps):
        if forget:
            naive.last_seen.pop(raw, None)
            naive.row_of.pop(raw, None)
            bounded = bounded.without(set(bounded.find([raw]).tolist()))
            free = free.without(set(free.find([raw]).tolist()))
            ids = [each for each in ids if each != raw]
        else:
            naive.see(entry, raw)
            bounded.find_or_add([raw])
            free.find_or_add([raw])
            ids += [raw] if raw not in ids else []
        assert set(bounded.ids) == set(naive.last_seen)
        assert free.ids == ids
        assert free.find(ids).tolist() == list(range(len(ids)))
        assert bounded.evicted == naive.evicted


def test_all_nodes_of_a_mode_may_go(tmp_path):
    X, y = visits()
    model = SpiderRegressor(**SMALL).fit(X, y)
    assert model.forget(1, FILMS) == 3
    model.save(tmp_path / "model")
    again = spidertensor.load(tmp_path / "model")
    assert again.n_nodes_ == (4, 0)
    assert again.recommend({0: "ben"}, 1) == []
    assert np.isfinite(again.predict([("ben", "Alien")])).all()
    again.partial_fit(X, y)
    model.partial_fit(X, y)
    assert saved(again, tmp_path) == saved(model, tmp_path)


def test_what_cannot_be_forgotten_changes_nothing(tmp_path):
    model = SpiderRegressor(**SMALL).fit(*visits())
    before = saved(model, tmp_path)
    for wrong in ("ben", b"ben", None, 5, ["ben", None], ["ben", float("nan")]):
        with pytest.raises(EntryError):
            model.forget(0, wrong)
    with pytest.raises(ValueError, match="no mode 'user'"):
        model.forget("user", ["ben"])
    assert model.forget(0, []) == 0
    assert saved(model, tmp_path) == before


@pytest.mark.usefixtures("warm_kernels")
def test_the_command_forgets(ratings, folder, spider, fails):
    spider("fit", "ratings.csv", *FIT, "--quiet")
    before = spidertensor.load("ratings.spider")
    Path("more.txt").write_text("4\r\n5\nx y\n", newline="")
    code, out, err = spider("forget", "ratings.spider", "--mode", "user", 3, 99, "--ids", "more.txt")
    assert (code, out) == (0, "ratings.spider: forgot 3 nodes of user\n")
    assert err == "note: ratings.spider has no user 99, x y\n"
    after = spidertensor.load("ratings.spider")
    assert after.n_nodes_ == (27, 20)
    assert not after.seen([(3, "m1"), (4, "m1"), (5, "m1")])[:, 0].any()
    assert np.array_equal(after.predict([(6, "m1")]), before.predict([(6, "m1")]))
    code, out, err = spider("forget", "ratings.spider", "--mode", "movie", "m1", "3", "--json")
    said = {"model": "ratings.spider", "mode": "movie", "forgotten": 1, "unknown": ["3"], "nodes": 19}
    assert (code, json.loads(out), err) == (0, said, "")
    assert b"m19" in Path("ratings.spider").read_bytes()
    with ratings.open("a") as handle:
        handle.write("3,m1,4.0\n")
    assert spider("fit", "ratings.csv", "--resume", "--quiet")[0] == 0  # its place in the source is kept
    again = spidertensor.load("ratings.spider")
    assert (again.n_nodes_, again.n_entries_) == ((28, 20), 1201)
    spider("forget", "ratings.spider", "--mode", "movie", *(f"m{n}" for n in range(20)))
    assert "has no movie left" in fails("recommend", "ratings.spider", "--given", "user=7", "--over", "movie")


@pytest.mark.usefixtures("warm_kernels")
def test_the_command_says_what_is_missing(ratings, folder, spider, fails):
    spider("fit", "ratings.csv", *FIT, "--quiet")
    before = Path("ratings.spider").read_bytes()
    Path("latin.txt").write_bytes(b"caf\xe9\n")
    for arguments, reason in (
        (("3",), "--mode must be one of: user, movie"),
        (("3", "--mode", "film"), "--mode must be one of: user, movie, not 'film'"),
        (("--mode", "user"), "no ids to forget"),
        (("--mode", "user", "--ids", "nowhere.txt"), "nowhere.txt: No such file"),
        (("--mode", "user", "--ids", "latin.txt"), "latin.txt: not UTF-8 text"),
    ):
        assert reason in fails("forget", "ratings.spider", *arguments)
    with held("ratings.spider"):
        assert "ratings.spider: is being written by process" in fails(
            "forget", "ratings.spider", "--mode", "user", "3"
        )
    assert Path("ratings.spider").read_bytes() == before


@pytest.mark.usefixtures("warm_kernels")
def test_what_a_killed_server_left_is_learned_first(ratings, spider, fails):
    pytest.importorskip("orjson")
    from spidertensor.service.journal import Journal, Row

    spider("fit", "ratings.csv", *FIT, "--quiet", "--keep", "1")
    spider("fit", "ratings.csv", "--resume", "--quiet", "--keep", "1")
    before = {path: path.read_bytes() for path in Path().glob("ratings.spider*")}
    journal = Journal(Path("ratings.spider.journal"), {"id": "a"})
    journal.close()
    assert (
        spider("forget", "ratings.spider", "--mode", "user", 9999)[0] == 0
    )  # an empty one is in nobody's way
    journal = Journal.opened(journal.path)
    journal.append([Row(1, 1, None, "application/json", False, b'[{"user": 3, "movie": "m1", "rating": 4}]')])
    journal.close()
    kept = journal.path.read_bytes()
    for command in (
        ("forget", "ratings.spider", "--mode", "user", 3),
        ("fit", "ratings.csv", "--resume"),
        ("fit", "ratings.csv", "--add", "--again"),
        ("fit", "ratings.csv", *FIT, "--force"),
        ("rollback", "ratings.spider"),
    ):
        said = fails(*command)
        assert "ratings.spider.journal: a server that was killed has left entries there" in said
        assert "start and stop spider serve --model ratings.spider" in said
    journal.path.write_bytes(b"nonsense")
    assert "has left something there" in fails("forget", "ratings.spider", "--mode", "user", 3)
    journal.path.write_bytes(kept)
    assert {path: path.read_bytes() for path in before} == before
    assert Journal.opened(journal.path).span() == (1, 1)
