"""Ordered levels from end to end: what a user meets."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import ndtr

import spidertensor
from spidertensor import CheckpointError, EntryError, SpiderRegressor, checkpoint
from spidertensor.estimator.forecast import Forecast
from spidertensor.spider.likelihoods.ordinal import Ordinal

SMALL = {"rank": 2, "hidden": (6,), "multilinear": 3, "batch_size": 16, "likelihood": "ordinal"}
STARS = (1.0, 2.0, 3.0, 4.0, 5.0)
CUTS = np.array([-1.8, -0.9, 0.3, 0.5])


def stars(n: int, seed: int = 0):
    """Ids of two modes, levels, and the probability of each. 4 is rarer than its neighbours."""
    rng = np.random.default_rng(seed)
    X = rng.integers((20, 15), size=(n, 2))
    f = np.sin(X[:, 0]) + 0.7 * np.cos(X[:, 1])
    upto = ndtr((CUTS - f[:, None]) / 0.6)
    chance = np.diff(upto, axis=1, prepend=0, append=1)
    return X, np.digitize(f + 0.6 * rng.normal(size=n), CUTS) + 1.0, chance


def log_score(chance, y):
    return np.log(chance[np.arange(len(y)), y.astype(int) - 1]).mean()


@pytest.fixture(scope="module")
def learned():
    X, y, _ = stars(12_000)
    return SpiderRegressor(likelihood="ordinal", passes=1, committee=2).fit(X, y)


def test_probabilities_are_nearly_the_truth(learned):
    X, y, truth = stars(4000, seed=1)
    chance = learned.predict_levels(X)
    np.testing.assert_array_equal(learned.levels_, STARS)
    np.testing.assert_allclose(chance.sum(axis=1), 1, rtol=1e-12)
    assert 0 < log_score(truth, y) - log_score(chance, y) < 0.03
    assert abs(chance - truth).mean() < 0.03
    mean, std = learned.predict(X, return_std=True)
    np.testing.assert_allclose(mean, chance @ STARS)
    np.testing.assert_allclose(std**2 + mean**2, chance @ np.square(STARS))
    assert 1 < mean.min() < mean.max() < 5


def test_intervals_are_the_fewest_neighbouring_levels(learned):
    X, y, _ = stars(2000, seed=2)
    chance = learned.predict_levels(X)
    for coverage in (0.3, 0.8, 0.95):
        low, high = learned.predict_interval(X, coverage)
        inside = (low[:, None] <= STARS) & (high[:, None] >= STARS)
        assert (np.isin(low, STARS) & np.isin(high, STARS)).all()
        assert ((chance * inside).sum(axis=1) >= coverage).all()
        for row in range(50):  # no shorter run has as much
            n = int(inside[row].sum())
            runs = [chance[row, first : first + n - 1].sum() for first in range(7 - n)]
            assert max(runs) < coverage
        assert np.mean((low <= y) & (y <= high)) > coverage - 0.02


def test_a_model_per_entry_equals_one_per_call_and_files_and_pickles_go_on(tmp_path):
    X, y, _ = stars(300)
    rows = [tuple(row) for row in X.tolist()]
    whole = SpiderRegressor(**SMALL, levels=(5, 4, 3, 2, 1), committee=2)
    update = whole.learn(rows, y)
    parts, evidence = SpiderRegressor(**SMALL, levels=STARS, committee=2), []
    for start, end in ((0, 1), (1, 3), (3, 120), (120, 200)):
        evidence.append(parts.learn(rows[start:end], y[start:end]).log_evidence)
        parts.save(tmp_path / "model")
        parts = spidertensor.load(tmp_path / "model")
    parts = pickle.loads(pickle.dumps(parts))
    for row, value in zip(rows[200:], y[200:], strict=True):
        evidence.append(np.array([parts.learn_one(row, value).log_evidence]))
    np.testing.assert_array_equal(np.concatenate(evidence), update.log_evidence)
    np.testing.assert_array_equal(parts.predict_levels(rows), whole.predict_levels(rows))
    assert parts.predict_one(rows[0]).mean == pytest.approx(whole.predict(rows[:1])[0], rel=1e-12)
    assert checkpoint.load(tmp_path / "model").version == 3
    parts.save(tmp_path / "model")
    whole.save(tmp_path / "whole")
    assert checkpoint.load(tmp_path / "model").arrays["levels/level_counts"].sum() == 305


def test_levels_are_counted_once_however_many_passes():
    X, y, _ = stars(2000)
    model = SpiderRegressor(**SMALL, passes=3, committee=2).fit(X, y)
    counts = [member.stream.level_counts for member in model._fitted().state.members]
    for each in counts:
        np.testing.assert_array_equal(each, 1 + np.bincount(y.astype(int))[1:])


def test_half_stars_that_are_seen_in_fit_are_the_levels():
    X, y, _ = stars(500)
    model = SpiderRegressor(**SMALL, committee=1).fit(X, y / 2)
    np.testing.assert_array_equal(model.levels_, [0.5, 1, 1.5, 2, 2.5])
    assert model.levels is None
    with pytest.raises(EntryError, match=r"row 1: value 3 is not one of the levels 0.5, 1, 1.5, 2, 2.5"):
        model.partial_fit(X[:2], [1.0, 3.0])
    model.fit(X, y)  # forgets the levels too
    np.testing.assert_array_equal(model.levels_, STARS)


def test_a_value_that_is_not_a_level_changes_nothing():
    X, y, _ = stars(100)
    model = SpiderRegressor(**SMALL, levels=STARS, committee=1)
    with pytest.raises(EntryError, match=r"value 2.5 is not one of the levels 1, 2, 3, 4, 5") as caught:
        model.fit(X, np.where(np.arange(100) == 7, 2.5, y))
    assert caught.value.row == 7
    with pytest.raises(EntryError, match="not finite"):
        model.partial_fit(X[:1], [np.nan])
    assert 1 < model.predict_one((0, 0)).mean < 5  # before the first entry, from the prior


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"levels": (1,)}, "levels must be 2 to 100 different numbers"),
        ({"levels": (1, 1, 2)}, "levels must be 2 to 100 different numbers"),
        ({"levels": range(101)}, "levels must be 2 to 100 different numbers"),
        ({"levels": (1, 2), "likelihood": "gaussian"}, "pass likelihood='ordinal'"),
        ({"scaling": (0.0, 1.0)}, "levels are not scaled"),
    ],
)
def test_impossible_levels_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        SpiderRegressor(**SMALL | wrong).fit([(0, 0), (1, 1)], [1.0, 2.0])


def test_what_needs_levels_says_so():
    with pytest.raises(EntryError, match="all values are 3, so the levels are not known"):
        SpiderRegressor(**SMALL).learn_one(("a", "b"), 3)
    with pytest.raises(EntryError, match="there are 150 values"):
        SpiderRegressor(**SMALL).fit(np.zeros((150, 2), int), np.arange(150))
    plain = SpiderRegressor(rank=0, committee=1).fit([(0, 0), (1, 1)], [1.0, 2.0])
    with pytest.raises(ValueError, match="a gaussian model has no levels"):
        plain.predict_levels([(0, 0)])


def test_a_forecast_keeps_the_cut_points_of_its_time():
    X, y, _ = stars(400)
    model = SpiderRegressor(**SMALL, levels=STARS, committee=1, random_state=0).partial_fit(X[:200], y[:200])
    asked = X[390:]
    chance, mean = model.predict_levels(asked), model.predict(asked)
    ends = model.predict_interval(asked, 0.7)
    early = model.forecast(asked[:5])
    model.partial_fit(X[200:390], np.full(190, 5.0))  # which moves all cut points
    late = model.forecast(asked[5:])
    both = Forecast.join([*early, None, *late])
    both = Forecast.from_dict(json.loads(json.dumps(both.to_dict())))[[0, 1, 2, 3, 4]]
    np.testing.assert_array_equal(model.predict_levels(both), chance[:5])
    np.testing.assert_array_equal(both.mean, mean[:5])
    np.testing.assert_array_equal(model.predict_interval(both, 0.7), np.array(ends)[:, :5])
    assert (abs(model.predict_levels(asked[:5]) - chance[:5]) > 0.05).any()
    np.testing.assert_array_equal(model.predict_levels(late), model.predict_levels(asked[5:]))
    update = model.learn(asked, y[390:], forecast=[*early, *[None] * 5])
    place = y[390:395].astype(int) - 1
    np.testing.assert_allclose(update.log_evidence[:5], np.log(chance[np.arange(5), place]), rtol=1e-6)


def test_a_forecast_just_before_changes_nothing():
    X, y, _ = stars(300)
    one, other = (SpiderRegressor(**SMALL, levels=STARS, committee=1, random_state=0) for _ in range(2))
    one.partial_fit(X[:200], y[:200])
    other.partial_fit(X[:200], y[:200])
    for row in range(200, 220):
        update = one.learn(X[row : row + 1], y[row : row + 1])
        made = other.forecast(X[row : row + 1])
        same = other.learn(X[row : row + 1], y[row : row + 1], forecast=made)
        np.testing.assert_allclose(same[:4], update[:4], rtol=1e-6)
    np.testing.assert_allclose(other.predict_levels(X), one.predict_levels(X), rtol=1e-6)


def test_values_known_late_are_levels_too():
    X, y, _ = stars(600)
    when = np.arange(600.0)
    data = {"user": X[:, 0], "movie": X[:, 1], "when": when, "known": when + 50}
    how = {"time": "when", "known_at": "known", "committee": 2}
    model = SpiderRegressor(**SMALL | how, levels=STARS).fit(pa.table(data), y)
    assert model.predict_levels([(1, 2)]).sum() == pytest.approx(1)


@pytest.mark.parametrize(
    "likelihood", ["ordinal:2.0,1.0", "ordinal:1.0", "ordinal:", "ordinal", "ordinal:a,b"]
)
def test_a_forecast_of_impossible_levels_is_refused(likelihood):
    with pytest.raises(EntryError, match="unknown likelihood"):
        Forecast(np.ones((1, 6, 1)), 0, likelihood)
    with pytest.raises(EntryError, match="impossible"):
        Forecast(np.full((1, 6, 1), 0.5) + np.eye(6)[3][None, :, None] / 2, 0, "ordinal:1.0,2.0")


def test_recommend_and_explain_speak_of_the_mean(learned):
    best = learned.recommend({0: 3}, over=1, n=3)
    mean = learned.predict([(3, node) for node in range(15)])
    assert [each.id for each in best] == np.argsort(-mean)[:3].tolist()
    assert best[0].mean == pytest.approx(mean.max())
    assert learned.explain((3, 4)).mean == pytest.approx(learned.predict([(3, 4)])[0])


@pytest.mark.parametrize(
    "damage",
    [
        {"levels/level_counts": np.zeros(5)},
        {"levels/level_counts": np.full(5, 1.5)},
        {"levels/levels": np.arange(5.0)},
        {"levels/levels": np.array(STARS[:4])},
        {"levels/more": np.zeros(5)},
    ],
)
def test_damaged_levels_are_refused(learned, tmp_path, damage):
    learned.save(tmp_path / "model")
    file = checkpoint.load(tmp_path / "model")
    checkpoint.save(
        tmp_path / "damaged", file.arrays | damage, file.sections, {"calibration", "noise", "tally"}
    )
    with pytest.raises(CheckpointError):
        spidertensor.load(tmp_path / "damaged")


def test_levels_of_a_file_are_ascending(learned, tmp_path):
    learned.save(tmp_path / "model")
    file = checkpoint.load(tmp_path / "model")
    file.sections["model"]["params"]["levels"] = list(STARS[::-1])
    checkpoint.save(tmp_path / "damaged", file.arrays, file.sections, {"calibration", "noise"})
    with pytest.raises(CheckpointError, match="not ascending"):
        spidertensor.load(tmp_path / "damaged")


def test_far_off_predictions_have_probabilities_too():
    learned = Ordinal(STARS, np.array([1.0, 1e6, 3.0, 1e6, 1.0]))
    chance = learned.probabilities(np.array([-50.0, 0.0, 50.0]), 1e-4, 1e-4)
    assert chance[0, 0] == chance[2, 4] == 1
    assert np.isfinite(learned.log_evidence(5, -50.0, 1e-4, 1e-4))
