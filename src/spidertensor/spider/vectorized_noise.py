"""Noise and statistics of the values, in JAX: mathematics.md sections 3, 11 to 13, 17.

All functions take one entry or, elementwise, the entries of a batch.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from spidertensor.method import HUGE
from spidertensor.spider.follow import LEAST_NOISE, RUNNING_ENTRIES, WILD
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import LEVEL_KNOTS, LEVEL_NOISE_VAR, node_noise_var
from spidertensor.spider.robust import (
    KNOT_STEP,
    LARGEST_LEVEL_NOISE,
    LARGEST_LOG_NOISE,
    LARGEST_SQUARE,
    LARGEST_STEP,
    LEAST_SQUARE,
    LEVEL_MEMORY,
    LOWEST_KNOT,
    SQUARES_RUNNING,
)
from spidertensor.spider.vectorized_networks import Normal

# Parts of the running sums: shape and rate of the noise; entries, mean and var of the values (for counts, of
# the level); entries and mean of squares (section 12); noise by level, mean and var.
NOISE, VALUES, SQUARES, LEVEL = slice(0, 2), slice(2, 5), slice(5, 7), slice(7, 7 + 2 * LEVEL_KNOTS)
LEVEL_COUNTS = slice(LEVEL.stop, None)  # of ordinal values: section 26

COUNTED_AT_ONCE = 1024  # true or false


def count(where: jax.Array) -> jax.Array:
    """How many are true. In two steps: a GPU sums one long row with one of its processors."""
    if where.size > COUNTED_AT_ONCE:
        rows = jnp.pad(where.reshape(-1), (0, -where.size % COUNTED_AT_ONCE)).reshape(-1, COUNTED_AT_ONCE)
        where = lax.optimization_barrier(jnp.sum(rows, axis=1, dtype=jnp.int32))
    return jnp.sum(where, dtype=jnp.int32)


class Settings(NamedTuple):
    """Static arguments of the compiled functions, hashable: models with the same settings share those."""

    network: Network
    likelihood: Likelihood
    curvature: bool
    noise_fades: bool  # if not, the noise is learned as in the paper
    robust: bool  # values are clipped, and their level and scale followed
    clips: bool  # values are clipped
    node_noise: bool

    @property
    def log_noise_prior(self) -> float:
        """Prior variance of log_noise."""
        return node_noise_var(self.network.n_modes)


class Numbers(NamedTuple):
    """Numbers that differ between models. Compiled functions take them as an argument: as static values they
    would cause a compilation for each member of a committee.

    Factors very near 1 are given by their logarithms, which keep their digits in float32.
    """

    slab_var: Any
    log_odds: Any  # of rho0; inf if every weight is in the slab
    log_forgetting: Any  # of the noise, per entry
    clip: Any  # inf: no clipping
    log_widening: Any  # of a variance, per entry: log(1 + 1/memory); 0: no forgetting
    log_noise_log_widening: Any
    prior_var: Any  # (·,) prior variances of the longest factor vector

    def packed(self, dtype: Any) -> NDArray[Any]:
        return np.hstack(self).astype(dtype)

    @classmethod
    def unpacked(cls, vector: jax.Array) -> Numbers:
        single = len(cls._fields) - 1
        return cls._make([*vector[:single], vector[single:]])


class Pair(NamedTuple):
    """Running sums high + low: they do not stall in float32, and are exact as one float64."""

    high: jax.Array
    low: jax.Array


def log_noise_of(settings: Settings, table: Normal | None, rows: jax.Array) -> Normal | None:
    """log_noise of the nodes of one entry (K,) or many (n, K)."""
    if table is None:
        return None
    return Normal(table.mean[rows], jnp.minimum(table.var[rows], settings.log_noise_prior))


def noise_of(settings: Settings, sums: Pair, log_noise: Normal | None, alpha) -> tuple[Any, Any, Any]:
    """Noise of each entry in the step of the mean, b/a exp(sum_k l^k) of section 12; the noise that is
    reported and learned from, with that of its level (section 23); and the entry's own factor in it."""
    shape, rate = sums.high[NOISE]
    noise, own, by_level = settings.likelihood.jax_noise_var(shape, rate), 1, 1
    if log_noise is not None:
        own = jnp.exp(jnp.sum(log_noise.mean, axis=-1))
        by_level = jnp.exp(hats(alpha, jnp) @ sums.high[LEVEL][:LEVEL_KNOTS])
        noise = noise * own
    least = jnp.maximum(LEAST_NOISE * sums.high[VALUES][2], 1 / HUGE) if settings.robust else 0
    noise = jnp.maximum(noise, least)
    return noise, jnp.maximum(noise * by_level, least), own * by_level


def hats(alpha: Any, np: Any) -> Any:
    """Section 23: (n, LEVEL_KNOTS) weights of the knots: each mean lies between two of them."""
    place = np.clip((alpha - LOWEST_KNOT) / KNOT_STEP, 0, LEVEL_KNOTS - 1)
    return np.maximum(1 - np.abs(place[..., None] - np.arange(LEVEL_KNOTS)), 0)


def level_change(sums: Pair, good, alpha, information, score) -> jax.Array:
    """Section 23: what the entries of a batch add to LEVEL; information and score: see `moved_log_noise`."""
    mean, var = sums.high[LEVEL].reshape(2, LEVEL_KNOTS)
    w = jnp.where(good[:, None], hats(alpha, jnp), 0)
    v = widened(var, LEVEL_NOISE_VAR, math.log1p(1 / LEVEL_MEMORY), jnp.sum(w > 0, axis=0))
    v = 1 / (1 / v + information @ (w * w))
    moved = mean + jnp.clip(v * (score @ w), -LARGEST_STEP, LARGEST_STEP)
    moved = jnp.clip(moved, -LARGEST_LEVEL_NOISE, LARGEST_LEVEL_NOISE)
    return jnp.concatenate([moved - mean, v - var])


def clipped(settings: Settings, clip, value, alpha, beta, noise) -> jax.Array:
    """Values after clipping (section 11)."""
    return settings.likelihood.jax_clipped(value, alpha, beta, noise, clip) if settings.clips else value


def level_of(settings: Settings, sums: Pair) -> tuple[Any, Any]:
    """Mean and variance of the level of f that all entries share (section 17)."""
    return tuple(sums.high[VALUES][1:]) if settings.likelihood.level_var else (0, 0)


def counted(settings: Settings, sums: Pair, there, value) -> Pair:
    """The running sums with the levels of the entries counted (section 26)."""
    levels = jnp.asarray(settings.likelihood.levels, sums.high.dtype)
    if not levels.size:
        return sums
    new = jnp.sum(there[:, None] & (value[:, None] == levels), axis=0, dtype=sums.high.dtype)
    return add(sums, jnp.zeros_like(sums.high).at[LEVEL_COUNTS].set(new))


def moved_log_noise(settings: Settings, log_widening, old: Normal, times, information, score) -> Normal:
    """Section 12: log_noise of nodes after `times` entries with this summed information and score.

    An entry's information is k²/2, where k is the noise's share of the predictive variance.
    """
    v = widened(old.var, settings.log_noise_prior, log_widening, times)
    v = 1 / (1 / v + information)
    moved = old.mean + jnp.clip(v * score, -LARGEST_STEP, LARGEST_STEP)
    return Normal(jnp.clip(moved, -LARGEST_LOG_NOISE, LARGEST_LOG_NOISE), v)


def relative_squares(sums: Pair, good, square, kept, times: Any) -> tuple[jax.Array, jax.Array]:
    """Section 12: squared residuals in predictive variances, relative to their running mean after the batch;
    and what the batch adds to SQUARES. kept: the noise's share of the predictive variance; times: how often
    each entry counts, None: once"""
    n, mean = sums.high[SQUARES]
    square = jnp.minimum(square, LARGEST_SQUARE * mean)
    counted = jnp.minimum(
        n + jnp.cumsum(good if times is None else jnp.where(good, times, 0)), SQUARES_RUNNING
    )
    share = (
        kept if times is None else kept * jnp.minimum(times, counted)
    )  # so that it moves at most all the way
    weights, left = _weights(counted, good, share)
    moved = left * mean + jnp.sum(weights * jnp.where(good, square, 0))
    moved = jnp.maximum(moved, LEAST_SQUARE)
    return square / moved, jnp.stack([counted[-1] - n, moved - mean])


def widened(var, prior_var, log_by, times) -> jax.Array:
    """Section 13 for `times` entries: max(var, min(prior var, var by^times)); var itself if log_by is 0."""
    return jnp.maximum(var, jnp.minimum(prior_var, var * jnp.exp(log_by * times)))


def for_noise(settings: Settings, value, y) -> jax.Array:
    """The value that the noise learns from: the true one, or the clipped y if the true one is wild."""
    return jnp.where(jnp.abs(value) < WILD, value, y) if settings.robust else y


def sums_after(settings: Settings, log_forgetting, sums: Pair, good, y, misfit, added, times: Any) -> Pair:
    """The running sums after the `good` entries.

    y:       values
    misfit:  misfits divided by the entries' own noise factors
    added:   what the entries add to SQUARES and LEVEL
    times:   how often each entry counts for the noise; None: once

    Noise (section 7): a = lam^n a + 1/2 sum_i lam^(n-i), b likewise with the misfits.
    """
    high = sums.high
    n = count(good)
    kept = jnp.where(good, jnp.exp(log_forgetting * (n - jnp.cumsum(good))), 0)
    kept = kept if times is None else kept * times
    new = jnp.stack([kept, kept * jnp.where(good, misfit, 0)])
    change = jnp.expm1(log_forgetting * n) * high[NOISE] + 0.5 * jnp.sum(new, axis=1)
    values = jnp.zeros_like(high[VALUES])
    added = jnp.concatenate([added, jnp.zeros(len(high) - SQUARES.start - len(added), added.dtype)])
    if settings.robust:
        values = _values_change(high[VALUES], good, jnp.clip(y, -WILD, WILD))
    return add(sums, jnp.concatenate([change, values, added]))


def sums_after_scores(
    settings: Settings, log_forgetting, sums: Pair, good, score, S_res, S_inv, weight: Any
) -> Pair:
    """`sums_after` for a likelihood that is not `normal`: see `Likelihood.jax_change`."""
    high = sums.high
    sums_of_f = S_res, S_inv
    change = settings.likelihood.jax_change(
        high[NOISE], high[VALUES][1:], log_forgetting, good, score, sums_of_f, weight
    )
    if change is None:
        return sums
    noise, level = change[:2], change[2:]
    unchanged = jnp.zeros_like(high[VALUES][:1]), jnp.zeros_like(high[SQUARES.start :])
    return add(sums, jnp.concatenate([noise, unchanged[0], level, unchanged[1]]))


def _values_change(values: jax.Array, good, y) -> jax.Array:
    """What follow.note_value would add to the running moments of the values, entry by entry."""
    entries, mean, var = values
    counted = jnp.minimum(entries + jnp.cumsum(good), RUNNING_ENTRIES)
    u, kept = _weights(counted, good)
    off = jnp.where(good, y - mean, 0)
    step = jnp.sum(u * off)
    spread = jnp.sum(u * (off - step) ** 2) + kept * step * step - jnp.sum(u) * var
    return jnp.stack([counted[-1] - entries, step, spread])


def _weights(counted, good, share=1) -> tuple[jax.Array, jax.Array]:
    """Weights in a running mean of the entries of a batch, and of all before it. Entry i moves the mean by
    w_i = share_i / counted_i of the way: u_i = w_i prod_{j>i} (1 - w_j), and prod_j (1 - w_j)."""
    w = jnp.where(good, share / counted, 0)
    left = jnp.cumprod((1 - w)[::-1])[::-1]
    return w * jnp.append(left[1:], 1), left[0]


def add(pair: Pair, x: jax.Array) -> Pair:
    """Add x by Knuth's error-free sum; the rounding error goes into `low`."""
    total = pair.high + x
    rest = total - pair.high
    low = pair.low + ((pair.high - (total - rest)) + (x - rest))
    high = total + low
    return Pair(high, low - (high - total))
