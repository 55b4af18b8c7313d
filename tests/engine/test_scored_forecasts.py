"""Scoring forecasts: weights, evidence and residuals against the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import naive
from spidertensor.method import Bags, Batch, Method, Prediction, Update
from spidertensor.spider.calibration import EDGES
from spidertensor.spider.committee import CommitteeMethod, committee
from spidertensor.spider.forecasts import MemberForecasts
from spidertensor.spider.likelihoods import GAUSSIAN

N, M = 60, 3


def drifting(level: float) -> Method:
    """Predicts the level plus a tenth of the number of entries learned, so it does not repeat itself."""

    def update(state: tuple, batch: Batch) -> tuple[tuple, Update]:
        n = len(batch.value)
        mean = level + 0.1 * (state[0] + np.arange(n))
        predicted = Prediction(mean, np.ones(n), np.full(n, 0.5))
        return (state[0] + n,), Update(*predicted, GAUSSIAN.log_evidence(batch.value, *predicted), 0)

    def predict(state: tuple, index: np.ndarray, bags: Bags | None = None) -> Prediction:
        n = len(index)
        return Prediction(np.full(n, level + 0.1 * state[0]), np.ones(n), np.full(n, 0.5))

    return Method(lambda seed: (np.zeros(()),), update, predict)


def method() -> CommitteeMethod:
    return committee([drifting(level) for level in (-1.0, 0.0, 2.0)], GAUSSIAN)


def batch(value: np.ndarray) -> Batch:
    return Batch(np.zeros((len(value), 2), np.int64), value)


def random_forecasts(rng: np.random.Generator, n: int) -> MemberForecasts:
    parts = np.stack(
        [rng.normal(size=(M, n)), rng.uniform(0.5, 2, (M, n)), rng.uniform(0.1, 1, (M, n))], axis=1
    )
    return MemberForecasts(parts, rng.dirichlet(np.ones(M), n).T)


@pytest.fixture
def stream() -> tuple[np.ndarray, MemberForecasts, np.ndarray]:
    """Values, forecasts of two thirds of them, and which."""
    rng = np.random.default_rng(0)
    forecasts, given = random_forecasts(rng, N), rng.random(N) < 2 / 3
    forecasts.parts[:, :, ~given], forecasts.weights[:, ~given] = np.nan, np.nan
    return rng.normal(0, 2, N), forecasts, given


def test_weights_evidence_and_residuals_are_the_oracle(stream):
    value, forecasts, given = stream
    own = method()
    state, update = own.update_by(own.init(0), batch(value), forecasts)
    weights, evidences, residuals = [1 / M] * M, [], []
    for i in range(N):
        now = [(w, level + 0.1 * i, 1.5) for w, level in zip(weights, (-1.0, 0.0, 2.0), strict=True)]
        parts = zip(
            forecasts.weights[:, i],
            forecasts.parts[:, 0, i],
            forecasts.parts[:, 1:, i].sum(axis=1),
            strict=True,
        )
        weights, evidence, residual = naive.scored_forecast(
            weights, list(parts) if given[i] else now, value[i], i
        )
        evidences.append(evidence)
        residuals.append(residual)
    np.testing.assert_allclose(state.weights, weights, rtol=1e-9)
    np.testing.assert_allclose(update.log_evidence, evidences, rtol=1e-9)
    assert state.counts.log_evidence == pytest.approx(sum(evidences))
    z = (value - update.mean) / np.sqrt(update.var + update.noise)
    np.testing.assert_allclose(z, residuals, rtol=1e-9)
    mine = naive.residual_histogram(EDGES, z[given], memory=4000)
    others = naive.residual_histogram(EDGES, z[~given])
    np.testing.assert_allclose(state.forecasts.mass, mine, rtol=1e-9)
    np.testing.assert_allclose(state.residuals.mass, others, rtol=1e-9)
    assert state.forecasts.entries == given.sum()


def test_the_share_of_entries_with_forecasts_forgets(stream):
    value, forecasts, given = stream
    own = method()
    state, _ = own.update_by(own.init(0), batch(value), forecasts)
    share = 0.0
    for each in given[: np.flatnonzero(given)[-1] + 1]:
        share += (each - share) / 1000
    assert state.forecasts.share == pytest.approx(share)


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_cuts_change_nothing(stream, cut):
    value, forecasts, _ = stream
    own = method()
    whole, update = own.update_by(own.init(0), batch(value), forecasts)
    state, below = own.init(0), []
    for first in range(0, N, cut):
        last = min(first + cut, N)
        state, part = own.update_by(state, batch(value[first:last]), forecasts.part(first, last))
        below.append(part.below)
    np.testing.assert_array_equal(np.concatenate(below), update.below)
    for a, b in zip(_arrays(whole), _arrays(state), strict=True):
        np.testing.assert_array_equal(a, b)


def test_members_that_cannot_learn_an_entry_are_not_scored(stream):
    """Nor is an entry that none can learn, whatever its forecast."""
    value, forecasts, _ = stream
    own = method()
    value[[3, 5]] = np.nan
    state, update = own.update_by(own.init(0), batch(value), forecasts)
    assert update.refused == state.counts.refused == 2
    assert np.isnan(update.below[[3, 5]]).all()
    assert np.isfinite(state.weights).all()
    assert np.isfinite(np.delete(update.log_evidence, [3, 5])).all()


def _arrays(tree: Any) -> list[np.ndarray]:
    return [leaf for each in tree for leaf in _arrays(each)] if isinstance(tree, tuple) else [tree]
