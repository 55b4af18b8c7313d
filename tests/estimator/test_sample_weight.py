"""sample_weight in fit, partial_fit and learn, and in scikit-learn's tools."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.model_selection import GridSearchCV, cross_val_score

from spidertensor import EntryError, SpiderClassifier, SpiderRegressor, load
from spidertensor.estimator import collected
from spidertensor.estimator.weights import MOST, MOST_AT_ONCE

RNG = np.random.default_rng(0)
N = 1200
X = RNG.integers(0, 15, (N, 2))
EFFECTS = RNG.normal(size=(2, 15))
Y = EFFECTS[0][X[:, 0]] + EFFECTS[1][X[:, 1]] + 0.3 * RNG.normal(size=N)
WEIGHT = RNG.uniform(0.2, 3, N)
ASKED = np.stack(np.meshgrid(np.arange(15), np.arange(15)), axis=-1).reshape(-1, 2)
SMALL = {"rank": 2, "hidden": (4,), "committee": 2}


def parts(model) -> np.ndarray:
    names = getattr(model, "feature_names_in_", None)
    return np.array(model.predict_parts(ASKED if names is None else pd.DataFrame(ASKED, columns=names)))


WAYS = {
    "fit": lambda model, *entries, **w: model.fit(*entries, **w),
    "partial_fit": lambda model, *entries, **w: model.partial_fit(*entries, **w),
    "learn": lambda model, *entries, **w: (model.learn(*entries, **w), model)[1],
}


@pytest.mark.parametrize("act", WAYS.values(), ids=WAYS)
def test_weight_zero_is_a_row_that_is_not_there(act):
    weight = np.where(np.arange(N) % 5 == 0, 0, WEIGHT)
    there, unknown = weight > 0, X.copy()
    unknown[~there] = 99  # nobody becomes a node
    got = act(SpiderRegressor(**SMALL), unknown, Y, sample_weight=weight)
    wanted = act(SpiderRegressor(**SMALL), X[there], Y[there], sample_weight=weight[there])
    assert (got.n_entries_, *got.n_nodes_) == (np.count_nonzero(there), 15, 15)
    np.testing.assert_array_equal(parts(got), parts(wanted))


@pytest.mark.parametrize("act", WAYS.values(), ids=WAYS)
def test_weights_of_one_are_none_at_all(act):
    found = [
        parts(act(SpiderRegressor(**SMALL), X, Y, **given))
        for given in ({}, {"sample_weight": None}, {"sample_weight": [1] * N})
    ]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_learn_says_nothing_of_what_it_has_not_learned():
    weight = np.array([1.0, 0, 2, 0, 0.5])
    update = SpiderRegressor(**SMALL).learn(X[:5], Y[:5], sample_weight=weight)
    assert update.below is not None
    for part in (*update[:4], update.below):
        np.testing.assert_array_equal(np.isnan(part), weight == 0)
    nothing = SpiderRegressor(**SMALL).learn(X[:5], Y[:5], sample_weight=np.zeros(5))
    assert np.isnan(nothing.mean).all()


def test_heavy_entries_decide():
    """Two rows contradict each other about every pair: predictions go to the heavy ones, in all passes."""
    order = RNG.permutation(2 * N)
    both, y = np.concatenate([X, X])[order], np.concatenate([Y > 0, Y <= 0])[order]
    weight = np.repeat([5.0, 0.05], N)[order]
    for passes in (1, 3):
        model = SpiderClassifier(**SMALL, passes=passes).fit(both, y, sample_weight=weight)
        assert model.score(X, Y > 0) > 0.8


@pytest.mark.parametrize("passes", [1, 2])
def test_a_weight_is_close_to_repeated_rows(passes):
    weight, model = RNG.integers(1, 4, N).astype(float), {**SMALL, "passes": passes, "scaling": (0, 1)}
    rows = np.repeat(np.arange(N), weight.astype(int))
    once = SpiderRegressor(**model).fit(X, Y, sample_weight=weight).predict(ASKED)
    repeated = SpiderRegressor(**model).fit(X[rows], Y[rows]).predict(ASKED)
    assert np.sqrt(np.mean((once - repeated) ** 2)) < 0.15  # of values of variance 2


def test_weights_travel_with_their_entries_through_times_and_files(monkeypatch):
    """The order of the rows is no matter where a time orders them, in memory as in a file."""
    time, order = np.arange(N), np.random.default_rng(1).permutation(N)
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "at": time})
    weight = np.where(np.arange(N) % 4 == 0, 0, WEIGHT)
    found = []
    for rows, in_memory in ((time, 2**26), (order, 2**26), (order, 1000)):
        monkeypatch.setattr(collected, "IN_MEMORY", in_memory)
        model = SpiderRegressor(**SMALL, time="at", passes=2)
        model.fit(table.iloc[rows], Y[rows], sample_weight=weight[rows])
        found.append(parts(model))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_negatives_have_the_weight_of_their_event():
    """Heavy events meet within groups, light ones anywhere; and the other way round."""
    user = np.repeat(np.arange(40), 30)
    item = (user % 4) + 4 * RNG.integers(0, 10, len(user))
    noise = RNG.integers(0, 40, len(user))
    events = np.concatenate([np.stack([user, item], axis=1), np.stack([user, noise], axis=1)])
    order = RNG.permutation(len(events))
    weight = np.repeat([4.0, 0.05], len(user))
    rates = []
    for given in (weight, weight[::-1]):
        model = SpiderClassifier(**SMALL, negatives=2, negatives_over=1, passes=1)
        model.fit(events[order], sample_weight=given[order])
        asked = np.stack(np.meshgrid(np.arange(40), np.arange(40), indexing="ij"), axis=-1).reshape(-1, 2)
        within = asked[:, 0] % 4 == asked[:, 1] % 4
        probability = model.predict_proba(asked)[:, 1]
        rates.append(probability[within].mean() / probability[~within].mean())
    assert rates[0] > 1.5 * rates[1]


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf, 1e7])
@pytest.mark.parametrize("act", WAYS.values(), ids=WAYS)
def test_impossible_weights_name_the_row_and_change_nothing(act, bad):
    model, weight = SpiderRegressor(**SMALL).partial_fit(X, Y), WEIGHT.copy()
    before, weight[[7, 9]] = parts(model), bad
    with pytest.raises(EntryError, match=r"row 7: sample_weight .* is not a number from 0 to 1e") as caught:
        act(model, X, Y, sample_weight=weight)
    assert (caught.value.row, caught.value.kind, caught.value.rows) == (7, "sample_weight", (7, 9))
    np.testing.assert_array_equal(parts(model), before)


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (np.ones(N - 1), rf"got shape \({N - 1},\)"),
        (np.ones((N, 2)), "must be 1-D"),
        (2.0, "must be 1-D"),
        (["a"] * N, "must be numbers"),
        (["1"] * N, "must be numbers"),
        (np.full(N, 1j), "must be numbers"),
        (np.full(N, "2020-01-01", "M8[D]"), "must be numbers"),
        (np.ma.array(np.ones(N), mask=np.arange(N) == 3), "row 3"),
    ],
)
def test_weights_of_another_form_are_refused(weight, reason):
    with pytest.raises(EntryError, match=reason):
        SpiderRegressor(**SMALL).fit(X, Y, sample_weight=weight)


def test_errors_name_the_rows_that_the_caller_knows():
    weight, far = np.where(np.arange(N) < 10, 0.0, WEIGHT), Y.copy()
    far[20] = 1e20
    with pytest.raises(EntryError) as caught:
        SpiderRegressor(**SMALL, passes=1).partial_fit(X, Y).learn(X, far, sample_weight=weight)
    assert caught.value.row == 20


@pytest.mark.parametrize("kind", [SpiderRegressor, SpiderClassifier])
def test_metadata_is_routed(kind):
    y = Y > 0 if kind is SpiderClassifier else Y
    model, weight = kind(**SMALL, passes=1), np.where(np.arange(N) % 2, 0.0, WEIGHT)
    with config_context(enable_metadata_routing=True):
        with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
            cross_val_score(model, X, y, cv=2, params={"sample_weight": weight}, error_score="raise")
        asking = model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        search = GridSearchCV(asking, {"rank": [0, 2]}, cv=2, error_score="raise")
        search.fit(X, y, sample_weight=weight)
        scores = cross_val_score(asking, X, y, cv=2, params={"sample_weight": weight}, error_score="raise")
    assert search.best_estimator_.n_entries_ == np.count_nonzero(weight)
    assert scores.mean() > 0.6


def test_scores_are_weighted():
    model, weight = SpiderRegressor(**SMALL).fit(X, Y), np.where(np.arange(N) < 100, 0.0, 1.0)
    wrong = np.where(np.arange(N) < 100, Y + 100, Y)
    assert model.score(X, wrong, weight) == pytest.approx(model.score(X[100:], Y[100:]))
    sides = SpiderClassifier(**SMALL).fit(X, Y > 0)
    assert sides.score(X, np.where(np.arange(N) < 100, Y <= 0, Y > 0), weight) == pytest.approx(
        sides.score(X[100:], Y[100:] > 0)
    )


def test_ordered_levels_refuse_weights():
    model = SpiderRegressor(**SMALL, likelihood="ordinal")
    with pytest.raises(ValueError, match="ordered levels count every entry once: leave sample_weight out"):
        model.fit(X, np.clip(np.round(Y), -2, 2), sample_weight=WEIGHT)
    assert model.fit(X, np.clip(np.round(Y), -2, 2), sample_weight=np.ones(N)).n_entries_ == N


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_the_largest_weights_are_learned_and_saved_and_the_least_count_nothing(engine, tmp_path):
    """With one step for all entries of a batch, weights of 100 made the other engine worse than the mean."""
    if engine == "vectorized":
        pytest.importorskip("jax")
    most = MOST if engine == "sequential" else MOST_AT_ONCE
    rng = np.random.default_rng(0)
    X, y = rng.integers((20, 15), size=(300, 2)), rng.integers(1, 6, size=300)
    for likelihood in ("gaussian", "count"):
        model = SpiderRegressor(engine=engine, committee=1, passes=1, random_state=0, likelihood=likelihood)
        for weight in (np.full(300, most), np.where(np.arange(300) % 10, 1, most)):
            model.fit(X, y, sample_weight=weight)
            assert np.mean((model.predict(X) - y) ** 2) < 1.3 * y.var()
            model.save(tmp_path / "m.spider")
            assert (load(tmp_path / "m.spider").predict(X) == model.predict(X)).all()
    tiny = np.where(np.arange(300) == 5, 1e-40, 1.0)
    got = SpiderRegressor(engine=engine, committee=1, passes=1, random_state=0).fit(X, y, sample_weight=tiny)
    assert got.n_entries_ == 299
    if engine == "vectorized":
        with pytest.raises(EntryError, match="row 0: sample_weight 31 is not a number from 0 to 30"):
            model.partial_fit(X, y, sample_weight=np.full(300, 31.0))
