"""`bounds`: predictions of values that cannot leave a scale."""

from __future__ import annotations

import copy
import pickle
from threading import Thread

import numpy as np
import pytest

import spidertensor
from spidertensor import EntryError, Forecast, SpiderClassifier, SpiderRegressor
from spidertensor.checkpoint import load as read

SIZES = {"rank": 2, "hidden": (8,), "multilinear": 4, "committee": 2}
USERS, MOVIES = 40, 30
EVERY = np.stack(np.meshgrid(range(USERS), range(MOVIES)), -1).reshape(-1, 2)


def stars(n: int = 2500, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Most of them at the ends of the scale, so that many predictions are beyond."""
    rng = np.random.default_rng(seed)
    X = rng.integers((USERS, MOVIES), size=(n, 2))
    f = 3 + 2 * np.sin(X[:, 0]) + np.cos(X[:, 1]) + 0.5 * rng.normal(size=n)
    return X, np.clip(np.round(f), 1, 5)


@pytest.fixture(scope="module")
def both() -> tuple[SpiderRegressor, SpiderRegressor]:
    """A model without bounds and one with."""
    X, y = stars()
    return SpiderRegressor(**SIZES).fit(X, y), SpiderRegressor(**SIZES, bounds=(1, 5)).fit(X, y)


def test_means_and_ends_are_cut_off_and_nothing_else_is_changed(both):
    free, bounded = both
    mean, std = free.predict(EVERY, return_std=True)
    assert mean.min() < 1 < 5 < mean.max()
    cut, same = bounded.predict(EVERY, return_std=True)
    assert np.array_equal(cut, np.clip(mean, 1, 5))
    assert np.array_equal(std, same)
    for level in (0.5, 0.9):
        for end, free_end in zip(
            bounded.predict_interval(EVERY, level), free.predict_interval(EVERY, level), strict=True
        ):
            assert np.array_equal(end, np.clip(free_end, 1, 5))
    assert bounded.log_evidence_ == free.log_evidence_
    beyond = tuple(EVERY[mean.argmax()].tolist())
    assert bounded.predict_one(beyond).mean == bounded.explain(beyond).mean == 5
    assert bounded.explain(beyond).latent == pytest.approx(mean.max())
    made = bounded.forecast(EVERY)
    assert np.array_equal(made.mean, cut)
    assert np.array_equal(Forecast.from_dict(made[:7].to_dict()).mean, cut[:7])
    assert np.array_equal(made.prediction.mean, free.forecast(EVERY).prediction.mean)


def test_recommendations_at_a_bound_are_no_ties(both):
    free, bounded = both
    user = int(EVERY[free.predict(EVERY).argmax(), 0])
    wanted = free.recommend({0: user}, 1, n=MOVIES, coverage=0.9)
    found = bounded.recommend({0: user}, 1, n=MOVIES, coverage=0.9)
    assert [each.id for each in found] == [each.id for each in wanted]
    assert [each.mean for each in found[:2]] == [5, 5] != [each.mean for each in wanted[:2]]
    assert all(1 <= each.low <= each.mean <= each.high <= 5 for each in found)


def test_they_are_kept_by_files_and_copies(both, tmp_path):
    free, bounded = both
    bounded.save(tmp_path / "bounded")
    free.save(tmp_path / "free")
    assert "bounds" not in read(tmp_path / "free").sections["model"]["params"]
    loaded = spidertensor.load(tmp_path / "bounded")
    assert loaded.get_params()["bounds"] == (1, 5)
    for each in (loaded, pickle.loads(pickle.dumps(bounded)), copy.deepcopy(bounded)):
        assert np.array_equal(each.predict(EVERY), bounded.predict(EVERY))
        with pytest.raises(EntryError, match="bounds"):
            each.learn_one((0, 0), 6)


def test_other_values_are_refused_with_their_row_and_change_nothing():
    X, y = stars(500)
    model = SpiderRegressor(**SIZES, bounds=(1, 5)).partial_fit(X, y)
    before = pickle.dumps(model._learned.state)
    for learn in (model.learn, model.partial_fit, SpiderRegressor(bounds=(1, 5)).fit):
        with pytest.raises(EntryError, match=r"row 1: value 5\.5 is not between the bounds 1 and 5: correct"):
            learn(X[:3], [1, 5.5, 0])
    with pytest.raises(EntryError, match="value 0 is not between"):
        model.learn_one((0, 0), 0)
    with pytest.raises(EntryError, match="value nan"):
        model.learn_one((0, 0), np.nan)
    assert pickle.dumps(model._learned.state) == before


@pytest.mark.parametrize("bounds", [(5, 1), (1,), (1, 1), (0, np.inf), "all", 3])
def test_bounds_are_two_numbers_in_order(bounds):
    with pytest.raises(ValueError, match="bounds must be"):
        SpiderRegressor(bounds=bounds).fit([(0, 0)], [1.0])


def test_other_kinds_of_values_have_none():
    for likelihood in ("count", "ordinal"):
        with pytest.raises(ValueError, match="bounds of their own"):
            SpiderRegressor(likelihood=likelihood, bounds=(0, 5)).fit([(0, 0)], [1.0])
    with pytest.raises(TypeError):
        SpiderClassifier(bounds=(0, 1))  # pyright: ignore[reportCallIssue]


def test_of_values_seen_they_grow_and_refuse_nothing(tmp_path):
    X, y = stars()
    model = SpiderRegressor(**SIZES, bounds="seen")
    assert np.isfinite(model.predict_one((0, 0)).mean)
    free = SpiderRegressor(**SIZES)
    for part in np.split(np.arange(len(y)), 5):
        for each in (model, free):
            each.partial_fit(X[part], 2 + (y[part] - 3) / 4)
    ends = (1.5, 2.5)
    assert np.array_equal(model.predict(EVERY), np.clip(free.predict(EVERY), *ends))
    model.save(tmp_path / "model")
    loaded = spidertensor.load(tmp_path / "model")
    for each in (model, loaded):
        each.learn_one((0, 0), 2.75)
    assert np.array_equal(model.predict(EVERY), loaded.predict(EVERY))
    free.learn_one((0, 0), 2.75)
    assert np.array_equal(model.predict(EVERY), np.clip(free.predict(EVERY), 1.5, 2.75))


@pytest.mark.filterwarnings("ignore:the scale of the values has changed")
def test_joined_forecasts_keep_to_the_widest_bounds():
    model = SpiderRegressor(**SIZES, bounds="seen")
    model.partial_fit([(0, 0), (1, 1), (0, 1)], [2.9, 3.0, 3.1])
    narrow = model.forecast([(0, 0)])
    model.partial_fit(*stars())
    wide = model.forecast(EVERY)
    assert np.ptp(wide.mean) > 1
    for joined in (Forecast.join([narrow, None, wide]), Forecast.join([wide, narrow])):
        assert joined.bounds == (1, 5)
        assert np.isin(wide.mean, joined.mean).all()


@pytest.mark.parametrize("bounds", [[None, 5], [], 0, [1, 2, 3], [5, 1]])
def test_damaged_bounds_of_a_forecast_are_refused(both, bounds):
    with pytest.raises(EntryError, match="forecast"):
        Forecast.from_dict(both[1].forecast(EVERY[:2]).to_dict() | {"bounds": bounds})


def test_a_save_beside_predictions_waits_for_the_count_of_one(tmp_path):
    X, y = stars(300)
    model = SpiderRegressor(**SIZES, bounds="seen").partial_fit(X, y)
    model.learn_one(X[0].tolist(), y[0])  # waits to be counted
    write = Thread(target=model._write, args=(tmp_path / "model",))
    with model._lock:  # as a prediction does
        write.start()
        write.join(0.5)
        assert not (tmp_path / "model").exists()
    write.join()
    assert spidertensor.load(tmp_path / "model").nodes(0)["entries"].sum() == 301
