"""The floors beside a model: a row that gets another node has nothing of what the old one had learned."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import spidertensor
from spidertensor import SpiderRegressor
from spidertensor.estimator.columns import Context
from spidertensor.estimator.eviction import Numbered
from spidertensor.learner.floors import RunningFloors
from spidertensor.method import Update
from spidertensor.service.bodies import JSON, entries
from spidertensor.service.journaled import JournaledLearner
from spidertensor.service.opening import NewModel, opened
from spidertensor.service.requests import Request
from spidertensor.service.served import wanted_to_learn
from spidertensor.service.snapshots import running
from spidertensor.spider.likelihoods import COUNT, GAUSSIAN, PROBIT

SMALL = {"rank": 2, "hidden": (4,), "committee": 1, "random_state": 0, "scaling": (0.0, 100.0)}


def visits(n: int = 24) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Each user three times in a row and never again; its values are far from those of the others."""
    users = np.repeat(np.arange(n), 3)
    return [(int(user), 0) for user in users], 100.0 * (-1.0) ** users + 0.1 * np.arange(3 * n)


def losses_beside(model: SpiderRegressor, cut: int) -> np.ndarray:
    X, y = visits()
    beside = RunningFloors(GAUSSIAN, 2)
    parts = []
    for start in range(0, len(y), cut):
        value = y[start : start + cut]
        parts.append(beside.learn(value, model._learn_numbered(X[start : start + cut], value), 0.0))
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("cut", [1, 5, 72])
def test_the_node_that_takes_the_place_of_another_has_a_bias_of_its_own(cut):
    """Users who never return are the same to the floors with room for two nodes as with room for all."""
    bounded = losses_beside(SpiderRegressor(**SMALL, max_nodes=[2, None]), cut)
    free = losses_beside(SpiderRegressor(**SMALL), cut)
    np.testing.assert_array_equal(bounded[1:], free[1:])


@pytest.mark.parametrize("limit", [None, [2, None, None]])
def test_floors_ignore_modes_without_ids_and_rows_of_attributes(limit):
    X, y = visits()
    modes = {"user": ["kind"], "when": Context("hour"), "film": []}
    columns = {"user": [user for user, _ in X], "film": [film for _, film in X]}
    columns |= {"kind": ["a", "b"] * (len(X) // 2), "hour": ["h"] * len(X)}
    model = SpiderRegressor(**SMALL, modes=modes, max_nodes=limit)
    beside = RunningFloors(GAUSSIAN, 3, with_ids=[0, 2])
    losses = beside.learn(y, model._learn_numbered(columns, y), 0.0)
    np.testing.assert_array_equal(losses[1:], losses_beside(SpiderRegressor(**SMALL), len(y))[1:])
    beside.restore(beside.state(model), model)


@pytest.mark.parametrize("likelihood", [GAUSSIAN, COUNT, PROBIT], ids=lambda each: each.name)
def test_a_forecast_just_before_has_the_loss_of_the_next_entry(likelihood):
    rng = np.random.default_rng(0)
    index, beside = rng.integers((4, 3), size=(30, 2)), RunningFloors(likelihood, 2)
    values = np.floor(rng.uniform(0, 2, 30))
    seen = [set(), set()]
    for nodes, value in zip(index, values, strict=True):
        rows = np.array([[node if node in known else -1 for node, known in zip(nodes, seen, strict=True)]])
        forecast = beside.forecast(rows, 0.3)
        learned = Numbered(Update(*np.zeros((4, 1)), rejected=0), nodes[None])
        losses = beside.learn(np.array([value]), learned, 0.3)
        if any(seen) or likelihood is GAUSSIAN:  # the very first evidence is with the mean before
            np.testing.assert_allclose(beside.forecast_losses(np.array([value]), forecast), losses[1:])
        for known, node in zip(seen, nodes, strict=True):
            known.add(node)


def test_floors_go_on_with_the_model_they_ran_beside_and_without_nodes_beside_another():
    X, y = visits()
    model, beside = SpiderRegressor(**SMALL), RunningFloors(GAUSSIAN, 2)
    beside.learn(y, model._learn_numbered(X, y), 0.0)
    state = beside.state(model)
    offset = float(state.biases.offset.mean)
    value, film = np.array([100.0]), float(state.biases.nodes[1].mean[0])

    def loss(user: int | str) -> float:
        """What the biases predict for one entry of a user after a restart; a new user gets the next row."""
        users = [*model.factors_[0].ids, user]
        again, index = RunningFloors(GAUSSIAN, 2), np.array([[users.index(user), 0]])
        again.restore(_copied(state), model)
        return float(again.learn(value, Numbered(Update(*np.zeros((4, 1)), rejected=0), index), 0.0)[2, 0])

    assert loss("new") == pytest.approx((100.0 - offset - film) ** 2)
    blank = (100.0 - offset) ** 2
    assert loss(22) == pytest.approx((100.0 - offset - film - float(state.biases.nodes[0].mean[22])) ** 2)
    assert loss(22) < 0.8 * blank  # its values are near 100
    model.forget(0, [21])  # behind it the rows of all others move up, so 22 has the row that 21 had
    assert loss(22) == pytest.approx(blank)
    model.learn([("x", 0)], [0.0])  # as many nodes as before, but more entries
    assert loss(22) == pytest.approx(blank)


def _copied(tree):
    if isinstance(tree, tuple):
        children = [_copied(each) for each in tree]
        return type(tree)(*children) if hasattr(tree, "_fields") else tuple(children)
    return tree.copy()


def send(learning: JournaledLearner, X: list[tuple[int, int]], y: np.ndarray) -> None:
    rows = [
        {"user": user, "film": film, "rating": float(value)} for (user, film), value in zip(X, y, strict=True)
    ]
    body = json.dumps(rows).encode()
    wanted = wanted_to_learn(learning.learner, 1000)
    (outcome,) = learning.learn([Request(entries(body, JSON, wanted), body, JSON)])
    assert isinstance(outcome, bytes)


def test_after_forgetting_a_server_does_not_score_by_the_biases_of_others(tmp_path: Path):
    """Values are ±100 by user. By the rows of others the floor would be off by 200, without any by 100."""
    path, new = tmp_path / "m.spider", NewModel("SpiderRegressor", ["user", "film"], "rating", SMALL)
    X, y = visits()
    learning = opened(path, new)
    send(learning, X, y)
    before = running(learning.learner.scores)
    learning.close()
    model = spidertensor.load(path)
    model.forget("user", [0])
    model.save(path, model.position_)
    learning = opened(path, None)
    after = running(learning.learner.scores)
    assert after == before  # what was scored stays
    weight = float(learning.learner.scores.sums.weight)
    send(learning, [(user, 0) for user in range(1, 24)], 100.0 * (-1.0) ** np.arange(1, 24))
    told, now = running(learning.learner.scores), float(learning.learner.scores.sums.weight)
    learning.close()
    squares = told["floor_biases"] ** 2 * now - before["floor_biases"] ** 2 * weight * np.exp(-23 / 5000)
    assert (squares / 23) ** 0.5 == pytest.approx(100.0, rel=0.15)
