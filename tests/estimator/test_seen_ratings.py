"""What somebody has rated is left out of recommendations, if the model remembers it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from spidertensor import Context, SpiderClassifier, SpiderRegressor, checkpoint
from spidertensor.checkpoint import CheckpointError

SMALL = {"rank": 2, "hidden": (4,), "committee": 2, "passes": 1}


def ratings(n=200):
    rng = np.random.default_rng(0)
    X = [(f"u{user}", int(movie)) for user, movie in rng.integers((6, 20), size=(n, 2))]
    return X, rng.normal(size=n)


@pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])
@pytest.mark.parametrize("passes", [1, 2])
def test_what_was_rated_is_not_recommended(kind, passes, tmp_path):
    X, y = ratings(1200 if passes == 2 else 60)
    X = [(user, movie) for user, movie in X if (int(user[1]) + movie) % 3]
    y = y[: len(X)] if kind is SpiderRegressor else (y[: len(X)] > 0).astype(int)
    model = kind(**SMALL | {"passes": passes}, remember_seen=True).fit(X[:-20], y[:-20])
    model.partial_fit(X[-20:-1], y[-20:-1])
    model.learn_one(X[-1], y[-1])
    model.save(tmp_path / "model")
    movies, users = {movie for _, movie in X}, {user for user, _ in X}
    for each in (model, kind.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        for user in users:
            found = {found.id for found in each.recommend({0: user}, over=1, n=100)}
            assert found == movies - {movie for by, movie in X if by == user}
        for movie in list(movies)[:3]:  # whom to recommend a movie to
            found = {found.id for found in each.recommend({1: movie}, over=0, n=100)}
            assert found == users - {by for by, what in X if what == movie}
        assert len(each.recommend({0: "nobody"}, over=1, n=100)) == len(movies)


def test_of_more_modes_two_are_named():
    X, y = ratings(60)
    table = {"user": [user for user, _ in X], "movie": [movie for _, movie in X], "hour": [3, 4, 5] * 20}
    three = SpiderRegressor(**SMALL, modes={"user": [], "hour": [], "movie": []})
    with pytest.raises(ValueError, match="must name two"):
        three.set_params(remember_seen=True).fit(table, y)
    three.set_params(remember_seen=("user", "movie")).fit(table, y)
    situation = {"user": "u1", "hour": 3}
    seen = {movie for user, movie in X if user == "u1"}
    assert not seen & {found.id for found in three.recommend(situation, "movie", n=100)}
    modes = {"user": [], "movie": [], "when": Context("hour")}
    two = SpiderRegressor(**SMALL, modes=modes, remember_seen="user").fit(table, y)
    assert not seen & {found.id for found in two.recommend(situation, "movie", n=100)}


def test_a_model_that_remembers_nothing_does_not_store_that(tmp_path):
    X, y = ratings(60)
    SpiderRegressor(**SMALL).fit(X, y).save(tmp_path / "model")
    assert "remember_seen" not in checkpoint.load(tmp_path / "model").sections["model"]["params"]
    model = SpiderRegressor(**SMALL, remember_seen=True).fit(X, y)
    model.forget(1, [X[0][1]])
    model.forget(0, [X[1][0]])
    model.save(tmp_path / "model")
    file = checkpoint.load(tmp_path / "model")
    pairs = file.arrays["model/seen_pairs"]
    users = [user for user in dict.fromkeys(user for user, _ in X) if user != X[1][0]]
    left = {(users.index(a), b) for a, b in X if a != X[1][0] and b != X[0][1]}
    assert len(pairs) == len(left)
    changed = file.arrays | {"model/seen_pairs": pairs + np.uint64(1 << 40)}
    checkpoint.save(tmp_path / "model", changed, file.sections)
    with pytest.raises(CheckpointError, match="node that is not known"):
        SpiderRegressor.load(tmp_path / "model")
