"""Bounds of scores for shortlists: they hold what `predict` says, and are narrow enough to be of use."""

from __future__ import annotations

import numpy as np
import pytest

from spidertensor import SpiderClassifier, SpiderRegressor
from spidertensor.estimator import recommend as ranking
from spidertensor.estimator.quick_scores import expected_bounds, mean_bounds, quick_bounds, ucb_bounds
from spidertensor.spider.network import ACTIVATIONS

CASES = pytest.mark.parametrize(
    ("kind", "explore", "bounds"),
    [
        (SpiderRegressor, "mean", mean_bounds),
        (SpiderRegressor, "ucb", ucb_bounds),
        (SpiderClassifier, "mean", expected_bounds),
    ],
)
NETWORKS = [{}, {"hidden": (5, 4)}, {"hidden": ()}, {"multilinear": 0, "bias": False}]


def fitted(kind, n=600, **settings):
    """Three modes of 9, 40 and 4 nodes; some are known well, others hardly."""
    rng = np.random.default_rng(0)
    X = np.stack([rng.integers(9, size=n), (40 * rng.random(n) ** 3).astype(int), rng.integers(4, size=n)], 1)
    value = np.sin(X[:, 0] * X[:, 1]) + X[:, 2] + 0.2 * rng.normal(size=n)
    model = kind(**{"rank": 2, "hidden": (8,), "committee": 3, **settings})
    return model.fit(X, value > 1.5 if kind is SpiderClassifier else value)._fitted()


def numbers(learned, n=200):
    """Entries of one user; -1 is an unseen node."""
    rng = np.random.default_rng(1)
    sizes = [len(nodes) for nodes in learned.nodes]
    return [np.array([2]), rng.integers(-1, sizes[1], size=n), rng.integers(-1, sizes[2], size=n)]


def exact_score(learned, nodes, explore):
    parts = learned.model.method.predict(learned.state, np.stack(np.broadcast_arrays(*nodes), axis=1))
    if explore == "ucb":
        return parts.mean + 2 * np.sqrt(parts.var)
    return learned.model.likelihood.expected(parts.mean, parts.var)


@CASES
@pytest.mark.parametrize("settings", NETWORKS)
def test_bounds_hold_the_scores(kind, explore, bounds, settings):
    learned = fitted(kind, **settings)
    assert quick_bounds(learned, explore) is bounds
    nodes = numbers(learned)
    score, (low, high) = exact_score(learned, nodes, explore), bounds(learned, nodes)
    assert (low <= score).all()
    assert (score <= high).all()


@CASES
def test_without_the_uncertainty_of_weights_the_bounds_are_tight(kind, explore, bounds):
    """Then the variance is known but for rounding, and with it every score."""
    learned = fitted(kind)
    for member in learned.state.members:
        for weight in member.posterior.weights:
            weight.var[:] = 1e-12
    nodes = numbers(learned)
    score, (low, high) = exact_score(learned, nodes, explore), bounds(learned, nodes)
    assert (high - low < 0.002 * (1 + np.abs(high))).all()
    np.testing.assert_allclose((low + high) / 2, score, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", NETWORKS)
def test_quick_predictions_are_those_of_predict(settings):
    learned = fitted(SpiderClassifier, **settings, committee=6)
    method, nodes = learned.model.method, numbers(learned)
    nodes[1] = np.append(nodes[1], 10**6)  # as unseen as -1
    nodes[2] = np.append(nodes[2], 0)
    index = np.stack(np.broadcast_arrays(*nodes), axis=1)
    assert method.quick is not None
    found, exact = method.quick(learned.state, nodes), method.predict(learned.state, index)
    np.testing.assert_allclose(found.mean, exact.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.var, exact.var, rtol=1e-4)
    assert np.array_equal(found.noise, exact.noise)


def test_quick_predictions_need_known_units_and_formulas():
    assert fitted(SpiderRegressor, 50).model.method.quick is None
    assert fitted(SpiderClassifier, 50, activation="tanh").model.method.quick is None


def test_where_there_are_bounds():
    """Else all candidates are scored by `predict`."""
    for activation in ACTIVATIONS:
        learned = fitted(SpiderRegressor, 50, activation=activation)
        assert quick_bounds(learned, "mean") is not None
        assert (quick_bounds(learned, "ucb") is not None) == (activation == "relu")
    assert quick_bounds(fitted(SpiderClassifier, 50), "ucb") is None
    counts = SpiderRegressor(likelihood="count").fit([(0, 0), (1, 1), (0, 1)], [0, 3, 1])._fitted()
    assert quick_bounds(counts, "mean") is quick_bounds(counts, "ucb") is None


@CASES
def test_a_shortlist_is_short_and_has_the_best(kind, explore, bounds):
    learned = fitted(kind, 2000)
    nodes, allowed = numbers(learned, 3000), np.arange(3000)
    score = exact_score(learned, nodes, explore)
    tenth = np.sort(score)[-10]
    kept = ranking._shortlist(learned, nodes, allowed, 10, bounds)
    assert set(allowed[score >= tenth]) <= set(kept)
    assert len(kept) < 600
