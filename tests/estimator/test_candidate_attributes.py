"""Candidates with attributes of their own, and columns added to a model that has learned."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest

from spidertensor import EntryError, SpiderRegressor
from spidertensor.estimator.columns import Calendar, Context, Many, Number, Value

SMALL = {"committee": 2, "hidden": (8,), "rank": 3, "multilinear": 4, "batch_size": 32}
MODES = {"user": [], "movie": [Many("genres")], "when": Context(Number("km"), Calendar("time"))}


def entries(n: int = 400, seed: int = 0) -> tuple[dict[str, list], np.ndarray]:
    """Entries whose values depend on the genres of the movie."""
    rng = np.random.default_rng(seed)
    user, movie = rng.integers(10, size=n), rng.integers(12, size=n)
    genres = [[("drama", "war", "comedy")[each % 3]] for each in movie]
    columns = {"user": user.tolist(), "movie": movie.tolist(), "genres": genres, "km": rng.normal(size=n)}
    return columns, 2.0 * (movie % 3 == 1) + columns["km"] + 0.1 * rng.normal(size=n)


@pytest.fixture(scope="module")
def learned() -> SpiderRegressor:
    return SpiderRegressor(modes=MODES, passes=1, **SMALL).fit(*entries())


@pytest.mark.parametrize("explore", ["mean", "ucb", "thompson"])
def test_candidates_never_seen_are_ranked_by_their_attributes(learned, explore):
    table = {"movie": ["a", "b"], "genres": [["comedy"], ["war"]]}
    ranked = learned.recommend({"user": 1, "km": 0.5}, "movie", candidates=table, explore=explore, seed=0)
    assert {each.id for each in ranked} == {"a", "b"}
    for each in ranked:
        entry = {"user": 1, "movie": each.id, "km": 0.5, "genres": table["genres"][each.id == "b"]}
        assert each.mean == learned.predict([entry])[0]
    if explore == "mean":
        assert [each.id for each in ranked] == ["b", "a"]


def test_what_a_candidate_states_goes_before_what_the_model_knows(learned):
    known = learned.recommend({"user": 1}, "movie", candidates=[0, 3])
    stated = learned.recommend(
        {"user": 1}, "movie", candidates={"movie": [0, 3], "genres": [["war"], None]}, n=2
    )
    before, after = ({each.id: each.mean for each in ranked} for ranked in (known, stated))
    assert after[0] > before[0] + 0.5
    assert after[3] == before[3]
    assert learned.recommend({"user": 1}, "movie", candidates=[0, 3]) == known  # nothing was remembered


def test_attributes_of_the_entry_may_depend_on_the_candidate(learned):
    frame = pd.DataFrame(
        {"movie": [0, 3, 6], "km": [0.0, 2.0, -2.0], "time": pd.Timestamp("2024-05-31 18:30")}
    )
    ranked = learned.recommend({"user": 1}, "movie", candidates=frame)
    assert [each.id for each in ranked] == [3, 0, 6]


def test_a_frame_of_situations_may_have_times(learned):
    given = pd.DataFrame({"user": [1, 2], "time": pd.Timestamp("2024-05-31 18:30")})
    alone = learned.recommend({"user": 2, "time": "2024-05-31T18:30"}, "movie")
    assert learned.recommend_many(given, "movie")[1] == alone


@pytest.mark.parametrize(
    ("given", "table", "reason"),
    [
        ({}, {"movie": [1, 1], "genres": [["war"], ["war"]]}, "candidate 1 is listed twice"),
        ({}, {"movie": [1, 2], "genres": [["war"]]}, "columns of candidates differ in length"),
        ({}, {"movie": [1, 2], "genre": [["war"], ["war"]]}, "candidates names 'genre'"),
        ({}, {"movie": [1, 2], "km": [0.0, np.inf]}, "row 1: column km: candidates: infinite number"),
        ({"km": 1.0}, {"movie": [1], "km": [0.0]}, "'km' is given and among the candidates"),
    ],
)
def test_bad_tables_of_candidates_are_refused(learned, given, table, reason):
    with pytest.raises((EntryError, ValueError), match=reason):
        learned.recommend({"user": 1} | given, "movie", candidates=table)


@pytest.mark.parametrize("before", ["ids", "attributes"])
def test_columns_are_added_to_a_model_that_has_learned(before):
    columns, y = entries()
    ids = pd.DataFrame({name: columns[name] for name in ("user", "movie")})
    if before == "ids":
        model = SpiderRegressor(passes=1, **SMALL).fit(ids, y)
        more = {"user": [], "movie": [Many("genres")]}
    else:
        model = SpiderRegressor(modes={"user": [], "movie": ["genres"]}, passes=1, **SMALL).fit(columns, y)
        more = {"user": [Value("country")], "movie": ["genres"]}
    predicted = model.predict(ids)
    assert model.add_columns(more) is model
    np.testing.assert_array_equal(model.predict(ids), predicted)  # the new nodes are at their prior
    assert model.get_params()["modes"].keys() == more.keys()
    later, y = entries(seed=1)
    later["movie"] = [12 + each for each in later["movie"]]
    later["country"] = ["far" if user % 2 else "near" for user in later["user"]]
    model.partial_fit(later, y + 3.0 * (np.array(later["user"]) % 2))
    asked = {"user": [99] * 2, "movie": [99] * 2, "country": ["near", "far"], "genres": [["drama"], ["war"]]}
    low, high = model.predict(asked)
    assert high > low + 0.3


def test_columns_of_a_model_are_not_taken_away(learned):
    model = copy.deepcopy(learned)
    with pytest.raises(ValueError, match="columns can only be added"):
        model.add_columns({"user": ["age"], "movie": [], "when": Context("km", "time")})
    np.testing.assert_array_equal(model.predict(entries()[0]), learned.predict(entries()[0]))
