"""Scaling: from the first values, applied, undone, and what is too large or too far."""

import numpy as np
import pytest
from scipy.stats import norm

from spidertensor.scaling import FARTHEST_CLIPPED, LARGEST, Scaling, spread, too_large, wild


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


def test_wild_values_do_not_make_the_scale():
    value = np.random.default_rng(0).normal(5, 2, 256)
    calm = Scaling.of(value)
    value[[3, 99]] = (1e6, -1e9)
    assert wild(value).nonzero()[0].tolist() == [3, 99]
    np.testing.assert_allclose(Scaling.of(value), Scaling.of(np.delete(value, [3, 99])))
    np.testing.assert_allclose(Scaling.of(value), calm, rtol=0.05)


def test_nothing_is_wild_where_most_values_are_equal():
    value = np.array([0.0] * 200 + [1.0] * 50 + [40.0] * 6)
    assert not wild(value).any()
    np.testing.assert_allclose(Scaling.of(value), (value.mean(), value.std()))


def test_too_large_looks_as_far_as_n_other_values_reach():
    value = np.array([1, -9 * LARGEST, 2, 9 * LARGEST, 3, 9 * LARGEST])
    for n, rows in ((1, []), (2, [1]), (3, [1, 3]), (4, [1, 3, 5])):
        assert np.flatnonzero(too_large(value, n)).tolist() == rows


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e9])
def test_a_scale_of_rounding_errors_leaves_room_for_later_values(size):
    """Thousandfold values can be learned; a scale that is not tiny beside the values is theirs."""
    first = size * np.array([1, 1 + 1e-13])
    later = np.array([-1000, 0, 3, 1000]) * size
    assert np.abs(Scaling.of(first).scaled(later)).max() < FARTHEST_CLIPPED
    first = size * np.array([1, 1 + 1e-8])
    assert Scaling.of(first).scale == pytest.approx(size * 5e-9, rel=1e-6)
