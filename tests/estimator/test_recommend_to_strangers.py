"""Recommendations for somebody who is not in the model but has attributes, or says what they had."""

from __future__ import annotations

import numpy as np
import pytest

from spidertensor import Recent, SpiderRegressor
from spidertensor.faults import EntryError, SpiderWarning

SMALL = {"rank": 2, "hidden": (4,), "committee": 2, "passes": 1}


@pytest.fixture(scope="module")
def model():
    """Users of two tastes rate movies of two kinds."""
    rng = np.random.default_rng(0)
    user, movie = rng.integers(30, size=1500), rng.integers(24, size=1500)
    value = np.where((user + movie) % 2, 1.0, 5.0) + 0.1 * rng.normal(size=1500)
    rated = {"user": user, "age": user % 2, "movie": movie}
    made = SpiderRegressor(modes={"user": ["age", Recent("movie", n=4)], "movie": []}, **SMALL)
    return made.partial_fit(rated, value)


def best(model, given, **how):
    return model.recommend(given, over="movie", n=5, **how)


@pytest.mark.parametrize("explore", ["mean", "ucb", "thompson"])
def test_what_a_stranger_had_stands_for_the_same_ring(model, explore):
    """Somebody unknown who states four movies is predicted as that ring; nothing is learned or remembered."""
    kept = model._fitted().columns.to_arrays()
    stated = {"recent(movie)": [3, 5, 7, 9], "age": 1}
    found = best(model, stated, explore=explore, seed=0)
    assert found == best(model, {"user": "nobody", **stated}, explore=explore, seed=0)
    assert not {3, 5, 7, 9} & {each.id for each in found}
    assert all(np.array_equal(kept[name], now) for name, now in model._fitted().columns.to_arrays().items())


def test_a_ring_in_the_model_and_the_same_one_stated(model):
    """For a known user, stating what the model remembers changes nothing but that it is left out."""
    rings = model._fitted().columns.columns[1].state
    number = model._fitted().nodes[0].number_of(4)
    ring = rings._ring[number][(rings._first[number] + np.arange(4)) % 4]
    movies = model._fitted().nodes[1].ids
    had = [movies[node] for node in ring]
    stated = model.recommend({"user": 4, "recent(movie)": had}, over="movie", n=30)
    known = model.recommend({"user": 4}, over="movie", n=30, exclude=had)
    assert [each.id for each in stated] == [each.id for each in known]
    np.testing.assert_allclose([each.mean for each in stated], [each.mean for each in known], rtol=1e-6)


def test_many_strangers_and_unknown_movies(model):
    given = {"age": [0, 1], "recent(movie)": [[2, 4, "never learned"], []]}
    with pytest.warns(SpiderWarning, match=r"recent\(movie\): 1 of 3 ids were never learned"):
        many = model.recommend_many(given, over="movie", n=5)
    assert many[0] == best(model, {"age": 0, "recent(movie)": [2, 4]})
    assert many[1] == best(model, {"age": 1}) == best(model, {"age": 1, "user": "nobody"})


def test_what_is_refused(model):
    with pytest.raises(ValueError, match=r"'user' \(or 'age' or 'recent\(movie\)'\) missing"):
        best(model, {})
    for wrong in ("Alien", 3, {3}, {"Alien": 3}):
        with pytest.raises(
            EntryError, match=r"column recent\(movie\): .* is not a list of ids: write a list"
        ):
            best(model, {"recent(movie)": wrong})
    with pytest.raises(EntryError, match=r"column recent\(movie\): missing id \(None\)"):
        best(model, {"recent(movie)": [None]})
    with pytest.raises(ValueError, match="neither a mode nor an attribute"):
        best(model, {"recent(song)": [1]})
