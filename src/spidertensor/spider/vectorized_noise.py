"""Noise and statistics of the values, in JAX: mathematics.md sections 3, 11 to 13, 17.

All functions take one entry or, elementwise, the entries of a batch.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from spidertensor.method import HUGE
from spidertensor.spider.follow import LEAST_NOISE, RUNNING_ENTRIES, WILD
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.network import Network
from spidertensor.spider.posterior import node_noise_var
from spidertensor.spider.robust import LARGEST_LOG_NOISE, LARGEST_SQUARE, LOG_NOISE_RUNNING
from spidertensor.spider.vectorized_networks import Normal

LARGEST_STEP = 1.0  # of a node's log_noise in a batch; a single entry always moves it by less
# Parts of the running sums: shape and rate of the noise; entries, mean and var of the values (for counts, of
# the level); each mode's mean of log_noise.
NOISE, VALUES, LOG_NOISE = slice(0, 2), slice(2, 5), slice(5, None)

count = partial(jnp.sum, dtype=jnp.int32)


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


class Pair(NamedTuple):
    """Running sums high + low: they do not stall in float32, and are exact as one float64."""

    high: jax.Array
    low: jax.Array


def log_noise_of(settings: Settings, table: Normal | None, sums: Pair, rows: jax.Array) -> Normal | None:
    """log_noise of the nodes of one entry (K,) or many (n, K); untouched nodes have their mode's mean."""
    if table is None:
        return None
    mean, var, prior_var = table.mean[rows], table.var[rows], settings.log_noise_prior
    mean = jnp.where(var < prior_var, mean, sums.high[LOG_NOISE])
    return Normal(mean, jnp.minimum(var, prior_var))


def noise_of(settings: Settings, sums: Pair, log_noise: Normal | None) -> tuple[Any, Any]:
    """Section 12: noise b/a exp(sum_k l^k) of each entry, and the entry's own factor in it."""
    shape, rate = sums.high[NOISE]
    noise, own = settings.likelihood.jax_noise_var(shape, rate), 1
    if log_noise is not None:
        own = jnp.exp(jnp.sum(log_noise.mean, axis=-1))
        noise = noise * own
    if settings.robust:
        noise = jnp.maximum(noise, jnp.maximum(LEAST_NOISE * sums.high[VALUES][2], 1 / HUGE))
    return noise, own


def clipped(settings: Settings, clip, value, alpha, beta, noise) -> jax.Array:
    """Values after clipping (section 11)."""
    return settings.likelihood.jax_clipped(value, alpha, beta, noise, clip) if settings.clips else value


def level_of(settings: Settings, sums: Pair) -> tuple[Any, Any]:
    """Mean and variance of the level of f that all entries share (section 17)."""
    return tuple(sums.high[VALUES][1:]) if settings.likelihood.level_var else (0, 0)


def moved_log_noise(settings: Settings, log_widening, old: Normal, times, information, score) -> Normal:
    """Section 12: log_noise of nodes after `times` entries with this summed information and score.

    An entry's information is k²/2, where k is the noise's share of the predictive variance.
    """
    v = widened(old.var, settings.log_noise_prior, log_widening, times)
    v = 1 / (1 / v + information)
    moved = old.mean + jnp.clip(v * score, -LARGEST_STEP, LARGEST_STEP)
    return Normal(jnp.clip(moved, -LARGEST_LOG_NOISE, LARGEST_LOG_NOISE), v)


def score_of(misfit, noise) -> jax.Array:
    """d log evidence / dlog noise of an entry, bounded above."""
    return 0.5 * (jnp.minimum(misfit / noise, LARGEST_SQUARE) - 1)


def widened(var, prior_var, log_by, times) -> jax.Array:
    """Section 13 for `times` entries: max(var, min(prior var, var by^times)); var itself if log_by is 0."""
    return jnp.maximum(var, jnp.minimum(prior_var, var * jnp.exp(log_by * times)))


def for_noise(settings: Settings, value, y) -> jax.Array:
    """The value that the noise learns from: the true one, or the clipped y if the true one is wild."""
    return jnp.where(jnp.abs(value) < WILD, value, y) if settings.robust else y


def sums_after(
    settings: Settings, log_forgetting, sums: Pair, good, y, misfit, log_noise: Normal | None
) -> Pair:
    """The running sums after the `good` entries.

    y:         values
    misfit:    misfits divided by the entries' own noise factors
    log_noise: (n, K) of the entries' nodes, after the entries

    Noise (section 7): a = lam^n a + 1/2 sum_i lam^(n-i), b likewise with the misfits. What the running means
    of log_noise gain belongs to no single node: b loses as much.
    """
    high = sums.high
    n = count(good)
    kept = jnp.where(good, jnp.exp(log_forgetting * (n - jnp.cumsum(good))), 0)
    new = jnp.stack([kept, kept * jnp.where(good, misfit, 0)])
    change = jnp.expm1(log_forgetting * n) * high[NOISE] + 0.5 * jnp.sum(new, axis=1)
    values = jnp.zeros_like(high[VALUES])
    if settings.robust:
        values = _values_change(high[VALUES], good, jnp.clip(y, -WILD, WILD))
    running = jnp.zeros_like(high[LOG_NOISE])
    if log_noise is not None:  # n steps of 1 / LOG_NOISE_RUNNING of the way to their mean
        mean = jnp.sum(jnp.where(good[:, None], log_noise.mean, 0), axis=0) / jnp.maximum(n, 1)
        running = -jnp.expm1(n * math.log1p(-1 / LOG_NOISE_RUNNING)) * (mean - high[LOG_NOISE])
        if settings.network.without_id:
            running = running.at[jnp.array(settings.network.without_id)].set(0)
        change = change.at[1].add(jnp.expm1(-jnp.sum(running)) * (high[NOISE][1] + change[1]))
    return add(sums, jnp.concatenate([change, values, running]))


def sums_after_scores(settings: Settings, log_forgetting, sums: Pair, good, score, S_res, S_inv) -> Pair:
    """`sums_after` for a likelihood that is not `normal`: see `Likelihood.jax_change`."""
    high = sums.high
    sums_of_f = S_res, S_inv
    change = settings.likelihood.jax_change(
        high[NOISE], high[VALUES][1:], log_forgetting, good, score, sums_of_f
    )
    if change is None:
        return sums
    noise, level = change[:2], change[2:]
    unchanged = jnp.zeros_like(high[VALUES][:1]), jnp.zeros_like(high[LOG_NOISE])
    return add(sums, jnp.concatenate([noise, unchanged[0], level, unchanged[1]]))


def _values_change(values: jax.Array, good, y) -> jax.Array:
    """What follow.note_value would add to the running moments of the values, entry by entry.

    With w_i = 1 / entries_i they are weighted moments: y_i has weight u_i = w_i prod_{j>i} (1 - w_j), and the
    earlier moments 1 - sum_i u_i.
    """
    entries, mean, var = values
    counted = jnp.minimum(entries + jnp.cumsum(good), RUNNING_ENTRIES)
    w = jnp.where(good, 1 / counted, 0)
    left = jnp.cumprod((1 - w)[::-1])[::-1]
    u = w * jnp.append(left[1:], 1)
    off = jnp.where(good, y - mean, 0)
    step = jnp.sum(u * off)
    spread = jnp.sum(u * (off - step) ** 2) + left[0] * step * step - jnp.sum(u) * var
    return jnp.stack([counted[-1] - entries, step, spread])


def add(pair: Pair, x: jax.Array) -> Pair:
    """Add x by Knuth's error-free sum; the rounding error goes into `low`."""
    total = pair.high + x
    rest = total - pair.high
    low = pair.low + ((pair.high - (total - rest)) + (x - rest))
    high = total + low
    return Pair(high, low - (high - total))
