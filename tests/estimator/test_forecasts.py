"""Forecasts: made now, scored when the values are known. The posterior learns as if there were none."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import streams
from spidertensor import (
    CheckpointError,
    EntryError,
    Forecast,
    SpiderClassifier,
    SpiderRegressor,
    checkpoint,
    load,
)
from spidertensor.spider.committee import MANY_ENTRIES
from spidertensor.spider.forecasts import calibration_used
from spidertensor.testing.states import bits

X, Y = streams.entries(900, nodes=(20, 15), noise=0.3)
KNOWN = 500
# members without a memory: the others forget when they learn, after a forecast just before
MEMBERS = [{}, {"bias_var": 0.2}, {"multilinear_var": 0.6}]
SMALL: dict[str, Any] = {"rank": 2, "hidden": (4,), "multilinear": 3, "batch_size": 64, "committee": MEMBERS}
KINDS = {
    "regressor": (SpiderRegressor, {}, Y),
    "alone": (SpiderRegressor, {"committee": 1}, Y),
    "counts": (SpiderRegressor, {"likelihood": "count"}, np.floor(np.exp(Y / 2))),
    "classifier": (SpiderClassifier, {}, (Y > 0).astype(int)),
    "bounded": (SpiderRegressor, {"max_nodes": (10, None)}, Y),
}
ALL = pytest.mark.parametrize("kind", KINDS)


def learned(kind: str = "regressor", **changes: Any) -> tuple[Any, np.ndarray]:
    estimator, own, y = KINDS[kind]
    model = estimator(**SMALL | own | changes)
    return model.partial_fit(X[:KNOWN], y[:KNOWN]), y


@ALL
def test_a_forecast_is_what_predict_says(kind):
    model, _ = learned(kind)
    forecast = model.forecast(X[KNOWN:])
    for a, b in zip(forecast.prediction, model.predict_parts(X[KNOWN:]), strict=True):
        np.testing.assert_array_equal(a, b)
    members = len(model._learned.state.members)
    assert (len(forecast), forecast.members.mean.shape) == (len(X) - KNOWN, (members, len(X) - KNOWN))
    np.testing.assert_allclose(forecast.weights.sum(axis=0), 1)
    if kind == "classifier":
        np.testing.assert_allclose(forecast.mean, model.predict_proba(X[KNOWN:])[:, 1])
        return
    mean, std = model.predict(X[KNOWN:], return_std=True)
    np.testing.assert_array_equal(forecast.mean, mean)
    np.testing.assert_array_equal(forecast.std, std)
    np.testing.assert_array_equal(model.predict_interval(forecast), model.predict_interval(X[KNOWN:]))


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"bounded"}))  # its nodes come back as new ones
def test_a_forecast_just_before_is_scored_as_always(kind):
    """Weights, errors and evidence to the last bit; only the histogram is another."""
    (model, y), (other, _) = learned(kind), learned(kind)
    for row in range(KNOWN, KNOWN + 80):
        rows = slice(row, row + 1)
        scored = model.learn(X[rows], y[rows], forecast=model.forecast(X[rows]))
        plain = other.learn(X[rows], y[rows])
        for a, b in zip(scored[:4], plain[:4], strict=True):
            np.testing.assert_array_equal(a, b)
        assert scored[4:7] == plain[4:7]
    ours, theirs = model._learned.state, other._learned.state
    assert bits(ours[:3]) == bits(theirs[:3])
    if ours.residuals:
        assert ours.forecasts.entries == 80
        assert ours.forecasts.mass.sum() > ours.forecasts.mass.max() > 0


@ALL
def test_the_posterior_does_not_depend_on_forecasts(kind):
    (model, y), (other, _) = learned(kind), learned(kind)
    forecast = model.forecast(X[KNOWN:])
    order = np.random.default_rng(0).permutation(len(X) - KNOWN)  # labels come in another order
    rows = KNOWN + order
    for first in range(0, len(rows), 150):
        part = slice(first, first + 150)
        model.learn(X[rows[part]], y[rows[part]], forecast=forecast[order[part]])
    other.learn(X[rows], y[rows])
    ours, theirs = model._learned.state, other._learned.state
    assert bits(ours.members) == bits(theirs.members)
    if len(ours.members) > 1:
        assert (ours.weights != theirs.weights).all()
    if ours.residuals:
        assert ours.forecasts.entries == len(rows)
        assert ours.residuals.mass.sum() != theirs.residuals.mass.sum()


@pytest.mark.slow
def test_forecasts_with_the_vectorized_engine():
    pytest.importorskip("jax")
    models = [learned(engine="vectorized", committee=MEMBERS[:2])[0] for _ in range(2)]
    forecast = models[0].forecast(X[KNOWN : KNOWN + 100])
    np.testing.assert_array_equal(forecast.mean, models[0].predict(X[KNOWN : KNOWN + 100]))
    rows = slice(KNOWN, KNOWN + 100)
    update = models[0].learn(X[rows], Y[rows], forecast=forecast)
    np.testing.assert_allclose(update.mean, forecast.mean, rtol=1e-12)
    models[1].learn(X[rows], Y[rows])
    assert bits(models[0]._learned.state.members) == bits(models[1]._learned.state.members)


def test_the_update_is_about_the_forecast():
    model, y = learned()
    forecast = model.forecast(X[KNOWN:])
    model.partial_fit(X[:100], y[:100] + 1)
    update = model.learn(X[KNOWN:], y[KNOWN:], forecast=forecast)
    for a, b in zip(update[:3], forecast.prediction, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_cuts_and_files_change_nothing(tmp_path):
    (model, y), (other, _) = learned(), learned()
    forecast = model.forecast(X[KNOWN:])
    model.learn(X[KNOWN:], y[KNOWN:], forecast=forecast)
    for first in range(0, len(forecast), 130):
        rows = slice(KNOWN + first, KNOWN + first + 130)
        other.learn(X[rows], y[rows], forecast=forecast[first : first + 130])
        other.save(tmp_path / "model.spider")
        other = load(tmp_path / "model.spider")
    assert bits(model._learned.state) == bits(other._learned.state)
    assert model._learned.generation == other._learned.generation


@pytest.mark.parametrize("kind", ["regressor", "counts", "classifier"])
def test_few_entries_at_once_are_scored_as_many(kind):
    """Few are learned by all members in one compiled call (few_entries.py)."""
    estimator, own, y = KINDS[kind]
    models = [estimator(**SMALL | own).partial_fit(X[:200], y[:200]) for _ in range(2)]
    rest, y = X[200:], y[200:]
    assert len(rest) >= MANY_ENTRIES
    forecast = models[0].forecast(rest)
    whole = models[0].learn(rest, y, forecast=forecast)
    parts = [slice(first, first + 70) for first in range(0, len(rest), 70)]
    cut = [models[1].learn(rest[part], y[part], forecast=forecast[part]) for part in parts]
    for n, column in enumerate(whole[:4]):
        np.testing.assert_array_equal(column, np.concatenate([each[n] for each in cut]))
    assert bits(models[0]._learned.state) == bits(models[1]._learned.state)


def test_one_entry_and_a_list_are_the_same():
    y, models = Y, [learned()[0] for _ in range(3)]
    forecast, rows = models[0].forecast(X[KNOWN:]), range(KNOWN, KNOWN + 20)
    models[0].learn(X[rows], y[rows], forecast=forecast[:20])
    models[1].partial_fit(X[rows], y[rows], forecast=list(forecast[:20]))
    for place, row in enumerate(rows):
        update = models[2].learn_one(tuple(X[row].tolist()), float(y[row]), forecast=forecast[place])
        assert update.mean == pytest.approx(forecast.mean[place])
    for model in models[1:]:
        assert bits(model._learned.state) == bits(models[0]._learned.state)


def test_rows_without_a_forecast_are_scored_as_always():
    (model, y), (other, _) = learned(), learned()
    forecast, rows = model.forecast(X[KNOWN:]), range(KNOWN, KNOWN + 30)
    some: list[Forecast | None] = [forecast[i] if i % 3 else None for i in range(30)]
    update = model.learn(X[rows], y[rows], forecast=some)
    assert Forecast.join(some).made.tolist() == [bool(i % 3) for i in range(30)]
    for place, row in enumerate(rows):
        one = other.learn(X[row : row + 1], y[row : row + 1], forecast=[some[place]])
        assert one.below is not None
        assert one.below[0] == pytest.approx(update.below[place], rel=1e-12)
    assert bits(model._learned.state) == bits(other._learned.state)
    before, after = learned()[0], learned()[0]
    before.learn(X[rows], y[rows])
    after.learn(X[rows], y[rows], forecast=[None] * 30)
    assert bits(before._learned.state) == bits(after._learned.state)


def test_rows_joining_and_json():
    model, _ = learned()
    forecast = model.forecast(X[:6])
    mask = np.array([True, False, True, False, False, True])
    for rows in (mask, [0, 2, 5], np.array([0, 2, 5])):
        np.testing.assert_array_equal(forecast[rows].numbers, forecast.numbers[[0, 2, 5]])
    assert [len(forecast[rows]) for rows in (-1, slice(2), [], np.int64(3))] == [1, 2, 0, 1]
    joined = Forecast.join([forecast[4:], None, forecast[0]])
    assert joined.made.tolist() == [True, True, False, True]
    again = Forecast.from_dict(json.loads(json.dumps(joined.to_dict())))
    np.testing.assert_array_equal(again.numbers, joined.numbers)
    assert again.model == joined.model
    with pytest.raises(IndexError):
        forecast[6]


@ALL
def test_as_an_array_a_forecast_is_its_mean(kind):
    model, y = learned(kind)
    forecast = model.forecast(X[KNOWN:])
    np.testing.assert_array_equal(np.asarray(forecast), forecast.mean)
    np.testing.assert_array_equal(y[KNOWN:] - forecast, y[KNOWN:] - forecast.mean)
    assert np.asarray(forecast[:3], np.float32).dtype == np.float32
    assert np.isnan(np.asarray(Forecast.join([None, forecast[0]]))).tolist() == [True, False]
    assert [len(each) for each in forecast[:3]] == [1, 1, 1]
    with pytest.raises(ValueError, match="copy"):
        np.array(forecast, copy=False)


def test_rows_without_a_forecast_come_back_from_json():
    """They know how many members the others have."""
    model, _ = learned()
    forecast = Forecast.join([None, model.forecast(X[:1])])
    for rows in (slice(0, 1), slice(0, 0)):
        again = Forecast.from_dict(json.loads(json.dumps(forecast[rows].to_dict())))
        assert len(Forecast.join(iter([again, forecast]))) == len(again) + 2


@pytest.mark.parametrize(
    "damage",
    [
        {"rows": None}, {"rows": ["abcd"]}, {"rows": [[1.0] * 5]}, {"rows": [[10**400] + [1.0] * 11]},
        {"members": 0}, {"members": 2.5}, {"generation": "x"}, {"likelihood": []}, {"shift": None},
        {"scale": 0},
    ],
    ids=repr,
)  # fmt: skip
def test_a_damaged_forecast_is_an_error_of_its_own(damage):
    stored = learned()[0].forecast(X[:3]).to_dict()
    with pytest.raises(EntryError):
        Forecast.from_dict(stored | damage)


def test_what_is_no_forecast_cannot_be_joined():
    with pytest.raises(EntryError, match="int is no forecast"):
        Forecast.join([learned()[0].forecast(X[:3]), 1])  # pyright: ignore[reportArgumentType]


def test_a_forecast_of_another_model_has_no_interval_here():
    model, other = learned()[0], SpiderRegressor(**SMALL).fit(X[1:], Y[1:])
    with pytest.raises(EntryError, match="another model"):
        model.predict_interval(other.forecast(X[:3]))


def test_weights_are_those_of_the_time():
    model, y = learned()
    first = model.forecast(X[:3])
    model.partial_fit(X[KNOWN:], y[KNOWN:])
    joined = Forecast.join([first, model.forecast(X[:3])])
    assert (joined.weights[:, 0] != joined.weights[:, 3]).any()
    np.testing.assert_array_equal(joined.weights[:, 3], model._learned.state.weights)


def test_forecasts_that_cannot_be_scored_change_nothing():
    model, y = learned()
    forecast = model.forecast(X[:9])
    refit = SpiderRegressor(**SMALL).fit(X[1:], y[1:])
    fewer, _ = learned(committee=MEMBERS[:2])
    damaged = forecast.to_dict()
    damaged["rows"][4][3] = -1.0  # a variance
    cases = [
        (lambda: forecast[:8], "9 entries but 8 forecasts"),
        (lambda: refit.forecast(X[:9]), "another model"),
        (lambda: fewer.forecast(X[:9]), "by 2 members, and the model has 3"),
        (lambda: learned("counts")[0].forecast(X[:9]), "another model"),
        (lambda: np.zeros(9), "must be a Forecast"),
        (lambda: Forecast.from_dict(damaged), "row 4: the numbers of a forecast are impossible"),
        (lambda: Forecast.join([forecast[:8], fewer.forecast(X[:1])]), "different models"),
    ]
    before = bits(model._learned.state)
    for made, words in cases:
        with pytest.raises(EntryError, match=words):
            model.learn(X[:9], y[:9], forecast=made())
    with pytest.raises(EntryError, match="has learned nothing"):
        SpiderRegressor(**SMALL).learn(X[:9], y[:9], forecast=forecast)
    assert bits(model._learned.state) == before


def test_a_model_fitted_anew_is_another_generation():
    model = SpiderRegressor(**SMALL).fit(X[:400], Y[:400])
    forecast = model.forecast(X[:1])
    model.partial_fit(X[400:], Y[400:], forecast=None)
    model.learn(X[:1], Y[:1], forecast=forecast)  # still the same
    model.fit(X[1:450], Y[1:450])
    with pytest.raises(EntryError, match="fitted anew"):
        model.learn(X[:1], Y[:1], forecast=forecast)


def test_a_model_that_follows_a_change_keeps_its_generation():
    model, y = learned()
    forecast = model.forecast(X[KNOWN:])
    with pytest.warns(UserWarning, match="has changed"):
        model.partial_fit(np.tile(X, (2, 1)), np.tile(Y, 2) + 40 * Y.std())
    assert sum(model.followed_.values())
    model.learn(X[KNOWN:], y[KNOWN:], forecast=forecast)


def test_events_have_no_forecasts():
    model = SpiderClassifier(negatives=1, negatives_over=1, rank=2, hidden=(4,), committee=2)
    model.partial_fit(X[:100])
    with pytest.raises(ValueError, match="events have no forecasts"):
        model.forecast(X[:1])


def test_attributes():
    modes = {"user": [], "item": ["colour"]}
    columns = {"user": X[:, 0], "item": X[:, 1], "colour": np.array(list("rgb"))[X[:, 1] % 3]}
    first, rest = (
        {name: each[rows] for name, each in columns.items()} for rows in (slice(KNOWN), slice(KNOWN, None))
    )
    models = [SpiderRegressor(**SMALL, modes=modes).partial_fit(first, Y[:KNOWN]) for _ in range(2)]
    forecast = models[0].forecast(rest)
    np.testing.assert_array_equal(forecast.mean, models[0].predict(rest))
    models[0].learn(rest, Y[KNOWN:], forecast=forecast)
    models[1].learn(rest, Y[KNOWN:])
    assert bits(models[0]._learned.state.members) == bits(models[1]._learned.state.members)


# --- which calibration intervals use ---


def test_intervals_are_calibrated_for_the_way_the_model_is_used(tmp_path):
    x, y = streams.entries(3000, nodes=(20, 15), noise=0.3)
    model = SpiderRegressor(**SMALL | {"passes": 2}).fit(x[:1200], y[:1200])
    state = model._learned.state
    assert (int(state.rest.entries), int(state.rest.at)) == (model.history_["judged"], 1200)

    def used() -> str:
        model.save(tmp_path / "model.spider")
        assert calibration_used(load(tmp_path / "model.spider")._learned.state) == kind()
        chosen = [model.predict_interval(x[:9], calibration=each) for each in ("auto", kind())]
        np.testing.assert_array_equal(*chosen)
        return kind()

    def kind() -> str:
        return calibration_used(model._learned.state)

    assert used() == "rest"
    model.partial_fit(x[1200:2199], y[1200:2199])
    assert used() == "rest"
    model.partial_fit(x[2199:2200], y[2199:2200])
    assert used() == "next"
    model.learn(x[2200:2890], y[2200:2890], forecast=model.forecast(x[2200:2890]))
    assert used() == "next"
    model.learn(x[2890:2900], y[2890:2900], forecast=model.forecast(x[2890:2900]))
    assert used() == "forecast"
    low, high = model.predict_interval(x[:9])
    best = model.recommend({0: int(x[0, 0])}, 1, coverage=0.9, candidates=[int(x[0, 1])])[0]
    assert (best.low, best.high) == (low[0], high[0])
    model.partial_fit(x[2900:], y[2900:])
    assert used() == "next"


def test_a_calibration_that_is_not_there():
    model, _ = learned()
    for calibration, words in (("forecast", "scored no forecast"), ("rest", "held back"), ("best", "one of")):
        with pytest.raises(ValueError, match=words):
            model.predict_interval(X[:1], calibration=calibration)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("forecasts/mass", -1.0), ("forecasts/mass", np.nan), ("forecasts/entries", 10**6),
        ("forecasts/share", 2.0), ("forecasts/latest", -1), ("rest/at", 10**6), ("rest/entries", -1),
        ("rest/mass", 0.0), ("best/mass", 1.0),
    ],
)  # fmt: skip
def test_files_with_impossible_calibrations_are_refused(tmp_path, fitted, name, value):
    path = tmp_path / "model.spider"
    file = checkpoint.load(fitted)
    arrays = dict(file.arrays)
    before = arrays.get(f"calibration/{name}", np.zeros(3))
    arrays[f"calibration/{name}"] = np.full_like(before, value)
    checkpoint.save(path, arrays, file.sections)
    with pytest.raises(CheckpointError):
        load(path)


def test_files_without_the_section_are_read(tmp_path, fitted):
    """As written before there were forecasts: without generation and scores."""
    file, path = checkpoint.load(fitted), tmp_path / "model.spider"
    arrays = {name: each for name, each in file.arrays.items() if not name.startswith("calibration/")}
    checkpoint.save(
        path, arrays, {name: each for name, each in file.sections.items() if name != "calibration"}
    )
    models = [load(path), load(path)]
    assert models[0]._learned.generation == models[1]._learned.generation
    models[0].learn(X[:5], Y[:5], forecast=models[1].forecast(X[:5]))
    for wrong in ({"generation": -1}, {"generation": 0.5}, {"generation": 2**60}, {}, 7):
        checkpoint.save(path, arrays, file.sections | {"calibration": wrong})
        with pytest.raises(CheckpointError, match="generation"):
            load(path)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Any:
    """The file of a model that has scored forecasts, and entries at rest."""
    x, y = streams.entries(1100, nodes=(20, 15), noise=0.3)
    model = SpiderRegressor(**SMALL | {"passes": 2}).fit(x, y)
    model.learn(x[:50], y[:50], forecast=model.forecast(x[:50]))
    path = tmp_path_factory.mktemp("fitted") / "model.spider"
    model.save(path)
    return path
