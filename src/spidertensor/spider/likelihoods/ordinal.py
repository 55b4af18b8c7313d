"""Ordered levels such as stars or grades: an interval of f + normal noise. mathematics.md section 26.

Level l is observed if z = f + noise lies between its two cut points. These are learned as the points of the
standard normal distribution that have as much below them as the levels seen so far, one of each included: so
they are always in order, all members of a committee share them, and z has the spread that priors expect.

A `Prediction` holds mean and variance of f, and the noise. What it says about levels depends on the cut
points, so `at` gives the likelihood those of a state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from spidertensor.faults import EntryError
from spidertensor.method import Prediction
from spidertensor.spider.compiled import COMPILE, PART, RARE, kernel
from spidertensor.spider.likelihoods.base import Evidence, Floats, Likelihood
from spidertensor.spider.likelihoods.gaussian import GAUSSIAN
from spidertensor.spider.likelihoods.probit import normal_quantile

CODE = 3
MOST_LEVELS = 100
LEAST_CHANCE = 1e-300
_LOG_2PI = math.log(2 * math.pi)
# Gauss-Legendre nodes in the part of the interval where the density is above exp(-DEPTH) of its largest
# value: exact to about 1e-11, and without cancellation however far, narrow or wide the interval is.
N_NODES, DEPTH = 32, 32.0
NODES, WEIGHTS = np.polynomial.legendre.leggauss(N_NODES)


def cut_points(counts: Floats) -> Floats:
    """(..., levels + 1) cut points, from -inf to inf; by the smaller tail, which has its digits."""
    none = np.zeros((*counts.shape[:-1], 1))
    below = np.concatenate([none, np.cumsum(counts, axis=-1)], axis=-1)
    above = np.concatenate([np.cumsum(counts[..., ::-1], axis=-1)[..., ::-1], none], axis=-1)
    return np.where(below <= above, 1, -1) * ndtri(np.minimum(below, above) / below[..., -1:])


class Ordinal(Likelihood):
    """levels: all values there are, ascending; () before the first entry if they are not given
    counts: how often each was seen, plus 1: in the state that `at` was called with, or (n, levels)
    cuts:   other cut points than those of the counts
    """

    name, code = "ordinal", CODE
    remedy = "correct it, or pass levels=(...) with all levels there are"
    scaled, intervals = False, False
    normal_noise, ordinal, weighted = True, True, False
    metric = "rmse"
    metrics = (
        "accuracy", "mae", "log_density",
        "coverage_50", "coverage_80", "coverage_90", "coverage_95", "coverage_99",
    )  # fmt: skip
    std_name = "std_of_f"

    def __init__(
        self, levels: tuple[float, ...], counts: Floats | None = None, cuts: Floats | None = None
    ) -> None:
        self.levels, self._counts, self._values = levels, counts, np.array(levels)
        self._cuts = cut_points(np.ones(max(1, len(levels))) if counts is None else counts)
        self._cuts = self._cuts if cuts is None else cuts
        self.allowed = f"one of the levels {', '.join(f'{level:g}' for level in levels)}"

    def of_values(self, value):
        found = self.levels or tuple(np.unique(value).tolist())
        if not 1 < len(found) <= MOST_LEVELS:
            known = f"all values are {found[0]:g}" if len(found) == 1 else f"there are {len(found)} values"
            raise EntryError(
                f"{known}, so the levels are not known",
                kind="levels",
                remedy=f"pass levels=(1, 2, 3, 4, 5), or whatever they are: 2 to {MOST_LEVELS}",
            )
        return ordinal(found)

    def allows(self, value):
        return np.isin(value, self._values) if self.levels else np.isfinite(value)

    def at(self, state):
        return Ordinal(self.levels, state.members[0].stream.level_counts.copy())

    def probabilities(self, mean: Any, var: Any, noise: Any) -> Floats:
        """(n, levels) probability of each level."""
        mean, var, noise = (np.asarray(part, np.float64)[..., None] for part in (mean, var, noise))
        t = (self._cuts - mean) / np.sqrt(var + noise)
        low, high = t[..., :-1], t[..., 1:]
        sign = np.where(low > 0, -1.0, 1.0)  # by the tail that has its digits
        return np.abs(ndtr(sign * high) - ndtr(sign * low))

    def log_evidence(self, value, mean, var, noise):
        value, mean, var, noise = np.broadcast_arrays(value, mean, var, noise)
        place = np.searchsorted(self._values, value).clip(max=len(self.levels) - 1)
        chance = np.take_along_axis(self.probabilities(mean, var, noise), place[..., None], -1)[..., 0]
        return np.where(self.allows(value), np.log(np.maximum(chance, LEAST_CHANCE)), np.nan)

    def noise_var(self, shape, rate):
        return float(np.asarray(rate)) / float(np.asarray(shape))

    def expected(self, mean, var, noise=0.0):
        return self.probabilities(mean, var, noise) @ self._values

    def std(self, mean, var, noise):
        chance = self.probabilities(mean, var, noise)
        off = self._values - (chance @ self._values)[..., None]
        return np.sqrt((chance * off * off).sum(axis=-1))

    def most_likely(self, prediction: Prediction) -> Floats:
        """(n,) the level with the largest probability."""
        return self._values[self.probabilities(*prediction).argmax(axis=-1)]

    def interval(self, prediction: Prediction, coverage: float) -> tuple[Floats, Floats]:
        """(n,) first and last of the fewest neighbouring levels that have at least this probability."""
        chance = self.probabilities(*prediction)
        up_to = np.concatenate([np.zeros((len(chance), 1)), np.cumsum(chance, axis=1)], axis=1)
        first, last = np.zeros((2, len(chance)), np.intp)
        rows = np.arange(len(chance))  # not found so far
        for more in range(len(self.levels)):
            inside = up_to[:, 1 + more :] - up_to[:, : len(self.levels) - more]
            best = inside.argmax(axis=1)
            found = (inside.max(axis=1) >= coverage) | (more == len(self.levels) - 1)
            first[rows[found]], last[rows[found]] = best[found], best[found] + more
            rows, up_to = rows[~found], up_to[~found]
        return self._values[first], self._values[last]

    @property
    def name_with_levels(self) -> str:
        """What a forecast stores: `from_name` has the levels back."""
        return f"{self.name}:{','.join(map(repr, self.levels))}"

    def with_counts(self, counts: Floats) -> Ordinal:
        """The likelihood with cut points by these counts, (levels,) or (n, levels)."""
        return Ordinal(self.levels, counts)

    @staticmethod
    def of_entries(parts: Sequence[tuple[Ordinal, int]]) -> Ordinal:
        """The likelihood of entries whose cut points differ: for each part, those of so many entries."""
        cuts = [np.broadcast_to(each._cuts, (n, len(each.levels) + 1)) for each, n in parts]
        return Ordinal(parts[0][0].levels, cuts=np.concatenate(cuts))

    @property
    def of_floors(self):
        return GAUSSIAN  # a floor predicts the mean of the levels

    def from_moments(self, n, total, squares, origin):
        raise NotImplementedError("floors of levels have the likelihood of_floors")

    def jax_evidence(self, y, alpha, beta, noise, level, weight=None):
        """`evidence` in JAX. level: how often each level was seen, plus 1; weight: always None"""
        import jax.numpy as jnp
        from jax.scipy.special import ndtri as jax_ndtri

        values = jnp.asarray(self._values, level.dtype)
        below = jnp.concatenate([jnp.zeros(1), jnp.cumsum(level)])
        above = jnp.concatenate([jnp.cumsum(level[::-1])[::-1], jnp.zeros(1)])
        small = jnp.minimum(below, above) / (below[-1])
        cuts = jnp.where(below <= above, 1, -1) * jax_ndtri(small)
        place = jnp.argmin(jnp.abs(y[..., None] - values), axis=-1)
        s2 = beta + noise
        s = jnp.sqrt(s2)
        low, high = (cuts[place] - alpha) / s, (cuts[place + 1] - alpha) / s
        peak = jnp.clip(0, low, high)
        reach = 2 * DEPTH / (jnp.abs(peak) + jnp.sqrt(peak * peak + 2 * DEPTH))
        low, high = jnp.maximum(low - peak, -reach), jnp.minimum(high - peak, reach)
        half = 0.5 * (high - low)
        off = 0.5 * (low + high) + half * jnp.asarray(NODES, half.dtype).reshape(-1, *[1] * half.ndim)
        weights = jnp.asarray(WEIGHTS, half.dtype).reshape(-1, *[1] * half.ndim)
        p = weights * jnp.exp(-off * (peak + 0.5 * off))
        total = jnp.sum(p, axis=0)
        mean = jnp.sum(p * off, axis=0) / total
        var = jnp.sum(p * (off - mean) ** 2, axis=0) / total
        log_z = jnp.log(total * half) - 0.5 * (peak * peak + _LOG_2PI)
        da, c = (peak + mean) / s, jnp.clip(1 - var, 0, 1) / s2
        log_z = jnp.where(y == values[place], log_z, jnp.nan)  # not a level: refused
        precision = c / (1 - c * beta)
        root = jnp.where(c > 0, da / jnp.where(c > 0, c, 1), 0) * jnp.sqrt(precision)
        return Evidence(log_z, da, 0.5 * (da * da - c), c, precision, root)

    def jax_noise_var(self, shape, rate):
        return rate / shape

    def __reduce__(self) -> Any:
        if self is ordinal(self.levels):
            return ordinal, (self.levels,)
        return Ordinal, (self.levels, self._counts, self._cuts)


@cache  # the same object for the same levels
def ordinal(levels: tuple[float, ...]) -> Ordinal:
    """The likelihood of these levels, before any entry."""
    return Ordinal(levels)


def from_name(name: str) -> Ordinal | None:
    """The likelihood whose `name_with_levels` this is; None if it is none."""
    kind, _, levels = name.partition(":")
    try:
        found = tuple(map(float, levels.split(",")))
    except ValueError:
        return None
    good = kind == Ordinal.name and 1 < len(found) <= MOST_LEVELS and all(map(math.isfinite, found))
    return ordinal(found) if good and found == tuple(sorted(set(found))) else None


ORDINAL = ordinal((1.0, 2.0, 3.0, 4.0, 5.0))


@kernel(**PART)
def _cut(below, above):
    """A cut point, for the entries below and above it."""
    if min(below, above) <= 0:
        return -np.inf if below <= 0 else np.inf
    if below <= above:
        return normal_quantile(below / (below + above))
    return -normal_quantile(above / (below + above))


@kernel(**COMPILE)
def evidence(low, high, alpha, beta, noise):
    """log_z, da, db and c of low < f + noise < high."""
    s2 = beta + noise
    s = math.sqrt(s2)
    low, high = (low - alpha) / s, (high - alpha) / s
    peak = min(max(0.0, low), high)
    reach = 2 * DEPTH / (abs(peak) + math.sqrt(peak * peak + 2 * DEPTH))
    low, high = max(low - peak, -reach), min(high - peak, reach)
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    total, first, second = 0.0, 0.0, 0.0
    for n in range(N_NODES):
        off = middle + half * NODES[n]
        p = WEIGHTS[n] * math.exp(-off * (peak + 0.5 * off))
        total += p
        first += p * (off - middle)
        second += p * (off - middle) ** 2
    mean = first / total
    var = second / total - mean * mean
    log_z = math.log(total * half) - 0.5 * (peak * peak + _LOG_2PI)
    da = (peak + middle + mean) / s
    c = min(max(1.0 - var, 0.0), 1.0) / s2
    return log_z, da, 0.5 * (da * da - c), c


@kernel(**RARE)
def level_evidence(stream, y, alpha, beta, noise):
    """`evidence` of a level, which is then counted; NaN for a value that is not a level."""
    place, below, above = -1, 0.0, 0.0
    for n in range(len(stream.levels)):
        if stream.levels[n] == y:
            place = n
        elif place < 0:
            below += stream.level_counts[n]
        else:
            above += stream.level_counts[n]
    if place < 0:
        return np.nan, 0.0, 0.0, 0.0
    own = stream.level_counts[place]
    stream.level_counts[place] += 1
    return evidence(_cut(below, own + above), _cut(below + own, above), alpha, beta, noise)


@kernel(**PART)
def expected_value(alpha, total, db):
    """A value of f + noise that is as far from alpha as it is on average, given the level: what noise learns
    from. total: beta + noise"""
    return alpha + math.sqrt(total * max(1 + 2 * total * db, 0.0))
