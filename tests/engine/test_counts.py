"""Counts from end to end: what a user meets."""

from __future__ import annotations

import csv
import json
import math
import pickle

import numpy as np
import pytest
from typer.testing import CliRunner

import spidertensor
from model_files import SPECIAL, file_bytes
from spidertensor import CheckpointError, EntryError, SpiderRegressor, checkpoint, cli
from spidertensor.cli import app, moved, program
from spidertensor.demo.synthetic import synthetic
from spidertensor.evaluation import floors, protocols
from spidertensor.method import Batch
from spidertensor.spider.likelihoods import COUNT

SMALL = {"rank": 2, "hidden": (6,), "multilinear": 3, "batch_size": 16, "likelihood": "count"}


def counts(n: int, r: float = 2.0, level: float = 1.0, seed: int = 0):
    """Ids of two modes, counts of dispersion 1/r, and the rates they come from."""
    rng = np.random.default_rng(seed)
    X = rng.integers((20, 15), size=(n, 2))
    rate = np.exp(level + np.sin(X[:, 0]) + 0.7 * np.cos(X[:, 1]))
    return X, rng.negative_binomial(r, r / (r + rate)).astype(float), rate


@pytest.fixture(scope="module")
def learned():
    X, y, rate = counts(20_000)
    model = SpiderRegressor(likelihood="count")
    return model, model.learn(X, y), y, rate


# --- what it learns ---


def test_rates_are_learned_and_never_negative(learned):
    model, update, _, rate = learned
    said = model.likelihood_.expected(update.mean, update.var)
    assert said.min() > 0
    assert np.sqrt(np.mean((np.log(said[-5000:]) - np.log(rate[-5000:])) ** 2)) < 0.12


def test_the_dispersion_is_recovered(learned):
    assert 0.42 < learned[0].noise_ < 0.58  # 1 / r = 0.5
    X, y, _ = counts(20_000, r=1e6)  # all but a Poisson
    assert SpiderRegressor(**SMALL, committee=1).fit(X, y).noise_ < 0.03


def test_the_log_score_is_nearly_that_of_the_truth(learned):
    _, update, y, rate = learned
    truth = COUNT.log_evidence(y, np.log(rate), 1e-9, 0.5)
    assert 0 < (truth - update.log_evidence)[-5000:].mean() < 0.02


def test_std_and_intervals_are_those_of_counts(learned):
    model, update, y, _ = learned
    assert 0.88 < np.mean(np.abs(update.below[-10_000:] - 0.5) < 0.45) < 0.92
    X, y, _rate = counts(5000, seed=1)
    mean, std = model.predict(X, return_std=True)
    assert 0.85 < np.mean((y - mean) ** 2) / np.mean(std**2) < 1.15
    for coverage in (0.5, 0.9):
        low, high = model.predict_interval(X, coverage)
        assert (low == np.floor(low)).all()
        assert (high == np.floor(high)).all()
        assert low.min() >= 0
        assert np.mean((y >= low) & (y <= high)) > coverage - 0.01
    one = model.predict_one(tuple(X[0].tolist()))
    assert (one.mean, one.std) == (mean[0], std[0])


def test_the_level_is_learned_whatever_it_is_and_followed():
    """No first call has to be large, and no scaling is needed. After a change, a hundredfold level."""
    for level in (-3.0, 9.0):
        X, y, rate = counts(6000, level=level)
        model = SpiderRegressor(**SMALL, committee=1)
        for row in range(3):
            model.learn(X[row : row + 1], y[row : row + 1])
        update = model.learn(X[3:], y[3:])
        assert abs(np.mean(update.mean[-1000:] - np.log(rate[-1000:]))) < 0.3
    X, y, rate = counts(12_000)
    y[6000:] = counts(12_000, level=1 + math.log(100))[1][6000:]
    update = SpiderRegressor(**SMALL, committee=1).learn(X, y)
    assert abs(np.mean(update.mean[-1000:] - np.log(100 * rate[-1000:]))) < 0.3


@pytest.mark.slow
def test_one_absurd_count_does_not_wreck_the_model():
    X, y, _ = counts(6000)
    spoiled = y.copy()
    spoiled[4000] = 1e9
    models = [SpiderRegressor(**SMALL).fit(X, values) for values in (y, spoiled)]
    clean, hit = (np.log(model.predict(X[:500])) for model in models)
    assert np.abs(clean - hit).max() < 0.5
    assert models[1].n_clipped_ == models[0].n_clipped_ + 1
    one = SpiderRegressor(**SMALL).fit(X, y)
    assert one.learn_one(tuple(X[0].tolist()), 1e9).log_evidence < -20  # of the true count


@pytest.mark.parametrize("committee", [1, 4])
def test_clipped_is_what_is_not_learned_in_full(committee):
    """A zero among hundreds is far from its prediction, but learned in full."""
    rng = np.random.default_rng(0)
    X = rng.integers((20, 15), size=(4000, 2))
    y = rng.poisson(300.0, 4000).astype(float)
    y[[3000, 3200, 3400]] = 0
    y[[3500, 3700]] = 1e7
    model = SpiderRegressor(**SMALL, committee=committee).fit(X[:2000], y[:2000])
    before = model.n_clipped_
    update = model.learn(X[2000:], y[2000:])
    assert model.n_clipped_ == before + update.clipped
    assert update.clipped == 2
    if committee == 1:
        assert model.n_clipped_ == model._fitted().state.members[0].counts.clipped


def test_zeros_that_are_sure_leave_predictions_sane():
    """Half of the nodes have nothing but zeros. Nothing in a zero says how small its rate is."""
    rng = np.random.default_rng(0)
    X = rng.integers((40, 30), size=(20_000, 2))
    y = np.where(X[:, 0] < 20, 0, rng.poisson(np.exp(3 + np.sin(X[:, 1])))).astype(float)
    update = SpiderRegressor(**SMALL).learn(X, y)
    late, none = slice(15_000, None), X[15_000:, 0] < 20
    mean = COUNT.expected(update.mean, update.var)[late]
    assert mean[none].max() < 1
    assert update.mean.min() > -20
    assert np.corrcoef(mean[~none], y[late][~none])[0, 1] > 0.8


# --- cuts, one entry, files ---


def test_cuts_files_and_single_entries_change_nothing(tmp_path):
    X, y, _ = counts(400)
    rows = [tuple(row) for row in X.tolist()]
    whole = SpiderRegressor(**SMALL)
    said = whole.learn(rows, y)
    parts, told = SpiderRegressor(**SMALL), []
    for start, end in ((0, 1), (1, 3), (3, 120), (120, 240)):
        told.append(parts.learn(rows[start:end], y[start:end]))
        parts.save(tmp_path / "model")
        parts = spidertensor.load(tmp_path / "model")
    parts = pickle.loads(pickle.dumps(parts))
    singles = [parts.learn_one(row, value) for row, value in zip(rows[240:], y[240:], strict=True)]
    assert parts.likelihood_ is COUNT
    assert file_bytes(parts) == file_bytes(whole)
    for field in ("mean", "log_evidence", "below"):
        got = [*np.concatenate([getattr(each, field) for each in told])]
        got += [getattr(each, field) for each in singles]
        np.testing.assert_array_equal(got, getattr(said, field))
    assert singles[-1].expected == COUNT.expected(said.mean, said.var)[-1]
    assert singles[-1].std == COUNT.std(*said[:3])[-1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::spidertensor.SpiderWarning")
def test_a_number_that_was_changed_never_makes_a_nan(tmp_path):
    """As for the others in test_resume.py."""
    path, rng = tmp_path / "model", np.random.default_rng(0)
    X, y, _ = counts(90)
    SpiderRegressor(**SMALL, committee=2).fit(X, y).save(path)
    file, loaded = checkpoint.load(path), 0
    names = [name for name, array in file.arrays.items() if array.dtype.kind == "f"]
    with np.errstate(over="ignore"):
        for name in names:
            for value in SPECIAL:
                damaged = file.arrays[name].copy()
                damaged.flat[rng.integers(damaged.size)] = value
                checkpoint.save(path, file.arrays | {name: damaged}, file.sections)
                try:
                    model = SpiderRegressor.load(path)
                except CheckpointError:
                    continue
                loaded += 1
                for _ in range(2):
                    for told in (*model.predict(X, return_std=True), *model.predict_interval(X, 0.99)):
                        assert np.isfinite(told).all(), (name, value)
                    model.partial_fit(X, y)
    assert loaded > len(names)


def test_the_level_and_the_noise_of_a_file_are_checked(tmp_path):
    X, y, _ = counts(90)
    SpiderRegressor(**SMALL, committee=1).fit(X, y).save(tmp_path / "model")
    file = checkpoint.load(tmp_path / "model")
    for name, value in (
        ("stream/var", 5.0),
        ("stream/mean", 1e4),
        ("stream/shift", 1.0),
        ("posterior/noise/rate", 1e9),
    ):
        changed = {f"committee/members/0/{name}": np.array(value)}
        checkpoint.save(tmp_path / "model", file.arrays | changed, file.sections)
        with pytest.raises(CheckpointError, match="of the counts is impossible"):
            spidertensor.load(tmp_path / "model")


# --- what is refused ---


@pytest.mark.parametrize("value", [2.5, -1.0, math.nan, math.inf])
def test_other_values_are_refused_with_the_remedy(value):
    model = SpiderRegressor(likelihood="count")
    with pytest.raises(EntryError, match=r"not a whole number from 0 on: round it|is not finite") as error:
        model.fit([("a", 1), ("b", 2)], [3, value])
    assert error.value.row == 1
    assert not model.__sklearn_is_fitted__()


def test_a_count_that_is_too_large_is_not_told_to_be_round(file):
    with pytest.raises(EntryError, match=r"row 1: value 1e\+16 is more than 1e\+15.*: count in a larger"):
        SpiderRegressor(likelihood="count").fit([("a", 1), ("b", 2)], [3, 1e16])
    file.write_text("cell,hour,calls\n1,2,3\n1,3,1e16\n")
    columns = ("--modes", "cell,hour", "--value", "calls", "--counts")
    assert "1e+16 is more than 1e+15" in error("fit", file, *columns)


def test_settings_that_have_no_meaning_for_counts():
    X, y, _ = counts(50)
    with pytest.raises(ValueError, match="leave out scaling"):
        SpiderRegressor(likelihood="count", scaling=(0.0, 1.0)).fit(X, y)
    with pytest.raises(ValueError, match='likelihood must be "gaussian", "count" or "ordinal"'):
        SpiderRegressor(likelihood="poisson").fit(X, y)
    model = SpiderRegressor(**SMALL).fit(X, y)
    model.set_params(likelihood="gaussian")  # takes effect at the next fit
    assert model.likelihood_ is COUNT
    assert model.fit(X, y).likelihood_.name == "gaussian"


# --- around it ---


def test_recommendations_are_by_the_rate(learned):
    model = learned[0]
    best = model.recommend({0: 3}, over=1, n=15, coverage=0.9)
    means = [each.mean for each in best]
    assert means == sorted(means, reverse=True)
    wanted = model.predict([(3, each.id) for each in best])
    np.testing.assert_array_equal(means, wanted)
    assert all(each.low <= each.mean <= each.high and each.low == int(each.low) for each in best)
    for explore in ("ucb", "thompson"):
        assert len(model.recommend({0: 3}, over=1, n=5, explore=explore, seed=0)) == 5


def test_floors_of_counts():
    X, y, rate = counts(6000)
    for method in (floors.mean(COUNT), floors.biases(2, COUNT)):
        state, update = method.update(method.init(0), Batch(X, y))
        predicted = method.predict(state, X)
        assert update.log_evidence[-2000:].mean() > -2.6
    assert 0.4 < predicted.noise[0] < 0.65
    assert np.sqrt(np.mean((predicted.mean - np.log(rate)) ** 2)) < 0.15
    state, _ = floors.mean(COUNT).update(floors.mean(COUNT).init(0), Batch(X, y))
    once = floors.mean(COUNT).predict(state, X[:1])
    assert COUNT.expected(*once[:2])[0] == pytest.approx(y.mean(), rel=1e-3)
    assert COUNT.std(*once)[0] == pytest.approx(y.std(), rel=1e-2)


def test_protocols_score_counts():
    data = synthetic((12, 9), 4000, likelihood=COUNT)
    assert COUNT.allows(data.train.value).all()
    for rows in (
        protocols.prequential(floors.biases(2, COUNT), data.in_time_order(), likelihood=COUNT),
        protocols.held_out(floors.biases(2, COUNT), *data.split(0), likelihood=COUNT),
    ):
        (row,) = rows
        assert row["metric"] == "rmse"
        assert row["score"] < np.std(data.train.value)
        assert abs(row["coverage_90"] - 0.9) < 0.03
        assert np.isfinite(row["log_density"])


@pytest.fixture
def file(tmp_path):
    X, y, _ = counts(3000)
    with (tmp_path / "calls.csv").open("w", newline="") as target:
        csv.writer(target).writerows(
            [("cell", "hour", "calls"), *zip(*X.T.tolist(), y.astype(int), strict=True)]
        )
    return tmp_path / "calls.csv"


def spider(*words: object):
    typed = [str(word) for word in words]
    return CliRunner().invoke(app, typed, obj=program.Call(typed, cli._catalogue, moved.forward))


def error(*words: object) -> str:
    """What the command says is wrong."""
    return str(spider(*words).exception)


def test_the_command(file):
    columns = ("--modes", "cell,hour", "--value", "calls", "--counts")
    model, told = file.with_suffix(".spider"), file.with_name("told.csv")
    done = spider("fit", file, *columns, "--model", model, "--predictions", told, "--committee", 1, "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["metric"] == "rmse"
    assert record["score"] < record["floors"]["mean"]
    with told.open() as lines:
        assert min(float(row["mean"]) for row in csv.DictReader(lines)) > 0
    assert "the variance of a count is mean + " in spider("info", model).output
    predicted = spider("predict", model, file, "--interval", 0.9)
    row = next(csv.DictReader(predicted.stdout.splitlines()))
    assert float(row["low"]) == int(float(row["low"])) >= 0
    record = json.loads(spider("evaluate", file, *columns, "--json").stdout)
    assert set(record["floors"]) == {"mean", "biases"}
    assert record["score"] < record["floors"]["mean"]["score"]
    held_out = json.loads(spider("evaluate", file, *columns, "--test", 0.2, "--json").stdout)
    assert set(held_out["floors"]) == {"mean", "biases"}  # the static ones have no counts
    again = spider("fit", file, "--model", model, "--resume", "--counts")
    assert again.exit_code == 0, again.output
    plain = spider("fit", file, *columns[:4], "--model", file.with_name("plain.spider"), "--committee", 1)
    assert plain.exit_code == 0, plain.output
    said = error("fit", file, "--model", file.with_name("plain.spider"), "--resume", "--counts")
    assert "has likelihood 'gaussian', the command says 'count'" in said


def test_the_command_refuses(file):
    columns = ("--modes", "cell,hour", "--value", "calls")
    for options, words in (
        (("--counts", "--binary"), "only one of --binary, --counts and --levels"),
        (("--counts", "--scaling", "0,1"), "not with --counts"),
    ):
        assert words in error("fit", file, *columns, *options)
    static = ("--counts", "--method", "static-biases")
    assert "static-biases cannot learn counts" in error("evaluate", file, *columns, *static)
    file.write_text("cell,hour,calls\n1,2,3\n1,3,2.5\n")
    assert "2.5 is not a whole number from 0 on" in error("fit", file, *columns, "--counts")


@pytest.mark.slow
def test_the_service(tmp_path):
    pytest.importorskip("starlette")
    from serving import serving

    X, y, _ = counts(60)
    rows = [{"cell": a, "hour": b, "calls": c} for a, b, c in zip(*X.T.tolist(), y.tolist(), strict=True)]
    options = ("--modes", "cell,hour", "--value", "calls", "--counts", "--committee", "1")
    with serving(tmp_path, "--model", "calls.spider", *options) as server:
        answer = server.learn(rows)
        assert answer["learned"] == 60
        assert min(each["mean"] for each in answer["predictions"]) > 0
        (one,) = server.predict([{"cell": 1, "hour": 2}], query="?interval=0.9")["predictions"]
        assert one["low"] == int(one["low"])
        assert one["low"] <= one["mean"] <= one["high"]
        assert server.learn([{"cell": 1, "hour": 2, "calls": 0.5}], expect=422)
        assert server.get("/v1/model")["metric"] == "rmse"
        server.stop()
    assert spidertensor.load(tmp_path / "calls.spider").likelihood_ is COUNT
