"""Values of any scale: a misleading one is left again, and what can be learned and saved can be loaded."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import spidertensor
from spidertensor import EntryError, SpiderRegressor

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


def assert_can_be_loaded(model: SpiderRegressor, X, path) -> None:
    model.save(path)
    again = spidertensor.load(path)
    for found, wanted in zip(
        again.predict(X, return_std=True), model.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)
        assert np.isfinite(found).all()


def learned(model: SpiderRegressor, how: str, X, y) -> bool:
    """False if the values or their scale are refused, which only the largest and smallest may be."""
    try:
        model.fit(X, y) if how == "fit" else model.learn(X, y)
    except (EntryError, ValueError) as error:
        if not any(why in str(error) for why in ("too large", "more than 1e+100 away", "scaling must be")):
            raise
        return False
    return True


@pytest.mark.parametrize("how", ["fit", "learn", "scaling"])
@pytest.mark.parametrize(
    "power", [*range(-300, 301, 60), -110, -101, -100, -99, -90, -76, -75, 76, 98, 99, 100]
)
def test_what_can_be_learned_can_be_loaded(power, how, tmp_path):
    X, y = ratings(40)
    model = SpiderRegressor(**SMALL, scaling=(0.0, 10.0**power) if how == "scaling" else None)
    if learned(model, how, X, y * 10.0**power):
        assert_can_be_loaded(model, X, tmp_path / "m")
    else:
        assert power > 98 or (power < -98 and how == "scaling")


@pytest.mark.parametrize(("start", "step"), [(70, 10), (-70, -8), (0, 11), (-99, -8)])
def test_a_scale_that_is_followed_can_be_loaded_wherever_it_goes(start, step, tmp_path):
    X, y = ratings(600)
    model = SpiderRegressor(**SMALL, scaling=(0.0, 10.0**start))
    for power in range(start + step, start + 12 * step, step):
        if not learned(model, "learn", X, (y - 3) * 10.0**power):
            assert power > 98
            break
        assert_can_be_loaded(model, X[:5], tmp_path / "m")
    assert sum(model.followed_.values())
