"""The data sets of the paper as events."""

from __future__ import annotations

import numpy as np
import pytest

from spidertensor_study import datasets


@pytest.mark.parametrize(
    ("name", "n", "over", "in_time"),
    [
        ("movielens-1m-events", 1_000_209, "movie", True),
        ("movielens-100k-events", 100_000, "movie", True),
        ("anime-events", 254_581, "anime", False),
        ("dblp-events", 155_185, "conference", False),
    ],
)
def test_data_sets_as_events(data_folder, monkeypatch, name, n, over, in_time):
    monkeypatch.setenv("SPIDER_DATA", str(data_folder))
    data = datasets.load(name)
    assert len(data.train.value) == n
    assert (data.train.value == 1).all()
    assert data.events_over == over
    assert over in data.modes
    assert not data.tests
    assert (data.time_order is not None) == in_time


def test_entries_of_0_are_no_events_and_time_is_kept(tmp_path, monkeypatch):
    index = np.array([[0, 0], [1, 0], [0, 1], [1, 1], [2, 0]], np.uint32)
    np.savez(
        tmp_path / "movielens-100k.npz", indices=index, values=np.array([3.0, 0, 1, 5, 2]),
        shape=np.array([3, 2]), time_order=np.array([4, 1, 3, 0, 2]),
    )  # fmt: skip
    monkeypatch.setenv("SPIDER_DATA", str(tmp_path))
    data = datasets.load("movielens-100k-events")
    assert data.train.index.tolist() == [[0, 0], [0, 1], [1, 1], [2, 0]]
    assert data.in_time_order().index.tolist() == [[2, 0], [1, 1], [0, 0], [0, 1]]
    assert datasets.load("movielens-100k").train.value.tolist() == [3, 0, 1, 5, 2]
