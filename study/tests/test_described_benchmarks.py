"""benchmarks/attributes.py, cold_start.py and ten_modes.py: what models are given, and what is scored."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from spidertensor.evaluation import floors, protocols
from spidertensor.spider.likelihoods import GAUSSIAN
from spidertensor_study.datasets import synthetic
from spidertensor_study.datasets.ten_modes import APPS_PER_USER, MODES, NOISE, SHARES, SIZES, ten_modes

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import attributes
import cold_start
from described_data import ATTRIBUTES, IDS, Described
from described_static import STATIC
from described_streams import FIRST, STREAMING

PEERS = [label for label in (*STREAMING, *STATIC) if label not in ("online biases", "spidertensor")]


def small() -> Described:
    genres = np.empty(9, object)
    genres[:] = [["Drama", "War"], *([["Comedy"]] * 8)]
    users = {"age": np.arange(20, 32), "gender": np.array(["F", "M"] * 6)}
    movies = {"year": np.array([1994.0, np.nan, *range(1990, 1997)]), "genres": genres}
    return Described(synthetic((12, 9), 400), (users, movies))


def test_a_bag_has_the_id_and_what_is_known():
    users, movies = small().bags(ATTRIBUTES)
    assert users[1] == [("id=1", 1), ("age=2", 1), ("gender=M", 1)]
    assert users[11][1] == ("age=3", 1)
    half = pytest.approx(2**-0.5)
    assert movies[0] == [("id=0", 1), ("year=398", 1), ("genres=Drama", half), ("genres=War", half)]
    assert movies[1] == [("id=1", 1), ("genres=Comedy", 1)]  # its year is missing
    assert small().bags(IDS)[0] == [[(f"id={node}", 1)] for node in range(12)]


@pytest.mark.parametrize("label", [label for label in STREAMING if label != "spidertensor"])
def test_an_entry_is_predicted_before_it_is_learned(label):
    model, described = STREAMING[label], small()
    pytest.importorskip(model.package)
    index, value = described.data.train[:2]
    other = np.append(value[:-1], value[-1] + 100)
    columns = model.columns[-1]
    first, second = (
        model.make(described, columns, value[:FIRST], **model.start).learn(index, each)
        for each in (value, other)
    )
    np.testing.assert_array_equal(first, second)
    changed = model.make(described, columns, value[:FIRST], **model.start)
    changed.learn(index, other)
    assert not np.allclose(changed.predict(index[-1:]), first[-1])


@pytest.mark.parametrize("label", PEERS)
def test_every_peer_runs_on_a_few_entries(label, tmp_path, monkeypatch):
    pytest.importorskip((STREAMING | STATIC)[label].package)
    monkeypatch.setattr(attributes, "movielens", lambda name: small())
    rows = tmp_path / "rows.jsonl"
    attributes.main(["synthetic", "--models", label, "--seeds", "0", "--rows", str(rows)])
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert len(found) == (2 if label in STATIC else 4)
    assert all(np.isfinite(row["rmse"]) for row in found)


def test_online_biases_are_those_of_the_protocol():
    described = small()
    method = floors.biases(2, GAUSSIAN)
    *_, row = protocols.prequential(method, described.data.in_time_order(), likelihood=GAUSSIAN)
    score, _ = attributes.streamed(STREAMING["online biases"], described, IDS, attributes.PREQUENTIAL, 0)
    assert score == pytest.approx(row["score"], rel=1e-9)


def test_the_first_ratings_of_new_nodes():
    nodes = np.array([7, 3, 7, 5, 5, 3, 5, 9])
    assert cold_start.seen_before(nodes).tolist() == [0, 0, 1, 0, 1, 1, 2, 0]
    errors = np.array([0, 0, 0, 4, 16, 0, 1, 36.0])  # squares; 7 and 3 are not new after two entries
    found, n_new = cold_start.curve(nodes, errors, skipped=2)
    assert n_new == 2
    assert found == {
        "1": pytest.approx(np.sqrt((4 + 36) / 2), abs=1e-4),
        "2": pytest.approx(np.sqrt((4 + 36 + 16) / 3), abs=1e-4),
        **dict.fromkeys(("5", "10", "20"), pytest.approx(np.sqrt((4 + 36 + 16 + 1) / 4), abs=1e-4)),
    }


def test_ten_modes_have_the_truth_they_say():
    data = ten_modes(20_000)
    index = np.concatenate([data.train.index, data.tests["paper"].index])
    truth = np.concatenate([data.truth["train"], data.truth["test"]])
    value = np.concatenate([data.train.value, data.tests["paper"].value])
    assert data.shape == tuple(SIZES.values())
    assert (index.min(axis=0) >= 0).all()
    assert (index.max(axis=0) < data.shape).all()
    assert (truth.mean(), truth.std()) == (pytest.approx(0, abs=1e-9), pytest.approx(1))
    assert (value - truth).std() == pytest.approx(NOISE, rel=0.03)
    assert sum(SHARES.values()) == pytest.approx(1)
    column = dict(zip(MODES, index.T, strict=True))
    np.testing.assert_array_equal(column["weekend"], column["weekday"] >= 5)
    np.testing.assert_array_equal(column["country"], column["city"] // 3)
    pairs = np.unique(index[:, :2], axis=0)
    assert np.bincount(pairs[:, 0]).max() <= APPS_PER_USER


def test_biases_alone_explain_their_share_of_ten_modes():
    """Knowing every node's mean leaves about what is not in the biases."""
    data = ten_modes(60_000)
    method = floors.static_biases(len(MODES), GAUSSIAN)
    state, _ = method.update(method.init(0), data.train)
    left = np.mean((method.predict(state, data.tests["paper"].index).mean - data.truth["test"]) ** 2)
    assert 1 - SHARES["biases"] - 0.25 < left < 1 - SHARES["biases"] + 0.1
