"""Section 20: what a part of a history said is taken back, and stored in 16 bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive
from spidertensor.spider.sites import keep, take_back

ROWS = np.array([3, 0])  # of five; the others stay as they are
SIZE = 6


def stored(x: np.ndarray) -> np.ndarray:
    """Numbers that 16 bits hold, as sites have them: the upper half of a float32."""
    return (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def numbers(site: np.ndarray) -> np.ndarray:
    return (site.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


class Draw:
    """Odd numbers, every order of magnitude as likely as any other: powers of ten between two."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def positive(self, low: float, high: float, shape=(2, SIZE)) -> np.ndarray:
        return 10.0 ** self.rng.uniform(low, high, size=shape)

    def signed(self, low: float, high: float, shape=(2, SIZE)) -> np.ndarray:
        return self.positive(low, high, shape) * self.rng.integers(-1, 2, size=shape)


seeds = st.integers(0, 2**32).map(Draw)


class Table:
    """Five rows of a table, of which a part touches two."""

    def __init__(self, mean, var, P, H, T, J, dtype=np.float64) -> None:
        rng = np.random.default_rng(0)
        self.mean, self.var = rng.normal(size=(5, SIZE)).astype(dtype), np.ones((5, SIZE), dtype)
        self.mean[ROWS], self.var[ROWS] = mean, var
        self.P, self.H = np.asarray(P, dtype), np.asarray(H, dtype)
        self.site = np.stack([stored(T), stored(J)], axis=1)
        self.others = np.empty((3, 2, SIZE))

    def arguments(self):
        return self.mean, self.var, ROWS, self.P, self.H, self.site, self.others


def as_rows(one: np.ndarray) -> np.ndarray:
    return np.broadcast_to(one, (2, SIZE))


@given(draw=seeds)
def test_a_visit_equals_the_oracle(draw):
    """Whatever the site says, also if hardly anything is left without it; one prior for all rows."""
    mean, var, P = draw.signed(-3, 3), draw.positive(-6, 3), draw.positive(-3, 3, (1, SIZE))
    T, J, H = draw.signed(-3, 5), draw.signed(-3, 5), np.zeros((1, SIZE))
    factor, step = draw.positive(-3, 0.3), draw.signed(-3, 2)
    T, J = naive.rounded(T), naive.rounded(J)
    table, untouched = Table(mean, var, P, H, T, J), np.array([1, 2, 4])
    before = table.mean[untouched].copy(), table.var[untouched].copy()
    m, v = mean.copy(), var.copy()
    cavity = naive.take_back(m, v, as_rows(P), as_rows(H), T, J)
    take_back(*table.arguments())
    close = {"rtol": 1e-9, "atol": 1e-9}
    np.testing.assert_allclose(table.var[ROWS], v, **close)
    np.testing.assert_allclose(table.mean[ROWS], m, **close)
    # both learn the same, from the same numbers
    m, v = (m + step).astype(np.float64), v * factor
    table.mean[ROWS], table.var[ROWS] = m, v
    wanted = naive.keep(m, v, as_rows(P), as_rows(H), *cavity)
    keep(*table.arguments())
    got = numbers(table.site)
    np.testing.assert_allclose(got[:, 0], wanted[0], rtol=2**-8, atol=1e-9)  # one of the neighbours at a tie
    np.testing.assert_allclose(got[:, 1], wanted[1], rtol=2**-8, atol=1e-9)
    same = (got[:, 0] == wanted[0]) & (got[:, 1] == wanted[1])
    np.testing.assert_allclose(table.var[ROWS][same], v[same], **close)
    np.testing.assert_allclose(table.mean[ROWS][same], m[same], **close)
    for part, old in zip((table.mean, table.var), before, strict=True):
        np.testing.assert_array_equal(part[untouched], old)


@given(draw=seeds)
def test_odd_values_leave_a_sound_posterior(draw):
    """Also in float32, and with a prior for each row, as weights have it."""
    mean, var, P, H = (
        draw.signed(-6, 6),
        draw.positive(-20, 6),
        draw.positive(-6, 6, (5, SIZE)),
        draw.signed(-6, 6, (5, SIZE)),
    )
    T, J, factor, step = draw.signed(-6, 12), draw.signed(-6, 12), draw.positive(-12, 3), draw.signed(-6, 6)
    table = Table(mean, var, P, H, naive.rounded(T), naive.rounded(J), np.float32)
    for _ in range(3):
        take_back(*table.arguments())
        assert np.isfinite(table.mean).all()
        assert np.isfinite(table.var).all()
        assert (table.var > 0).all()
        table.mean[ROWS] += step.astype(np.float32)
        table.var[ROWS] = np.maximum(table.var[ROWS] * factor.astype(np.float32), np.float32(1e-20))
        keep(*table.arguments())
        assert np.isfinite(table.mean).all()
        assert np.isfinite(table.var).all()
        assert (table.var > 0).all()
        assert np.isfinite(numbers(table.site)).all()


def table_of(dtype) -> Table:
    """A posterior of which a part that is visited again has said something like a half."""
    rng = np.random.default_rng(1)
    P, T, J = np.full((1, SIZE), 0.5), rng.exponential(size=(2, SIZE)), rng.normal(size=(2, SIZE))
    var, mean = 1 / (0.5 + T + rng.exponential(size=(2, SIZE))), rng.normal(size=(2, SIZE))
    return Table(mean, var, P, 0 * P, naive.rounded(T), naive.rounded(J), dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_who_says_the_same_again_changes_nothing(dtype):
    table, wanted = table_of(dtype), table_of(dtype)
    for _ in range(20):
        take_back(*table.arguments())
        assert (table.var[ROWS] > wanted.var[ROWS]).all()
        T, J = numbers(wanted.site).swapaxes(0, 1)
        precision, shift = 1 / table.var[ROWS] + T, table.mean[ROWS] / table.var[ROWS] + J
        table.mean[ROWS], table.var[ROWS] = shift / precision, 1 / precision
        keep(*table.arguments())
        np.testing.assert_array_equal(table.site, wanted.site)
    np.testing.assert_allclose(table.var, wanted.var, rtol=1e-5)
    np.testing.assert_allclose(table.mean, wanted.mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_who_says_nothing_any_more_has_taken_all_back(dtype):
    table = table_of(dtype)
    take_back(*table.arguments())
    mean, var = table.mean.copy(), table.var.copy()
    for _ in range(3):
        keep(*table.arguments())
        np.testing.assert_allclose(numbers(table.site), 0, atol=1e-6)
        take_back(*table.arguments())
    np.testing.assert_allclose(table.var, var, rtol=1e-6)
    np.testing.assert_allclose(table.mean, mean, rtol=1e-6, atol=1e-6)


def test_an_element_without_enough_precision_sits_a_visit_out():
    """Half of the prior's precision has to be left; whatever is learned meanwhile is not kept."""
    P = np.full((1, SIZE), 2.0)
    T = np.broadcast_to(np.linspace(3.5, 4.5, SIZE), (2, SIZE)).copy()  # of 5: 1.5 to 0.5 are left
    T = naive.rounded(T)
    table = Table(np.full((2, SIZE), 0.25), np.full((2, SIZE), 0.2), P, 0 * P, T, np.ones((2, SIZE)))
    site = table.site.copy()
    take_back(*table.arguments())
    sits = T >= 4
    assert sits.any()
    assert (~sits).any()
    np.testing.assert_allclose(table.var[ROWS][~sits], 1 / (5 - T[~sits]))
    np.testing.assert_array_equal(table.var[ROWS][sits], 0.2)
    table.mean[ROWS], table.var[ROWS] = 7.0, 0.01
    keep(*table.arguments())
    np.testing.assert_array_equal(table.mean[ROWS][sits], 0.25)
    np.testing.assert_array_equal(table.var[ROWS][sits], 0.2)
    np.testing.assert_array_equal(table.site[:, 0][sits], site[:, 0][sits])
    np.testing.assert_allclose(table.var[ROWS][~sits], 0.01, rtol=2**-8)


def test_who_would_be_left_with_too_little_has_learned_nothing():
    P = np.full((1, SIZE), 2.0)
    table = Table(
        np.zeros((2, SIZE)), np.full((2, SIZE), 0.25), P, 0 * P, np.ones((2, SIZE)), np.ones((2, SIZE))
    )
    take_back(*table.arguments())
    np.testing.assert_allclose(table.var[ROWS], 1 / 3)
    table.mean[ROWS], table.var[ROWS] = 5.0, 1.5  # a precision of 2/3, less than half of the prior's
    keep(*table.arguments())
    np.testing.assert_array_equal(table.site, 0)
    np.testing.assert_allclose(table.var[ROWS], 1 / 3)
    np.testing.assert_allclose(table.mean[ROWS], -1 / 3)


def test_rounding_is_to_the_nearest_of_sixteen_bits():
    x = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 3.14159, 1e-30, -2.7e8, 0.0])
    wanted = [1.0, 1.0, 1 + 2**-6, 1 + 2**-7, 3.140625, *naive.rounded(x[5:7]), 0.0]
    np.testing.assert_array_equal(naive.rounded(x), wanted)
    np.testing.assert_array_equal(numbers(stored(naive.rounded(x))), naive.rounded(x))
    assert abs(naive.rounded(x[6]) / x[6] - 1) <= 2**-8
