"""Estimators with attributes beside ids: what users write, and what it must not change."""

from __future__ import annotations

import copy
import pickle
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone

from spidertensor import EntryError, SpiderClassifier, SpiderRegressor, load
from spidertensor.estimator import fitted_file
from spidertensor.estimator.columns import Calendar, Context, Cross, Many, Number, Recent, Value
from spidertensor.spider import posterior
from spidertensor.spider.event_bags import EventBags

SMALL = {"committee": 2, "hidden": (8,), "rank": 3, "multilinear": 4, "batch_size": 32}
MODES = {
    "user": ["age", "gender"],
    "movie": [Many("genres", sep="|"), Number("year")],
    "when": Context("hour", Calendar("time")),
}


def table(n: int, seed: int = 0) -> dict[str, list]:
    """Entries whose values depend on ids and attributes."""
    rng = np.random.default_rng(seed)
    user, movie, hour = rng.integers(12, size=n), rng.integers(9, size=n), rng.integers(24, size=n)
    first = datetime(2024, 1, 1)
    return {
        "user": user.tolist(),
        "movie": [f"m{each}" for each in movie],
        "age": (20.0 + 3 * user).tolist(),
        "gender": [("f", "m")[each % 2] for each in user],
        "genres": [("drama", "drama|war", "comedy")[each % 3] for each in movie],
        "year": (1990.0 + movie).tolist(),
        "hour": hour.tolist(),
        "time": [first + timedelta(hours=int(each)) for each in np.sort(rng.integers(5000, size=n))],
    }


def values(columns: dict[str, list], seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    bias = np.array([each == "f" for each in columns["gender"]]) + 0.05 * np.array(columns["hour"])
    return bias + ["war" in each for each in columns["genres"]] + 0.2 * rng.normal(size=len(bias))


def part(columns: dict[str, list], start: int, stop: int | None = None) -> dict[str, list]:
    return {name: column[start:stop] for name, column in columns.items()}


@pytest.fixture(scope="module")
def learned() -> SpiderRegressor:
    columns = table(300)
    return SpiderRegressor(modes=MODES, **SMALL).fit(columns, values(columns))


FORMS = {
    "dict": lambda columns: columns,
    "arrays": lambda columns: {name: np.array(column) for name, column in columns.items()},
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": pa.table,
    "rows": lambda columns: [
        dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
    ],
    "other columns": lambda columns: columns | {"unused": [None] * len(columns["user"])},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_input_learns_the_same(form, learned):
    columns = table(300)
    model = SpiderRegressor(modes=MODES, **SMALL).fit(FORMS[form](columns), values(columns))
    asked = table(20, seed=5)
    np.testing.assert_array_equal(model.predict(FORMS[form](asked)), learned.predict(asked))


def test_calls_may_be_cut_anywhere(learned):
    columns, y = table(300), values(table(300))
    model = SpiderRegressor(modes=MODES, scaling=learned._learned.scaling, **SMALL)
    model.partial_fit(part(columns, 0, 100), y[:100])  # kinds and knots come from the first call
    whole = copy.deepcopy(model)
    whole.partial_fit(part(columns, 100), y[100:])
    for start in range(100, 300, 23):
        model.partial_fit(part(columns, start, min(start + 23, 300)), y[start : start + 23])
    asked = table(20, seed=5)
    np.testing.assert_array_equal(model.predict(asked), whole.predict(asked))


def test_kinds_and_knots_come_from_the_first_batch_however_long_the_first_call_is():
    columns, y = table(300), values(table(300))
    whole, cut = (SpiderRegressor(modes=MODES, **SMALL) for _ in range(2))
    whole.partial_fit(columns, y)
    size = SMALL["batch_size"]
    cut.partial_fit(part(columns, 0, size), y[:size])
    cut.partial_fit(part(columns, size), y[size:])
    np.testing.assert_array_equal(whole.predict(columns), cut.predict(columns))


def test_one_entry_is_learned_as_one_of_many(learned):
    model, twin = copy.deepcopy(learned), copy.deepcopy(learned)
    columns, y = table(10, seed=7), values(table(10, seed=7))
    whole = twin.learn(columns, y)
    for row in range(10):
        entry = {name: column[row] for name, column in columns.items()}
        predicted = model.predict_one(entry)
        update = model.learn_one(entry, y[row])
        assert update.mean == whole.mean[row]
        assert predicted.mean == pytest.approx(update.mean, rel=1e-6)


def test_attributes_that_the_model_knows_need_not_be_given(learned):
    asked = table(20, seed=5)
    ids = {name: asked[name] for name in ("user", "movie", "hour", "time")}
    np.testing.assert_array_equal(learned.predict(ids), learned.predict(asked))


def test_ids_alone_may_be_rows(learned):
    known = {"user": [3, 4], "movie": ["m1", "m2"]}
    np.testing.assert_array_equal(learned.predict([(3, "m1"), (4, "m2")]), learned.predict(known))


def test_attributes_move_a_prediction_and_missing_ones_are_no_error(learned):
    asked = table(1, seed=5) | {"user": [999], "movie": ["new"]}
    women, men = (learned.predict(asked | {"gender": [each]})[0] for each in "fm")
    assert women > men + 0.2
    nothing = {"user": [999], "movie": ["new"]}
    assert np.isfinite(learned.predict(nothing)).all()
    assert np.isfinite(learned.predict(nothing | {"age": [None], "year": [float("nan")]})).all()


def test_nodes_with_the_same_attributes_and_no_data_predict_the_same(learned):
    asked = table(2, seed=5)
    for name in asked:
        asked[name] = [asked[name][0]] * 2
    asked |= {"user": ["one", "another"]}
    first, second = learned.predict(asked)
    assert first == second


@pytest.mark.parametrize("suffix", ["file", "pickle", "deepcopy"])
def test_a_copy_learns_on_bit_for_bit(learned, suffix, tmp_path):
    model = copy.deepcopy(learned)
    if suffix == "file":
        learned.save(tmp_path / "m.spider")
        model = load(tmp_path / "m.spider")
        learned.save(tmp_path / "again.spider")
        assert (tmp_path / "m.spider").read_bytes() == (tmp_path / "again.spider").read_bytes()
    if suffix == "pickle":
        model = pickle.loads(pickle.dumps(learned))
    twin = copy.deepcopy(learned)
    columns = table(50, seed=9) | {"gender": ["x"] * 50}
    for each in (model, twin):
        each.partial_fit(columns, values(columns))
    np.testing.assert_array_equal(model.predict(columns), twin.predict(columns))


def test_a_model_of_ids_still_writes_format_2(tmp_path):
    model = SpiderRegressor(**SMALL).fit([(1, 2), (2, 3), (1, 3)], [1.0, 2.0, 3.0])
    model.save(tmp_path / "ids.spider")
    assert (tmp_path / "ids.spider").read_bytes()[8] == 2


def test_a_model_with_attributes_writes_format_3(learned, tmp_path):
    learned.save(tmp_path / "m.spider")
    assert (tmp_path / "m.spider").read_bytes()[8] == 3


def test_modes_without_attributes_learn_what_ids_learn():
    columns, y = table(200), values(table(200))
    ids = list(zip(columns["user"], columns["movie"], strict=True))
    plain = SpiderRegressor(**SMALL).fit(ids, y)
    named = SpiderRegressor(modes={"user": [], "movie": []}, **SMALL).fit(columns, y)
    np.testing.assert_array_equal(named.predict(columns), plain.predict(ids))


def test_described_nodes_are_known_before_they_are_rated():
    columns, y = table(300), values(table(300))
    movies = {"movie": ["m0", "m1", "m2", "new"], "genres": ["drama", "drama|war", "comedy", "war"]}
    model = SpiderRegressor(modes={"user": ["gender"], "movie": [Many("genres", sep="|")]}, **SMALL)
    model.set_attributes("movie", movies).fit(columns, y)
    assert "new" in model.factors_[1].ids
    assert {each.id for each in model.recommend({"user": 1}, over="movie", n=20)} >= {"new", "m3"}
    later = copy.deepcopy(model).set_attributes(
        "movie", pd.DataFrame({"movie": ["newer"], "genres": ["war"]})
    )
    wanted = model.predict({"user": [1], "movie": ["newer"], "genres": ["war"]})
    assert later.predict({"user": [1], "movie": ["newer"]}) == pytest.approx(wanted, abs=0.2)


def test_replaced_attributes_count_from_then_on(learned):
    model = copy.deepcopy(learned)
    asked = {"user": [1], "movie": ["m1"], "hour": [3]}
    before = model.predict(asked | {"gender": ["f"]})
    model.set_attributes("user", {"user": [1], "gender": ["f"]})
    np.testing.assert_array_equal(model.predict(asked), before)


def test_recommendations_use_the_situation_and_the_attributes(learned):
    for explore in ("mean", "ucb", "thompson"):
        found = learned.recommend({"user": 1, "hour": 3}, over="movie", n=9, explore=explore, seed=0)
        assert len(found) == 9
    found = learned.recommend({"user": 1, "hour": 3}, over="movie", n=9)
    asked = {"user": [1] * 9, "movie": [each.id for each in found], "hour": [3] * 9}
    np.testing.assert_allclose([each.mean for each in found], learned.predict(asked), rtol=1e-12)
    with pytest.raises(ValueError, match="neither a mode nor an attribute"):
        learned.recommend({"user": 1, "color": 3}, over="movie")


def test_forgetting_a_node_forgets_its_attributes(learned):
    model = copy.deepcopy(learned)
    assert model.forget("user", [1]) == 1
    asked = {"user": [1], "movie": ["m1"], "hour": [3]}
    unknown = {"user": ["nobody"], "movie": ["m1"], "hour": [3]}
    np.testing.assert_array_equal(model.predict(asked), model.predict(unknown))
    columns = table(50, seed=9)
    model.partial_fit(columns, values(columns))


def test_recent_nodes_and_crosses_are_learned_saved_and_evicted(tmp_path):
    modes = {"user": [Recent("movie", 3)], "movie": ["genres"], "pair": Context(Cross("user", "movie"))}
    columns, y = table(300), values(table(300))
    model = SpiderRegressor(modes=modes, max_nodes=5, **SMALL)
    twin = copy.deepcopy(model)
    for start in range(0, 300, 50):
        model.partial_fit(part(columns, start, start + 50), y[start : start + 50])
    twin.partial_fit(part(columns, 0, 50), y[:50])
    for start in range(50, 300, 11):
        twin.partial_fit(part(columns, start, start + 11), y[start : start + 11])
    assert model.n_evicted_[0] > 0
    np.testing.assert_array_equal(model.predict(columns), twin.predict(columns))
    model.save(tmp_path / "m.spider")
    again = load(tmp_path / "m.spider")
    for each in (model, again):
        each.partial_fit(part(columns, 0, 60), y[:60])
    np.testing.assert_array_equal(model.predict(columns), again.predict(columns))


def test_events_draw_negatives_with_the_attributes_of_the_drawn_node():
    """The bag of each entry that is learned, against one made by hand."""
    columns = table(120)
    modes = {"user": [Value("gender")], "movie": [Many("genres", sep="|")], "when": Context(Value("hour"))}
    model = SpiderClassifier(modes=modes, negatives=2, negatives_over="movie", **SMALL)
    learned = []
    with pytest.MonkeyPatch.context() as patch:
        made = EventBags.made

        def record(self, bags, event, replaced, index, first):
            found = made(self, bags, event, replaced, index, first)
            learned.append((event, replaced, index, found))
            return found

        patch.setattr(EventBags, "made", record)
        model.fit(columns)
    fitted = model._learned
    genres = dict(zip(columns["movie"], columns["genres"], strict=True))
    movies, tags = fitted.nodes[1].ids, fitted.columns.columns[1].holders[0].state
    assert sum(int((replaced == 1).sum()) for _, replaced, _, _ in learned) == 238  # none for the first event
    number = 0
    for event, _, index, bags in learned:
        for entry in range(len(event)):
            first, last = bags.start[entry], bags.start[entry + 1]
            of_movie = bags.table[first:last] == 1
            wanted = genres[movies[index[entry, 1]]].split("|")
            assert of_movie.sum() == len(wanted)
            np.testing.assert_allclose(bags.weight[first:last][of_movie], 1 / np.sqrt(len(wanted)))
            rows = tags.values.index.find(wanted)
            assert sorted(bags.row[first:last][of_movie]) == sorted(rows)
            assert (~of_movie).sum() == 2  # the gender and the hour of the event
            number += 1
    assert number == 120 + 238
    assert len(model.recommend({"user": 1, "hour": 3}, over="movie", n=3)) == 3


KINDS = [Value("kind"), Number("kind"), Many("kind"), Calendar("kind")]


@pytest.mark.parametrize("max_nodes", [None, (8, 6)])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_events_whose_attributes_change_may_be_cut_anywhere(kind, max_nodes):
    rng = np.random.default_rng(0)
    n = 400  # the grid of numbers is ready on the way
    cells = {
        "value": lambda: f"v{rng.integers(5)}",
        "number": lambda: float(rng.normal()),
        "many": lambda: [f"v{each}" for each in rng.integers(5, size=rng.integers(3))],
        "calendar": lambda: datetime(2024, 1, 1) + timedelta(hours=int(rng.integers(5000))),
    }[kind.kind]
    columns = {
        "user": rng.integers(12, size=n).tolist(),
        "movie": rng.integers(9, size=n).tolist(),
        "kind": [None if rng.random() < 0.3 else cells() for _ in range(n)],
    }
    settings = {"modes": {"user": [], "movie": [kind]}, "negatives": 2, "negatives_over": "movie", **SMALL}
    start = SpiderClassifier(**settings, max_nodes=max_nodes).partial_fit(part(columns, 0, 20), None)
    whole, cut = copy.deepcopy(start), copy.deepcopy(start)
    whole.partial_fit(part(columns, 20), None)
    at = 20
    while at < n:
        size = int(rng.integers(1, 40))
        cut.partial_fit(part(columns, at, at + size), None)
        at += size
    found, expected = (fitted_file.to_arrays(each._learned) for each in (cut, whole))
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_negatives_have_the_attributes_of_whoever_had_the_row_at_that_event(monkeypatch):
    """Five rows for nine movies: an evicted movie comes back as a new one, without what it once stated."""
    rng, n, limit = np.random.default_rng(0), 300, 5
    columns = {
        "user": rng.integers(12, size=n).tolist(),
        "movie": rng.integers(9, size=n).tolist(),
        "kind": [None if rng.random() < 0.4 else f"v{rng.integers(5)}" for _ in range(n)],
    }
    learned, made = [], EventBags.made

    def record(self, bags, event, replaced, index, first):
        learned.append((event + first, index[:, 1], found := made(self, bags, event, replaced, index, first)))
        return found

    monkeypatch.setattr(EventBags, "made", record)
    modes = {"user": [], "movie": [Value("kind")]}
    model = SpiderClassifier(
        modes=modes, negatives=3, negatives_over="movie", max_nodes=(None, limit), **SMALL
    )
    for start in range(0, n, 60):
        model.partial_fit(part(columns, start, start + 60), None)
    rows, kinds, at = {}, [], []  # movie -> row, the longest unseen first; per event: row -> kind
    for movie, kind in zip(columns["movie"], columns["kind"], strict=True):
        now = dict(kinds[-1]) if kinds else {}
        if movie not in rows:
            rows[movie] = len(rows) if len(rows) < limit else rows.pop(next(iter(rows)))
            now[rows[movie]] = None
        rows[movie] = rows.pop(movie)
        now[rows[movie]] = kind or now[rows[movie]]
        kinds.append(now)
        at.append(rows[movie])
    values = model._learned.columns.columns[0].holder.state.values.index
    entries = 0
    for event, row, bags in learned:
        for entry in range(len(event)):
            found = bags.row[bags.start[entry] : bags.start[entry + 1]].tolist()
            wanted = kinds[event[entry]][row[entry]]
            assert found == ([] if wanted is None else values.find([wanted]).tolist())
            entries += 1
        assert set(at[event.min() : event.max() + 1]) <= set(row.tolist())
    assert entries > 3.9 * n
    assert model.n_evicted_[1] > 50


def test_negatives_need_a_mode_with_ids():
    over = SpiderClassifier(modes={"user": [], "when": Context("hour")}, negatives=2, negatives_over="when")
    with pytest.raises(ValueError, match="a mode with ids"):
        over.fit(table(20))


def test_a_context_may_have_the_name_of_its_column():
    columns, y = table(60), values(table(60))
    model = SpiderRegressor(modes={"user": [], "movie": [], "hour": Context("hour")}, **SMALL)
    model.fit(columns, y)
    entry = {"user": 1, "movie": "m2", "hour": 3}
    assert model.predict_one(entry).mean == model.predict([entry])[0]
    model.learn_one(entry, 1.0)


def test_tables_set_before_learning_belong_to_the_mode_of_that_name():
    columns, y = table(100), values(table(100))
    ages = np.arange(12.0)
    model = SpiderRegressor(modes={"user": ["age"], "movie": []}, **SMALL)
    model.set_attributes("user", {"user": np.arange(12), "age": ages})
    twin = copy.deepcopy(model)
    ages[:] = 0  # the caller's array
    ids = {name: columns[name] for name in ("user", "movie")}
    model.set_params(modes={"movie": [], "user": ["age"]})
    np.testing.assert_array_equal(model.fit(ids, y).factors_[1].ids, twin.fit(ids, y).factors_[0].ids)
    assert model._learned.columns.of_nodes(1, np.arange(3)).weight.tolist() == (
        twin._learned.columns.of_nodes(0, np.arange(3)).weight.tolist()
    )


def test_a_loaded_model_is_cloned_and_saved_again(learned, tmp_path):
    learned.save(tmp_path / "m.spider")
    loaded = load(tmp_path / "m.spider")
    assert set(loaded.get_params()["modes"]) == set(MODES)
    columns, y = table(60), values(table(60))
    again = clone(loaded).fit(columns, y)
    np.testing.assert_array_equal(
        again.predict(columns), SpiderRegressor(modes=MODES, **SMALL).fit(columns, y).predict(columns)
    )
    loaded.save(tmp_path / "again.spider")
    assert (tmp_path / "again.spider").read_bytes() == (tmp_path / "m.spider").read_bytes()


def test_events_refuse_columns_that_drawn_nodes_cannot_have():
    columns = table(20)
    for modes in (
        {"user": [], "movie": [Recent("user", 3)]},
        {"user": [], "movie": [], "pair": Context(Cross("user", "movie"))},
    ):
        with pytest.raises(ValueError, match="drawn as negatives"):
            SpiderClassifier(modes=modes, negatives=2, negatives_over="movie", **SMALL).fit(columns)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"year": ["late"] * 40}, "year"),
        ({"year": [float("inf")] * 40}, "year"),
        ({"genres": ["|".join(map(str, range(2000)))] * 40}, "genres"),
        ({"user": [None] * 40}, "missing id"),
    ],
)
def test_bad_attributes_change_nothing(learned, change, message):
    model, columns = copy.deepcopy(learned), table(40, seed=3)
    asked = table(20, seed=5)
    before = model.predict(asked)
    with pytest.raises(EntryError, match=message):
        model.partial_fit(columns | change, values(columns))
    np.testing.assert_array_equal(model.predict(asked), before)
    with pytest.raises(EntryError, match=r"missing columns: movie \(found: user, film\)"):
        model.predict({"user": [1], "film": [2]})
    with pytest.raises(EntryError, match="second row"):
        model.set_attributes("user", {"user": [1, 1], "age": [3.0, 4.0]})
    with pytest.raises(ValueError, match="no mode 'when' with ids"):
        model.set_attributes("when", {"when": [1]})


def test_tables_set_before_the_first_entry_must_agree():
    model, columns = SpiderRegressor(modes={"user": ["age"], "movie": []}, **SMALL), table(40)
    model.set_attributes("user", {"user": [1, 2], "age": [31.5, 32.5]})
    twin = copy.copy(model)
    for wrong in ({"user": [3], "age": ["old"]}, {"user": [3, 3], "age": [1.5, 2.5]}):
        with pytest.raises(EntryError):
            model.set_attributes("user", wrong)
    model.set_attributes("user", {"user": [99], "age": [33.5]})
    assert 99 in model.fit(columns, values(columns)).factors_[0].ids
    assert 99 not in twin.fit(columns, values(columns)).factors_[0].ids


def test_described_nodes_take_the_rows_of_evicted_ones_without_what_they_had_learned():
    columns = table(200)
    modes = {"user": ["age", "gender"], "movie": [Recent("user", 3)]}
    model = SpiderRegressor(modes=modes, max_nodes=[12, None], **SMALL).fit(columns, values(columns))
    known = model.factors_[0].ids
    recent = columns["user"][-1]
    model.set_attributes("user", {"user": [recent, "a", "b"], "gender": ["f", "m", "m"]})
    ids, means = model.factors_[0].ids, model.factors_[0].mean
    assert len(ids) == 12
    assert {recent, "a", "b"} <= set(ids)
    evicted = [known.index(each) for each in known if each not in ids]
    assert sorted(ids.index(each) for each in "ab") == sorted(evicted)
    kept = {"user": ["a"], "movie": ["m1"]}
    new = model.predict({"user": ["?"], "movie": ["m1"], "gender": ["m"]})
    np.testing.assert_allclose(model.predict(kept), new, atol=0.02)  # a row begins near 0, not at 0
    assert np.abs(means[evicted]).max() < 0.5 * np.abs(np.delete(means, evicted, axis=0)).max()
    for each in (model, SpiderRegressor(modes=modes, max_nodes=[12, None])):
        with pytest.raises(EntryError, match="at most 12 of user"):
            each.set_attributes("user", {"user": list(range(100, 113)), "gender": ["f"] * 13})
    model.partial_fit(columns, values(columns))


def test_set_attributes_needs_modes():
    with pytest.raises(ValueError, match="without attributes"):
        SpiderRegressor().set_attributes("user", {"user": [1]})


def test_scikit_learn_copies_the_parameter(learned):
    model = SpiderRegressor(modes=MODES, **SMALL)
    assert clone(model).modes == MODES
    assert model.get_params()["modes"] is MODES


def test_twenty_irrelevant_columns_cost_next_to_nothing():
    """Section 19: the prior falls with the number of columns, or they would drown the rest."""
    n, errors = 3000, np.zeros(2)
    for seed in (3, 4, 5):
        rng = np.random.default_rng(seed)
        user, movie = rng.integers(60, size=n), rng.integers(40, size=n)
        truth = rng.normal(size=60)[user] + rng.normal(size=40)[movie]
        y = truth + 0.5 * rng.normal(size=n)
        for place, junk in enumerate((0, 20)):
            columns = {f"junk{j}": rng.integers(10, size=60)[user] for j in range(junk)}
            modes = {"user": [Value(name) for name in columns], "movie": []}
            model = SpiderRegressor(modes=modes, committee=1, passes=1)
            X = {"user": user, "movie": movie} | columns
            model.fit(X, y)
            errors[place] += np.sqrt(np.mean((model.predict(X) - truth) ** 2))
    assert errors[1] < 1.1 * errors[0]


def test_an_attribute_that_all_entries_share_acts_as_a_level():
    rng = np.random.default_rng(4)
    n = 2000
    user = rng.integers(50, size=n)
    y = 1 + 0.7 * rng.normal(size=n)
    modes = {"user": [], "all": Context(Value("same"))}
    model = SpiderRegressor(modes=modes, scaling=(0.0, 1.0), committee=1, passes=1)
    model.fit({"user": user, "same": ["x"] * n}, y)
    new = model.predict({"user": ["new"], "same": ["x"]})[0]
    ids = SpiderRegressor(scaling=(0.0, 1.0), committee=1, passes=1).fit(user[:, None], y)
    assert abs(new - 1) < 0.1
    assert abs(ids.predict([["new"]])[0] - 1) > abs(new - 1)


def test_forgetting_after_the_rings_have_grown():
    modes = {"user": ["age", Recent("movie", 3)], "movie": []}
    model = SpiderRegressor(modes=modes, **SMALL)
    ages = [f"a{user}" for user in range(11)]
    model.partial_fit({"user": list(range(10)), "movie": [0] * 10, "age": ages[:10]}, np.arange(10.0))
    model.partial_fit({"user": [10], "movie": [1], "age": ages[10:]}, [1.0])
    before = model.predict({"user": [9], "movie": [0]})
    assert model.forget("user", [3]) == 1
    np.testing.assert_array_equal(model.predict({"user": [9], "movie": [0]}), before)


def test_a_context_adds_nothing_to_a_draw_from_the_posterior(learned, monkeypatch):
    """Its own row does not exist, so a draw must not have the noise of one."""
    drawn, sample = [], posterior.sample

    def recorded(state, network, prior, rows, rng):
        drawn.append(rows)
        return sample(state, network, prior, rows, rng)

    monkeypatch.setattr(posterior, "sample", recorded)
    learned.recommend({"user": 1, "hour": 3}, over="movie", explore="thompson", seed=0)
    assert [len(rows) for rows in drawn[0][:3]] == [1, 0, 0]  # the movies are drawn later


@pytest.mark.parametrize(
    ("table_", "reason"),
    [
        ({"user": "anna", "movie": "heat"}, "list or an array, got str"),
        ({"user": 3, "movie": [1]}, "list or an array, got int"),
        ({"user": [1], "movie": [1], "age": {"a": 1}}, "list or an array, got dict"),
        ({"user": [1, 2], "movie": [1]}, "differ in length"),
    ],
)
def test_columns_that_are_none(learned, table_, reason):
    with pytest.raises(EntryError, match=reason):
        learned.predict(table_)
    assert np.isfinite(learned.predict({"user": [1], "movie": ["m1"], "note": 3})).all()  # not a column of it


def test_what_a_context_cannot_be(learned):
    with pytest.raises(ValueError, match="remember_seen needs a mode with ids"):
        SpiderClassifier(modes=MODES, negatives=2, negatives_over="movie", remember_seen="when", **SMALL).fit(
            table(20)
        )
    with pytest.raises(EntryError, match="differ in length"):
        learned.recommend_many({"user": [1, 2], "hour": [3]}, over="movie")


def test_factors_of_attributes_have_names():
    modes = {
        "user": ["gender", Recent("movie", 3)],
        "movie": [Many("genres", sep="|"), Number("year")],
        "when": Context(Calendar("time")),
        "pair": Context(Cross("user", "gender")),
    }
    columns = table(300)
    model = SpiderRegressor(modes=modes, **SMALL).fit(columns, values(columns))
    found = model.attribute_factors()
    for factors in found.values():
        assert len(factors.ids) == len(factors.mean) == len(factors.var)
    assert found["user", "gender"].ids == list(dict.fromkeys(columns["gender"]))
    assert set(found["movie", "genres"].ids) == {"drama", "war", "comedy"}
    years = found["movie", "year"].ids
    assert years[-1] is None
    assert sorted(years[:-1]) == years[:-1]
    assert years[0] < 1990 < 1998 < years[-2]
    assert found["when", "time"].ids[:2] == [("hour", 0), ("hour", 1)]
    assert found["when", "time"].ids[43] == ("trend", columns["time"][0].date())
    names = {name for key in found if key[0] == "pair" for name in found[key].ids}
    assert names == set(zip(columns["user"], columns["gender"], strict=True))
    recent = next(factors for key, factors in found.items() if key[1].startswith("recent"))
    assert recent.ids == model.factors_[1].ids[: len(recent.ids)]
    women, men = (found["user", "gender"].mean[found["user", "gender"].ids.index(each), 0] for each in "fm")
    assert women > men
    assert SpiderRegressor(**SMALL).fit([(1, 2), (2, 1)], [1.0, 2.0]).attribute_factors() == {}


def test_a_candidate_may_be_an_attribute_of_the_entry():
    """A mode without an id has the column of the ranked ids: with each candidate it has another value."""
    rng = np.random.default_rng(0)
    columns = {"user": rng.integers(6, size=300).tolist(), "movie": rng.integers(9, size=300).tolist()}
    modes = {"user": [], "movie": [], "what": Context(Value("movie"), Cross("user", "movie"))}
    model = SpiderRegressor(modes=modes, **SMALL).fit(columns, np.array(columns["movie"]) % 3)
    ranked = model.recommend({"user": 4}, "movie", n=9)
    means = model.predict({"user": [4] * 9, "movie": [each.id for each in ranked]})
    assert [each.mean for each in ranked] == means.tolist()
    assert len(set(means.tolist())) == 9


def test_arrays_of_arrow_are_columns_as_lists_are(learned):
    columns = table(40, seed=3)
    arrow = {name: pa.array(column) for name, column in columns.items()}
    np.testing.assert_array_equal(learned.predict(arrow), learned.predict(columns))
    movies = sorted(set(columns["movie"]))
    given = {"user": 1, "hour": 3, "time": datetime(2024, 1, 1)}
    ranked = [
        [each.id for each in learned.recommend(given, over="movie", candidates=candidates)]
        for candidates in (movies, pa.chunked_array([movies]), {"movie": pa.array(movies)})
    ]
    assert ranked[0] == ranked[1] == ranked[2]
