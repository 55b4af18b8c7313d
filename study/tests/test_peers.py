"""benchmarks/peers.py runs with whichever libraries are installed, and the pages say what its rows say."""

from __future__ import annotations

import json
import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pages import ROOT, number, table
from spidertensor.method import Batch
from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT
from spidertensor_study import datasets
from spidertensor_study.datasets import Dataset, synthetic

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import peer_models
import peers

ENTRIES = 200


def small(shape: tuple[int, ...] = (12, 9), n_entries: int = ENTRIES, **settings) -> Dataset:
    return synthetic(shape, n_entries, **settings)


def needs(label: str) -> None:
    if label in peers.PEERS:
        pytest.importorskip(peers.PEERS[label].package, reason=f"{label}: pip install './study[peers]'")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Fewer iterations: what is tested is that everything runs, not how well."""
    fewer = {"myFM": {"rank": 3, "n_iter": 12, "n_kept_samples": 8}}
    for label, start in fewer.items():
        monkeypatch.setitem(peers.PEERS, label, peers.PEERS[label]._replace(start=start))


@pytest.mark.parametrize("likelihood", [GAUSSIAN, PROBIT], ids=lambda each: each.name)
@pytest.mark.parametrize("label", [*peers.OURS, *peers.PEERS])
def test_every_model_runs_on_a_few_entries(label, likelihood):
    needs(label)
    row = json.loads(json.dumps(peers.run(label, small(likelihood=likelihood), 0)))
    (scores,) = row["scores"].values()
    assert scores["metric"] == likelihood.metric
    assert math.isfinite(scores["score"])
    assert row["bytes"] > 100
    assert row["passes"] >= 1
    can = peers.can(label)
    assert (scores["log_density"] is not None) == (can.binary if likelihood is PROBIT else can.uncertainty)


@pytest.mark.parametrize("label", peers.PEERS)
def test_more_modes_and_time_order_where_a_peer_can(label):
    needs(label)
    can = peers.PEERS[label].can
    row = peers.run(label, small((8, 7, 6)), 0)
    assert ("scores" in row) == can.many_modes
    stream = replace(small((8, 7)), name="flights", time_order=np.arange(ENTRIES))
    row = peers.run(label, stream, 0)
    assert ("scores" in row) == can.streams
    if can.streams:
        assert math.isfinite(row["scores"]["stream"]["score"])


def test_tuning_does_not_see_the_test():
    needs("River BiasedMF")
    data = small()
    (name,) = data.tests
    held = data.tests[name]
    other = replace(data, tests={name: Batch(held.index, -10 * held.value)})
    found, changed = (peers.run("River BiasedMF", each, 0) for each in (data, other))
    assert found["settings"] == changed["settings"]
    assert found["scores"] != changed["scores"]


def test_in_time_order_no_value_is_seen_before_it_is_predicted():
    pytest.importorskip("river")
    n, changed = 2 * peer_models.BATCH, peer_models.BATCH + 100  # behind those that give the scale
    data = small(n_entries=n)
    other = Batch(data.train.index, np.where(np.arange(n) == changed, 30.0, data.train.value))

    def predicted(entries: Batch) -> list[float]:
        model = peer_models.factorization_machine(data, **peers.PEERS["River FM"].start)
        return peer_models.predicted_in_time(model, entries).tolist()

    before, after = predicted(data.train), predicted(other)
    assert before[: changed + 1] == after[: changed + 1]
    assert before[changed + 1 :] != after[changed + 1 :]


def test_the_mean_over_samples_is_what_myfm_predicts():
    myfm = pytest.importorskip("myfm", reason="pip install './study[peers]'")
    data = small((8, 7, 6))
    fitted = peer_models.myfm(data.train, data, rank=3, n_iter=20, n_kept_samples=15)
    assert isinstance(fitted.model, myfm.MyFMGibbsRegressor)
    index = data.train.index[:50]
    ones = np.zeros((50, sum(data.shape)))
    ones[np.arange(50)[:, None], index + np.array([0, 8, 15])] = 1
    mean, var = fitted.predict(index)
    np.testing.assert_allclose(mean, fitted.model.predict(ones), rtol=1e-6, atol=1e-9)
    noises = [1 / each.alpha for each in fitted.model.history_.hypers[-15:]]
    assert (var > statistics.mean(noises)).all()


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets, "load", lambda name: replace(small(), name=name))
    rows = tmp_path / "rows.jsonl"
    asked = ["made-up", "--rows", str(rows), "--peers", "online biases", "--seeds"]
    peers.main([*asked, "0"])
    first = rows.read_text()
    peers.main([*asked, "0", "1"])
    assert rows.read_text().startswith(first)
    assert [json.loads(line)["seed"] for line in rows.read_text().splitlines()] == [0, 1]


# --- what the pages say

PAGE = ROOT / "study" / "docs" / "benchmarks.md"
FIRST = "movielens-100k RMSE ↓"  # column of the table of scores
COLUMNS = [  # of that table: data set, test sets, which score, digits
    ("movielens-100k", ("paper",), "score", 3),
    ("movielens-100k", ("paper",), "log_density", 3),
    ("movielens-1m", ("paper",), "score", 3),
    ("movielens-1m", ("paper",), "log_density", 3),
    ("acc", ("paper", "clean"), "score", 3),
    ("anime", ("paper",), "score", 3),
    ("dblp", ("paper", "clean"), "score", 3),
    ("flights", ("stream",), "score", 1),
]


def measured() -> dict[tuple[str, str], list[dict]]:
    """(model, data set) -> the rows of its seeds."""
    found: dict[tuple[str, str], list[dict]] = {}
    for row in map(json.loads, peers.ROWS.read_text(encoding="utf-8").splitlines()):
        found.setdefault((row["peer"], row["data"]), []).append(row)
    return found


def in_words(rows: list[dict], tests: tuple[str, ...], metric: str, digits: int) -> str:
    """A cell: "cannot", empty of what was not run or has no such score, or the means over seeds."""
    if not rows or "not_run" in rows[0]:
        return "cannot" if rows else ""
    found = [[row["scores"][test][metric] for row in rows] for test in tests]
    if None in found[0]:
        return ""
    return " / ".join(f"{statistics.mean(seeds):.{digits}f}".replace("-", "−") for seeds in found)


def test_every_row_is_of_one_seed_of_one_model():
    for (label, data), rows in measured().items():
        assert label in {*peers.OURS, *peers.PEERS}
        assert data in peers.DATA
        seeds = [row["seed"] for row in rows]
        assert sorted(seeds) == list(range(len(seeds))), (label, data)


def test_the_table_of_scores_is_what_was_measured():
    rows, shown = measured(), table(PAGE, FIRST)
    assert set(shown) == {*peers.OURS, *peers.PEERS}
    for label, cells in shown.items():
        for (data, *how), cell in zip(COLUMNS, cells, strict=True):
            assert cell == in_words(rows.get((label, data), []), *how), (label, data)


def test_the_table_of_costs_is_what_was_measured():
    rows, shown = measured(), table(PAGE, "| CPU seconds of tuning |")
    assert set(shown) == {label for label, data in rows if data == "movielens-1m"}
    for label, (passes, seconds, tuning, megabytes) in shown.items():
        (row,) = rows[label, "movielens-1m"]
        assert (number(passes), number(tuning or "0")) == (row["passes"], round(row["tuning_cpu_seconds"]))
        assert seconds == f"{row['cpu_seconds']:.1f}"
        assert megabytes == f"{row['bytes'] / 1e6:.1f}"


def test_what_each_can_do_is_what_the_benchmark_knows():
    shown = table(PAGE, "| learns on |")
    assert set(shown) == {"spidertensor", *peers.PEERS}
    for label, cells in shown.items():
        can = peers.PEERS[label].can if label in peers.PEERS else peers.OURS_CAN
        assert cells == ["yes" if each else "no" for each in can], label


def test_the_table_in_the_readme_is_what_was_measured():
    rows, shown = measured(), table(ROOT / "README.md", "CPU seconds")
    assert "myFM" in shown  # which is ahead of ours
    assert len(shown) <= 6
    for label, (film, conference, passes, seconds, learns_on) in shown.items():
        (row,) = rows[label, "movielens-1m"]
        assert film == in_words([row], ("paper",), "score", 3)
        assert conference == in_words(rows.get((label, "dblp"), []), ("paper",), "score", 3)
        assert (passes, seconds) == (str(row["passes"]), f"{row['cpu_seconds']:.0f}")
        assert learns_on == ("yes" if peers.can(label).streams else "no")
