"""Counts that vary less than random ones are noted; random ones never are, however they are predicted."""

from __future__ import annotations

import json
import warnings
from itertools import pairwise

import numpy as np
import pytest
from typer.testing import CliRunner

from spidertensor import SpiderRegressor, SpiderWarning
from spidertensor.cli import app
from spidertensor.estimator import steady_counts

SMALL = {"rank": 2, "hidden": (4,), "committee": 1, "likelihood": "count"}
N = 3_000


def rates(level: float, seed: int = 0):
    rng = np.random.default_rng(seed)
    X = rng.integers((20, 15), size=(N, 2))
    return rng, X, np.exp(level + np.sin(X[:, 0]) + 0.7 * np.cos(X[:, 1]))


def fitted(X, y):
    return SpiderRegressor(**SMALL).fit(X, y)


def noted(call) -> list[SpiderWarning]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [each.message for each in caught if isinstance(each.message, SpiderWarning)]


def kinds(call) -> list[str]:
    return [each.kind for each in noted(call)]


@pytest.mark.parametrize("level", [0.0, 1.0, 3.0, 5.0])
def test_rounded_means_are_noted(level):
    _, X, rate = rates(level)
    assert kinds(lambda: fitted(X, np.round(rate))) == ["steady"]


def test_the_note_has_the_share_of_the_variance_and_the_way_out():
    rng, X, rate = rates(3.0)
    (note,) = noted(lambda: fitted(X, np.round(rate) + rng.integers(-1, 2, N)))
    assert "vary less than random counts do, with 0.0" in note.reason  # the truth: 0.67 / 20
    assert 'without likelihood="count"' in note.remedy


def test_zeros_and_ones_have_a_model_of_their_own():
    rng, X, _ = rates(0.0)
    (note,) = noted(lambda: fitted(X, rng.binomial(1, 0.9, N)))
    assert note.kind == "0 or 1"
    assert "SpiderClassifier" in note.remedy
    assert kinds(lambda: fitted(X, rng.binomial(1, 0.2, N))) == []  # as good as counts


def test_zeros_and_ones_after_other_counts_are_no_yes_and_no():
    rng, X, _ = rates(0.0)
    y = np.where(np.arange(N) < 1_000, rng.poisson(4, N), rng.binomial(1, 0.95, N))
    assert "0 or 1" not in kinds(lambda: fitted(X, y))
    model = fitted(X[:1_000], y[:1_000])
    assert "0 or 1" not in kinds(lambda: model.partial_fit(X[1_000:], y[1_000:]) and model._warn_at_end())


def test_nothing_but_ones_is_one_value():
    _, X, _ = rates(0.0)
    assert kinds(lambda: fitted(X, np.ones(N))) == kinds(lambda: fitted(X, np.full(N, 5))) == ["one value"]


def test_a_timetable_is_noted():
    """0, 1 or 2 flights, by route; a tenth of them is cancelled."""
    rng, X, _ = rates(0.0)
    assert kinds(lambda: fitted(X, rng.binomial(X[:, 0] % 3, 0.9))) == ["steady"]


@pytest.mark.parametrize("level", [-3.0, 0.0, 1.0, 5.0])
def test_random_counts_are_no_note(level):
    rng, X, rate = rates(level)
    assert kinds(lambda: fitted(X, rng.poisson(rate))) == []
    assert kinds(lambda: fitted(X, rng.negative_binomial(2, 2 / (2 + rate)))) == []


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3])
def test_zeros_and_ones_are_no_note(rate):
    rng, X, _ = rates(0.0)
    assert kinds(lambda: fitted(X, rng.random(N) < rate)) == []


def test_new_ids_whose_rates_are_hardly_known_are_no_note():
    """Their predictions are far wider than their counts vary."""
    rng = np.random.default_rng(0)
    X = np.arange(2 * N).reshape(N, 2)
    assert kinds(lambda: fitted(X, rng.poisson(60, N))) == []


def test_wrong_predictions_of_random_counts_are_no_note():
    """Where 0.3 is predicted for zeros, squares of 0.09 are less than the variance of a rate of 0.3."""
    rng = np.random.default_rng(0)
    rate = np.where(np.arange(20_000) % 2, 0.0, 0.1)
    for wrong in (0.2, 0.3, 1.0):
        assert steady_counts.note(rng.poisson(rate).astype(float), np.full(20_000, wrong)) is None


def test_few_entries_or_few_ones_say_nothing():
    ones, exact = np.ones(2_000), np.full(2_000, 0.99)
    assert steady_counts.note(ones, exact) is not None
    assert steady_counts.note(ones[:900], exact[:900]) is None
    rare = np.where(np.arange(2_000) % 20, 0.0, 1.0)
    assert steady_counts.note(rare, np.maximum(0.99 * rare, 0.01)) is None


def test_a_stream_is_told_once_however_it_comes():
    _, X, rate = rates(1.0)
    X, y = np.tile(X, (7, 1)), np.tile(np.round(rate), 7)
    model = SpiderRegressor(**SMALL)
    cuts = [0, 3_000, 9_900, 21_000]
    parts = [slice(*pair) for pair in pairwise(cuts)]
    assert [kinds(lambda part=part: model.learn(X[part], y[part])) for part in parts] == [[], [], ["steady"]]
    one_by_one = SpiderRegressor(**SMALL)
    one_by_one.learn(X[:300], y[:300])
    for ids, value in zip(X[300:1_500].tolist(), y[300:1_500].tolist(), strict=True):
        one_by_one.learn_one(tuple(ids), value)
    assert kinds(one_by_one._warn_at_end) == ["steady"]


def test_the_command_names_its_option(tmp_path):
    _, X, rate = rates(1.0)
    rows = "".join(f"{a},{b},{y:.0f}\n" for (a, b), y in zip(X.tolist(), rate, strict=True))
    (tmp_path / "a.csv").write_text("cell,hour,calls\n" + rows)
    columns = ("--modes", "cell,hour", "--value", "calls", "--counts", "--rank", "2", "--hidden", "4")
    words = ["fit", f"{tmp_path}/a.csv", *columns, "--committee", "1", "--model", f"{tmp_path}/a", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    (note,) = json.loads(done.stdout)["notes"]
    assert note["kind"] == "steady"
    assert "without --counts" in note["remedy"]
    assert note["remedy"] in note["text"]
