"""Scaling: from the first values, applied, undone, and what is too large or too far."""

import numpy as np
import pytest
from scipy.stats import norm

from spidertensor.scaling import FARTHEST, LARGEST, Scaling, spread, too_far, too_large


def test_there_and_back():
    value = np.array([3.0, 5.0, 10.0])
    scaling = Scaling.of(value)
    scaled = scaling.scaled(value)
    assert (scaled.mean(), scaled.std()) == pytest.approx((0, 1))
    mean, var, noise = scaling.user_units(scaled, np.ones(3), np.full(3, 2.0))
    np.testing.assert_allclose(mean, value)
    np.testing.assert_allclose(var, value.var())
    np.testing.assert_allclose(noise, 2 * value.var())
    assert Scaling().scaled(value).tolist() == value.tolist()


def test_log_density_is_that_of_the_values():
    scaling, value = Scaling(3, 5), np.array([-1.0, 3.0, 9.5])
    scaled = norm.logpdf(scaling.scaled(value), 0.3, 2)
    np.testing.assert_allclose(scaling.log_density(scaled), norm.logpdf(value, 3 + 5 * 0.3, 5 * 2))


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9 / 3, -1e-80])
def test_equal_values_have_scale_1(value):
    first = np.full(8, value)  # 0.1 eight times has a standard deviation of 1e-17
    assert spread(first) == 0
    assert Scaling.of(first) == (pytest.approx(value), 1)


def test_too_far_is_measured_in_scales():
    scaling = Scaling(100, 2)
    value = 100 + 2 * FARTHEST * np.array([-1.01, -0.99, 0.99, 1.01, 1e300])
    assert too_far(scaling.scaled(value)).tolist() == [True, False, False, True, True]


def test_too_large_looks_as_far_as_n_other_values_reach():
    value = np.array([1, -9 * LARGEST, 2, 9 * LARGEST, 3, 9 * LARGEST])
    for n, rows in ((1, []), (2, [1]), (3, [1, 3]), (4, [1, 3, 5])):
        assert np.flatnonzero(too_large(value, n)).tolist() == rows
