import json
import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from spidertensor.demo.synthetic import synthetic
from spidertensor.evaluation import floors, metrics, protocols
from spidertensor.evaluation.methods import METHODS
from spidertensor.method import Batch, Method, Prediction, Update
from spidertensor.spider import calibration
from spidertensor.spider.committee import committee
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import Prior
from spidertensor.spider.sequential import sequential

PERCENTS = (50, 80, 90, 95, 99)
CALIBRATED = [f"calibrated_{percent}" for percent in PERCENTS]
WORST = [f"{kind}_90_{end}" for kind in ("coverage", "calibrated") for end in ("lowest", "highest")]


class FakeState(NamedTuple):
    total: np.ndarray  # of the values seen
    count: np.ndarray


def fake(seen, *, unit="batch", binary=False):
    """Predicts the mean of the values so far, with var 0.5 and noise 2 (binary: 0); notes every call."""

    def init(seed):
        seen.append(("init", seed))
        return FakeState(np.zeros(1), np.zeros(1))

    def at(state, n):
        mean = state.total / np.maximum(state.count, 1)
        return Prediction(np.repeat(mean, n), np.full(n, 0.5), np.full(n, 0.0 if binary else 2.0))

    def update(state, batch):
        seen.append(("update", batch.value.tolist()))
        parts = []
        for y in batch.value:
            parts.append(at(state, 1))
            state = FakeState(state.total + y, state.count + 1)
        mean, var, noise = (np.concatenate(part) for part in zip(*parts, strict=True))
        log_evidence = stats.norm(mean, np.sqrt(var + noise)).logpdf(batch.value)
        return state, Update(mean, var, noise, log_evidence, rejected=1, refused=2)

    return Method(init, update, lambda state, index, bags=None: at(state, len(index)), unit)


def some_batch(n, seed=0, binary=False):
    rng = np.random.default_rng(seed)
    value = rng.normal(40, 7, n)
    return Batch(rng.integers(0, 5, (n, 2)), (value > 40).astype(float) if binary else value)


def updates(seen):
    """The values of each update of the second, real run: the first one only warms up."""
    runs = [number for number, (kind, _) in enumerate(seen) if kind == "init"]
    assert len(runs) == 2
    return [values for kind, values in seen[runs[1] :] if kind == "update"]


# --- held out


def test_held_out_agrees_with_a_loop_written_out():
    train, test, seen = some_batch(25), some_batch(10, seed=1), []
    (row,) = protocols.held_out(fake(seen), train, test, likelihood=GAUSSIAN, batch_size=10, seed=7)
    assert updates(seen) == [
        train.value[:10].tolist(),
        train.value[10:20].tolist(),
        train.value[20:].tolist(),
    ]
    assert {seed for kind, seed in seen if kind == "init"} == {7}
    error = test.value - train.value.mean()
    assert row["metric"] == "rmse"
    assert row["score"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert row["mae"] == pytest.approx(np.mean(np.abs(error)))
    assert row["log_density"] == pytest.approx(stats.norm(0, np.sqrt(2.5)).logpdf(error).mean())
    assert row["coverage_50"] == np.mean(np.abs(error) < np.sqrt(2.5) * stats.norm.ppf(0.75))
    assert row["coverage_90"] == np.mean(np.abs(error) < np.sqrt(2.5) * stats.norm.ppf(0.95))
    for level in (0.8, 0.95, 0.99):
        inside = np.abs(error) < np.sqrt(2.5) * stats.norm.ppf((1 + level) / 2)
        assert row[f"coverage_{100 * level:.0f}"] == np.mean(inside)
    assert row["log_loss"] is None
    assert row["calibration_error"] is None
    assert {row[key] for key in (*CALIBRATED, *WORST, "calibrated", "members")} == {None}
    assert (row["n_entries"], row["n_scored"], row["skipped"], row["rejected"]) == (25, 10, 0, 3)
    assert row["refused"] == 6
    assert row["seconds"] > 0
    assert row["entries_per_second"] == pytest.approx(25 / row["seconds"])
    json.dumps(row, allow_nan=False)


def test_held_out_scaled_shows_the_method_scaled_values_and_the_user_their_own():
    train, test, seen = some_batch(40), some_batch(10, seed=1), []
    (row,) = protocols.held_out(fake(seen), train, test, likelihood=GAUSSIAN, batch_size=10, scaled=True)
    shift, scale = train.value[:10].mean(), train.value[:10].std()
    np.testing.assert_allclose(np.concatenate(updates(seen)), (train.value - shift) / scale)
    error = test.value - train.value.mean()
    assert row["score"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert row["log_density"] == pytest.approx(stats.norm(0, scale * np.sqrt(2.5)).logpdf(error).mean())


def test_equal_values_in_the_first_batch_have_scale_1():
    train = Batch(np.zeros((30, 2), np.int64), np.append(np.full(10, 3.0), np.arange(20.0)))
    seen = []
    list(protocols.held_out(fake(seen), train, train, likelihood=GAUSSIAN, batch_size=10, scaled=True))
    np.testing.assert_allclose(np.concatenate(updates(seen)), train.value - 3)


def test_the_running_curve_is_evenly_spaced_and_its_rows_are_the_scores_at_that_point():
    train, test = some_batch(100), some_batch(10, seed=1)
    rows = list(protocols.held_out(fake([]), train, test, likelihood=GAUSSIAN, batch_size=10, at=4))
    assert [row["n_entries"] for row in rows] == [20, 50, 80, 100]
    for row in rows:
        mean = train.value[: row["n_entries"]].mean()
        assert row["score"] == pytest.approx(np.sqrt(np.mean((test.value - mean) ** 2)))
    assert [row["calibration"] is None for row in rows] == [True, True, True, False]
    assert all(rows[0].keys() == row.keys() for row in rows)
    assert [row["rejected"] for row in rows] == [2, 5, 8, 10]
    assert [row["refused"] for row in rows] == [4, 10, 16, 20]
    assert sorted(row["seconds"] for row in rows) == [row["seconds"] for row in rows]


def test_more_rows_than_batches_are_one_row_for_each_batch():
    rows = protocols.held_out(
        fake([]), some_batch(30), some_batch(5), likelihood=GAUSSIAN, batch_size=10, at=50
    )
    assert [row["n_entries"] for row in rows] == [10, 20, 30]


def test_a_static_method_sees_everything_in_one_update():
    train, seen = some_batch(100), []
    method = fake(seen, unit="all")
    (row,) = protocols.held_out(method, train, train, likelihood=GAUSSIAN, batch_size=10, at=4)
    assert updates(seen) == [train.value.tolist()]
    assert row["n_entries"] == 100


def test_held_out_binary():
    train, test = some_batch(50, binary=True), some_batch(40, seed=1, binary=True)
    (row,) = protocols.held_out(fake([], binary=True), train, test, likelihood=PROBIT, scaled=True)
    probability = stats.norm.cdf(train.value.mean() / np.sqrt(1.5))
    assert (row["metric"], row["score"]) == ("auc", 0.5)
    chances = np.where(test.value == 1, probability, 1 - probability)
    assert row["log_density"] == pytest.approx(np.log(chances).mean())
    assert row["log_loss"] == pytest.approx(-row["log_density"])
    assert row["calibration_error"] == pytest.approx(abs(test.value.mean() - probability))
    np.testing.assert_allclose(row["calibration"], [[probability, test.value.mean()]])
    assert row["mae"] is row["coverage_50"] is row["coverage_90"] is None
    assert {row[key] for key in (*CALIBRATED, *WORST, "calibrated")} == {None}
    json.dumps(row, allow_nan=False)


def test_auc_ranks_by_the_probability_even_where_phi_is_1_for_all():
    def predict(state, index, bags=None):
        return Prediction(np.array([20.0, 30.0, 40.0]), np.array([0.0, 0.0, 1e4]), np.zeros(3))

    method = replace(fake([], binary=True), predict=predict)
    test = Batch(np.zeros((3, 2), np.int64), np.array([0.0, 1.0, 0.0]))
    (row,) = protocols.held_out(method, some_batch(5, binary=True), test, likelihood=PROBIT)
    assert row["score"] == 1


# --- prequential


def running_means(value):
    return np.array([value[:n].mean() if n else 0.0 for n in range(len(value))])


def test_prequential_agrees_with_a_loop_written_out_and_leaves_out_the_first_tenth():
    stream, seen = some_batch(103), []
    (row,) = protocols.prequential(fake(seen), stream, likelihood=GAUSSIAN, batch_size=10, seed=3)
    assert np.concatenate(updates(seen)).tolist() == stream.value.tolist()
    error = (stream.value - running_means(stream.value))[10:]
    assert row["score"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert row["mae"] == pytest.approx(np.mean(np.abs(error)))
    assert row["log_density"] == pytest.approx(stats.norm(0, np.sqrt(2.5)).logpdf(error).mean())
    assert row["coverage_90"] == np.mean(np.abs(error) < np.sqrt(2.5) * stats.norm.ppf(0.95))
    assert (row["skipped"], row["n_scored"], row["n_entries"], row["rejected"]) == (10, 93, 103, 11)
    json.dumps(row, allow_nan=False)


def test_prequential_makes_no_second_pass():
    def predict(state, index, bags=None):
        raise AssertionError("prequential scores come from the update")

    list(protocols.prequential(replace(fake([]), predict=predict), some_batch(50), likelihood=GAUSSIAN))


def test_prequential_scaled_is_in_the_users_units():
    stream, seen = some_batch(100), []
    (row,) = protocols.prequential(fake(seen), stream, likelihood=GAUSSIAN, batch_size=10, scaled=True)
    shift, scale = stream.value[:10].mean(), stream.value[:10].std()
    scaled = (stream.value - shift) / scale
    np.testing.assert_allclose(np.concatenate(updates(seen)), scaled)
    error = (scaled - running_means(scaled))[10:] * scale
    assert row["score"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert row["log_density"] == pytest.approx(stats.norm(0, scale * np.sqrt(2.5)).logpdf(error).mean())


def test_prequential_log_density_is_what_the_update_says():
    def update(state, batch):
        state, made = fake([]).update(state, batch)
        return state, made._replace(log_evidence=np.full(len(batch.value), -3.0))

    stream = some_batch(100)
    (row,) = protocols.prequential(
        replace(fake([]), update=update), stream, likelihood=GAUSSIAN, batch_size=10, scaled=True
    )
    assert row["log_density"] == pytest.approx(-3 - math.log(stream.value[:10].std()))


def test_prequential_rows_have_a_window_and_a_running_score():
    stream = some_batch(100)
    rows = list(protocols.prequential(fake([]), stream, likelihood=GAUSSIAN, batch_size=5, at=20))
    error = stream.value - running_means(stream.value)
    assert [row["n_entries"] for row in rows] == list(range(5, 101, 5))
    for row in rows:
        end = row["n_entries"]
        assert row["window_score"] == pytest.approx(np.sqrt(np.mean(error[end - 5 : end] ** 2)))
        expected = stats.norm(0, np.sqrt(2.5)).logpdf(error[end - 5 : end]).mean()
        assert row["window_log_density"] == pytest.approx(expected)
        if end <= 10:
            assert math.isnan(row["score"])
            assert math.isnan(row["log_density"])
            assert row["n_scored"] == 0
        else:
            assert row["score"] == pytest.approx(np.sqrt(np.mean(error[10:end] ** 2)))
    (only,) = protocols.prequential(fake([]), stream, likelihood=GAUSSIAN, batch_size=5)
    assert only["score"] == rows[-1]["score"]


def test_prequential_binary():
    stream = some_batch(200, binary=True)
    (row,) = protocols.prequential(floors.mean(PROBIT), stream, likelihood=PROBIT)
    rate = np.array([(stream.value[:n].sum() + 1) / (n + 2) for n in range(200)])[20:]
    assert row["score"] == pytest.approx(metrics.auc(stream.value[20:], rate))
    assert row["log_density"] == pytest.approx(-metrics.log_loss(stream.value[20:], rate))
    assert row["calibration_error"] == pytest.approx(metrics.calibration_error(stream.value[20:], rate))


def test_a_static_method_has_no_prequential_score():
    with pytest.raises(ValueError, match="static"):
        next(protocols.prequential(fake([], unit="all"), some_batch(10), likelihood=GAUSSIAN))


@pytest.mark.parametrize("bad", [{"batch_size": 0}, {"at": 0}, {"n": 0}])
def test_nothing_to_do_is_an_error(bad):
    train = some_batch(bad.pop("n", 10))
    with pytest.raises(ValueError, match="must be positive"):
        next(protocols.held_out(fake([]), train, some_batch(5), likelihood=GAUSSIAN, **bad))


# --- intervals


# What is added to a prediction of 0 with standard deviation 1: mean 0, variance 1, skewed, a heavy tail.
SKEWED = stats.lognorm(1.0, loc=-math.exp(0.5) / 2.1612, scale=1 / 2.1612)


def always_0(state, index, bags=None):
    n = len(index)
    return Prediction(np.zeros(n), np.full(n, 0.4), np.full(n, 0.6))


def knows_its_residuals():
    """Predicts 0 with standard deviation 1 whatever comes, and calibrates as a committee does."""

    def update(state, batch):
        predicted = always_0(state, batch.index)
        log_evidence = stats.norm.logpdf(batch.value)
        below = np.empty(len(batch.value))
        calibration.note(
            state.mass, calibration.MEMORY_ENTRIES, batch.value.copy(), np.isfinite(batch.value), below
        )
        return state, Update(*predicted, log_evidence, rejected=0, below=below)

    return Method(lambda seed: calibration.start(), update, always_0, "entry", calibration.quantile)


def skewed_entries(n, seed=0):
    value = SKEWED.rvs(n, random_state=np.random.default_rng(seed))
    return Batch(np.zeros((n, 2), np.int64), value)


def test_the_skewed_law_is_what_it_is_said_to_be():
    mean, var, skewness = SKEWED.stats("mvs")
    assert (mean, var) == pytest.approx((0, 1), abs=1e-3)
    assert skewness > 5


def test_residuals_with_a_skewed_heavy_tail_plain_intervals_are_off_and_calibrated_ones_right():
    (row,) = protocols.prequential(knows_its_residuals(), skewed_entries(60_000), likelihood=GAUSSIAN)
    for percent in PERCENTS:
        assert row[f"calibrated_{percent}"] == pytest.approx(percent / 100, abs=0.01)
        normal = SKEWED.cdf(stats.norm.interval(percent / 100))  # what plain ones cover of this law
        assert row[f"coverage_{percent}"] == pytest.approx(np.diff(normal)[0], abs=0.01)
    assert row["coverage_50"] > 0.6
    assert 0.86 < row["calibrated_90_lowest"] < 0.9 < row["calibrated_90_highest"] < 0.94
    np.testing.assert_allclose(*np.transpose(row["calibrated"]), atol=0.01)
    level, covered = np.transpose(row["calibration"])
    assert np.abs(covered - level).max() > 0.1


def test_calibrated_intervals_of_held_out_values_have_the_quantiles_of_the_state():
    states = []

    def quantile(state, probability):
        states.append(state)
        return float(SKEWED.ppf(probability))

    method = replace(knows_its_residuals(), quantile=quantile)
    train, test = skewed_entries(1_000), skewed_entries(40_000, seed=1)
    (row,) = protocols.held_out(method, train, test, likelihood=GAUSSIAN)
    for percent in PERCENTS:
        low, high = SKEWED.interval(percent / 100)
        assert row[f"calibrated_{percent}"] == np.mean((test.value >= low) & (test.value <= high))
        assert row[f"calibrated_{percent}"] == pytest.approx(percent / 100, abs=0.01)
    assert len({id(state) for state in states}) == 1
    learned = calibration.start()
    calibration.note(
        learned.mass, calibration.MEMORY_ENTRIES, train.value.copy(), np.ones(1_000, bool), np.empty(1_000)
    )
    np.testing.assert_array_equal(states[0].mass, learned.mass)  # after all of the training entries


def test_calibrated_intervals_of_scaled_values_are_in_the_users_units():
    train, test = skewed_entries(100), skewed_entries(500, seed=1)
    train, test = (Batch(each.index, 40 + 7 * each.value) for each in (train, test))
    method = replace(knows_its_residuals(), quantile=lambda state, probability: 3 * probability - 1)
    (row,) = protocols.held_out(method, train, test, likelihood=GAUSSIAN, scaled=True)
    shift, scale = train.value.mean(), train.value.std()
    low, high = shift + scale * (3 * 0.05 - 1), shift + scale * (3 * 0.95 - 1)
    assert row["calibrated_90"] == np.mean((test.value >= low) & (test.value <= high))


def test_a_calibrated_prequential_score_is_that_of_asking_before_each_entry():
    """Entry by entry through predict and quantile, then learned: the same as the rows, however it is cut."""
    method = METHODS["spider"].build(2, 2, GAUSSIAN, 16)
    rng = np.random.default_rng(8)
    index = rng.integers(0, 4, (400, 2))
    stream = Batch(index, index[:, 0] - 0.5 * index[:, 1] + rng.standard_t(2.5, 400))
    (row,) = protocols.prequential(method, stream, likelihood=GAUSSIAN, batch_size=64)
    state, inside = method.init(0), {percent: [] for percent in PERCENTS}
    assert method.quantile is not None
    for number in range(400):
        entry = Batch(stream.index[number : number + 1], stream.value[number : number + 1])
        ((mean,), (var,), (noise,)) = method.predict(state, entry.index)
        for percent, kept in inside.items():
            low, high = (method.quantile(state, (100 + side * percent) / 200) for side in (-1, 1))
            std = math.sqrt(var + noise)
            kept.append(mean + std * low <= entry.value[0] <= mean + std * high)
        state, _ = method.update(state, entry)
    assert all(set(nodes) == {0, 1, 2, 3} for nodes in stream.index[:40].T)  # a new node starts as drawn
    for percent, kept in inside.items():
        assert row[f"calibrated_{percent}"] == pytest.approx(np.mean(kept[40:]), abs=1e-12)
    assert row["members"] == pytest.approx(state.weights)


def test_worst_windows_are_of_scored_entries_and_only_where_there_are_enough():
    stream = skewed_entries(6_000)
    rows = list(
        protocols.prequential(knows_its_residuals(), stream, likelihood=GAUSSIAN, batch_size=100, at=6)
    )
    assert [row["n_scored"] for row in rows] == [400, 1_400, 2_400, 3_400, 4_400, 5_400]
    assert all(row[key] is None for row in rows[:-1] for key in WORST)
    inside = np.abs(stream.value) <= stats.norm.ppf(0.95)
    windows = [inside[start : start + 5_000].mean() for start in range(600, 1_001)]
    assert rows[-1]["coverage_90_lowest"] == pytest.approx(min(windows))
    assert rows[-1]["coverage_90_highest"] == pytest.approx(max(windows))


def test_a_refused_entry_is_in_no_interval():
    stream = skewed_entries(200)
    stream.value[150] = math.inf
    method = knows_its_residuals()
    (row,) = protocols.prequential(method, stream, likelihood=GAUSSIAN, batch_size=50)
    (before,) = protocols.prequential(method, skewed_entries(200), likelihood=GAUSSIAN, batch_size=50)
    for kind in ("coverage", "calibrated"):
        assert row[f"{kind}_99"] <= before[f"{kind}_99"]
        assert math.isfinite(row[f"{kind}_99"])


def test_members_are_the_weights_of_a_committee_as_the_rows_go_on():
    stream = some_batch(300)
    members = [floors.mean(GAUSSIAN), floors.biases(2, GAUSSIAN)]
    method = committee(members, GAUSSIAN)
    rows = list(protocols.prequential(method, stream, likelihood=GAUSSIAN, batch_size=50, at=3))
    state, learned = method.init(0), 0
    for row in rows:
        part = slice(learned, row["n_entries"])
        state, _ = method.update(state, Batch(stream.index[part], stream.value[part]))
        learned = row["n_entries"]
        assert row["members"] == state.weights.tolist()
    assert len({tuple(row["members"]) for row in rows}) == 3
    (row,) = protocols.held_out(method, stream, some_batch(20, seed=1), likelihood=GAUSSIAN, batch_size=50)
    assert row["members"] == rows[-1]["members"]


def test_binary_values_have_members_but_no_intervals():
    method = committee([floors.mean(PROBIT), floors.biases(2, PROBIT)], PROBIT)
    (row,) = protocols.prequential(method, some_batch(200, binary=True), likelihood=PROBIT)
    assert len(row["members"]) == 2
    assert {row[key] for key in (*CALIBRATED, *WORST, "calibrated", "coverage_99")} == {None}


# --- with real methods


@pytest.mark.parametrize("likelihood", [GAUSSIAN, PROBIT])
def test_spider_beats_the_floors_on_synthetic_data_and_knows_how_well(likelihood):
    dataset = synthetic((20, 15), 15_000, likelihood=likelihood)
    train, test = dataset.split(0)
    methods = {
        "mean": (floors.mean(likelihood), False),
        "biases": (floors.biases(2, likelihood), False),
        "spider": (sequential(Network((4, 4)), likelihood, Prior()), True),
    }
    result = {}
    for name, (method, scaled) in methods.items():
        (result[name],) = protocols.held_out(method, train, test, likelihood=likelihood, scaled=scaled)
    assert result["mean"]["log_density"] < result["biases"]["log_density"] < result["spider"]["log_density"]
    if likelihood is PROBIT:
        assert result["mean"]["score"] == 0.5 < result["biases"]["score"] < result["spider"]["score"]
        assert result["spider"]["calibration_error"] < 0.05
    else:
        assert 0.3 < result["spider"]["score"] < 0.45 < result["biases"]["score"] < result["mean"]["score"]
        assert result["mean"]["score"] == pytest.approx(test.value.std(), rel=0.05)


def test_batches_are_learned_together_where_cuts_change_nothing(monkeypatch):
    """Rows come after the same entries, with the same scores."""
    monkeypatch.setattr(protocols, "CALL_ENTRIES", 20)
    stream, found, sizes = some_batch(103), [], []
    for unit in ("entry", "batch"):
        seen = []
        method = fake(seen, unit=unit)
        found.append(list(protocols.prequential(method, stream, likelihood=GAUSSIAN, batch_size=5, at=4)))
        sizes.append([len(told) for what, told in seen if what == "update"][1:])  # the first one compiles
    assert sizes == [[20, 5, 15, 10, 10, 20, 20, 3], [5] * 20 + [3]]  # rows after 5, 10, 16, 21 batches
    for one, other in zip(*found, strict=True):
        for name in ("n_entries", "score", "log_density", "window_score", "coverage_90"):
            assert one[name] == other[name]


def test_timing_leaves_out_the_compilation(monkeypatch):
    clock, costs = [0.0], [100.0]  # the first update is slow, as one that compiles is
    monkeypatch.setattr(protocols, "perf_counter", lambda: clock[0])

    def update(state, batch):
        clock[0] += costs.pop() if costs else 1.0
        return fake([]).update(state, batch)

    method = replace(fake([]), update=update)
    (row,) = protocols.held_out(method, some_batch(20), some_batch(5), likelihood=GAUSSIAN, batch_size=5)
    assert row["seconds"] == 4  # of four batches
