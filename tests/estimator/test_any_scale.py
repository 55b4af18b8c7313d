"""Values of any scale: a misleading one is left again, and what can be learned and saved can be loaded."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from spidertensor import SpiderRegressor

SMALL = {"random_state": 1, "committee": 2, "rank": 2}


def ratings(n: int) -> tuple[list[tuple[int, int]], np.ndarray]:
    rng = np.random.default_rng(0)
    users, movies = rng.integers(20, size=n), rng.integers(15, size=n)
    values = 3 + np.sin(users) + np.cos(movies) + rng.normal(0, 0.2, n)
    return list(zip(users.tolist(), movies.tolist(), strict=True)), values


@pytest.fixture(autouse=True)
def _without_notes(warm_kernels):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a change that was followed
        yield


@pytest.mark.parametrize(
    "before",
    [
        pytest.param([1.0, 1.0000000000001], id="two first values differ by rounding"),
        pytest.param([-1.0, 1.0, *[0.1 + 0.2 - 0.3, 0.0] * 400], id="a sensor was stuck at 0"),
        pytest.param([2.0, 4.0, *[1.0, 1.0000000000001] * 400], id="or at 1"),
    ],
)
def test_a_scale_of_rounding_errors_does_not_last(before):
    X, y = ratings(3000)
    model = SpiderRegressor(**SMALL)
    model.learn([(0, 0)] * 2, before[:2])
    if before[2:]:
        model.learn([(0, 0)] * len(before[2:]), before[2:])
    errors = (
        np.concatenate([model.learn(X[at : at + 100], y[at : at + 100]).mean for at in range(0, 3000, 100)])
        - y
    )
    assert np.sqrt(np.mean(errors[2000:] ** 2)) < 0.5  # their deviation is 1, their noise 0.2
