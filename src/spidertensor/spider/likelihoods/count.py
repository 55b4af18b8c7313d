"""Counts: negative binomial around a mean of exp(f). mathematics.md section 17.

A `Prediction` has mean and variance of f, the log of the rate, and as its noise 1/r: an observation has mean
exp(f) and variance exp(f) + noise exp(2 f). With M = E[exp(f)] and F = E[exp(2 f)] its moments are

    mean = M = exp(mean of f + var / 2),   variance = M + F (1 + noise) - M²,   F = exp(2 mean of f + 2 var)

where var counts as no more than WIDEST: of an f that is hardly known the normal distribution is a rough
guess, and its upper tail alone would be M.

Intervals are those of a negative binomial that matches the logarithm of the rate instead (`_matched`). With
the moments of the rate itself, a wide f would have a size of nearly 0: a chance of nearly 1 for a zero. For
the same reason a committee mixes f, as it does for all likelihoods: one member that is far off, with a small
weight, would be all of the mixture's mean and variance.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import digamma, ndtr, ndtri, zeta

from spidertensor.method import Prediction
from spidertensor.spider.compiled import COMPILE, PART, kernel
from spidertensor.spider.keyed import uniforms
from spidertensor.spider.likelihoods import negative_binomial
from spidertensor.spider.likelihoods.base import RATE_VAR, Evidence, Likelihood
from spidertensor.spider.likelihoods.negative_binomial import CODE, LARGEST_NOISE, LEAST_NOISE
from spidertensor.spider.likelihoods.quadrature import by_quadrature, log_evidences

LARGEST = 1e15  # of a count: not far above, a float64 has no digit for ones any more
LARGEST_LOG = math.log(1e100)  # of a rate: its square is still a number
WIDEST = 4.0  # variance of f in the moments of an observation
LEVEL_VAR = 4.0  # prior variance of the level of f
LEVEL_MEMORY = 10_000.0  # entries over which the level forgets
DEPTH, DEPTH_VAR = 8.0, 1.0  # below the level: a rate of exp(-8) of it is as good as none
LARGEST_STEP = 0.5  # of log noise, by an entry
LARGEST_SCORE = 3.0  # of log noise: one wild count must not make it certain
_LEAST_CHANCE = 1e-300
_NEWTON_STEPS = 3  # after which an inverse of trigamma is right to 3e-6
_KEY = 0  # of the draws inside a count's step of the distribution function


class Count(Likelihood):
    name, code = "count", CODE
    allowed, scaled, intervals = "a whole number from 0 on", False, True
    remedy = "round it, or learn the values as continuous ones"
    counts, clips, level_var = True, True, LEVEL_VAR
    metric = "rmse"
    metrics = (
        "mae", "log_density", "coverage_50", "coverage_80", "coverage_90", "coverage_95", "coverage_99",
    )  # fmt: skip
    std_name = "std_of_f"

    def allows(self, value):
        with np.errstate(invalid="ignore"):
            return (value >= 0) & (value <= LARGEST) & (np.floor(value) == value)

    def refusal(self, value):
        if LARGEST < value < math.inf:
            remedy = "count in a larger unit, or learn the values as continuous ones"
            return f"is more than {LARGEST:g}, up to which counts are learned exactly", remedy
        return super().refusal(value)

    def log_evidence(self, value, mean, var, noise):
        parts = np.broadcast_arrays(*(np.asarray(part, np.float64) for part in (value, mean, var, noise)))
        out = np.empty(parts[0].shape)
        log_evidences(CODE, *(np.ascontiguousarray(part).ravel() for part in parts), out.reshape(-1))
        return out

    def noise_var(self, shape, rate):
        return float(np.clip(np.asarray(rate) / np.asarray(shape), LEAST_NOISE, LARGEST_NOISE))

    def expected(self, mean, var):
        log_rate = np.asarray(mean, np.float64) + np.minimum(np.asarray(var, np.float64), WIDEST) / 2
        return np.exp(np.clip(log_rate, -LARGEST_LOG, LARGEST_LOG))

    def std(self, mean, var, noise):
        rate = self.expected(mean, var)
        return np.sqrt(rate * (1 + rate / _size(var, noise)))

    def residual(self, value, prediction, first=0):
        """Phi^-1 of a point drawn inside the step of the distribution function at the value, which is that of
        the negative binomial of `_matched`. The draw depends on the number of the entry alone, from `first`
        on. Above the mean by the chance of more: one of less is close to 1, where it has no digits left."""
        value = np.asarray(value, np.float64)
        mean, size = _matched(*prediction)
        upper = value > mean
        before, behind = (negative_binomial.tail(k, mean, size, upper) for k in (value - 1, value))
        draw = np.empty(len(value))
        uniforms(_KEY, first, draw)
        residual = ndtri(np.clip(before + draw * (behind - before), _LEAST_CHANCE, 1 - 2.0**-53))
        return np.where(upper, -residual, residual)

    def at_residual(self, residual, prediction):
        chance, upper = float(ndtr(-abs(residual))), residual > 0
        return negative_binomial.quantile(chance, *_matched(*prediction), upper)

    def clipped(self, value, prediction, residual, clip):
        """By the same bound as a member's: a residual would count small values and rare ones, which are
        learned in full."""
        bounds = np.empty(len(value))
        _largest(*prediction, clip, bounds)
        return value > bounds

    def from_moments(self, n, total, squares, origin):
        rate = (total + n * origin + 1) / (n + 1)
        off = total + n * (origin - rate)  # sum of value - rate
        spread = squares - total * total / np.maximum(n, 1) + off * off / np.maximum(n, 1)
        noise = np.clip((spread / (n + 1) - rate) / rate**2, LEAST_NOISE, LARGEST_NOISE)
        return Prediction(np.log(rate) - RATE_VAR / 2, np.full(len(rate), RATE_VAR), noise)

    def noise_in_words(self, noise):
        return "dispersion", f"{noise:.4g}: the variance of a count is mean + {noise:.4g} mean²"

    def jax_evidence(self, y, alpha, beta, noise, level):
        """`count_evidence`."""
        import jax.numpy as jnp

        from spidertensor.spider.likelihoods.jax_quadrature import by_quadrature

        found = by_quadrature(negative_binomial.jax_log_density, y, alpha, beta, noise)
        s, r = beta + DEPTH_VAR, level - DEPTH - alpha
        seen = [found.log_z, r / s, 0.5 * (r * r / s - 1) / s, 1 / s, 1 / DEPTH_VAR, r / DEPTH_VAR**0.5, 0.0]
        low = (y == 0) & (r > 0)
        return Evidence(*(jnp.where(low, new, old) for new, old in zip(seen, found, strict=True)))

    def jax_noise_var(self, shape, rate):
        import jax.numpy as jnp

        return jnp.clip(rate / shape, LEAST_NOISE, LARGEST_NOISE)

    def jax_clipped(self, value, alpha, beta, noise, clip):
        """`largest_learned`."""
        import jax.numpy as jnp

        log_more = jnp.logaddexp(jnp.minimum(alpha + jnp.minimum(beta, WIDEST) / 2, LARGEST_LOG), 0)
        return jnp.minimum(value, jnp.exp(log_more + clip * jnp.sqrt(beta + noise + jnp.exp(-log_more))))

    def jax_change(self, noise, level, log_forgetting, good, score, sums):
        """`learn_noise` and `learn_level`, for entries at once."""
        import jax.numpy as jnp

        (shape, rate), (_, var), (S_res, S_inv) = noise, level, sums
        n = jnp.sum(good, dtype=jnp.int32)
        score = jnp.where(good, jnp.clip(score, -LARGEST_SCORE, LARGEST_SCORE), 0)
        fading = jnp.maximum(shape * jnp.exp(log_forgetting * n), jnp.minimum(shape, 1))
        known = fading + jnp.sum(score * score)
        step = jnp.clip(jnp.sum(score) / known, -LARGEST_STEP, LARGEST_STEP)
        new = self.jax_noise_var(shape, rate) * jnp.exp(step)
        wide = jnp.minimum(LEVEL_VAR, (var - var * var * S_inv) * jnp.exp(n * math.log1p(1 / LEVEL_MEMORY)))
        change = jnp.stack([known - shape, known * new - rate, var * S_res, wide - var])
        return jnp.where(n > 0, change, 0)


COUNT = Count()


def _matched(mean, var, noise):
    """Mean and size of the negative binomial, a Poisson whose rate is a Gamma, of which log rate has the mean
    and variance that f and the noise give it together: mean + digamma(r) - log r, var + trigamma(r)."""
    r = 1 / np.asarray(noise, np.float64)
    size = _inverse_trigamma(np.asarray(var, np.float64) + zeta(2, r))
    log_mean = mean + digamma(r) - np.log(r) - digamma(size) + np.log(size)
    return np.exp(np.clip(log_mean, -LARGEST_LOG, LARGEST_LOG)), size


def _inverse_trigamma(var):
    """Newton's steps for 1 / trigamma, which is nearly a line, from trigamma(x) = 1/x + 1/(2 x²). By
    Hurwitz's zeta: trigamma(x) = zeta(2, x), and its derivative -2 zeta(3, x)."""
    x = (1 + np.sqrt(1 + 2 * var)) / (2 * var)
    for _ in range(_NEWTON_STEPS):
        trigamma = zeta(2, x)
        x = x - trigamma * (1 - trigamma / var) / (2 * zeta(3, x))
    return x


def _size(var, noise):
    """M² / (F (1 + noise) - M²): of the negative binomial with the moments of an observation."""
    var = np.minimum(np.asarray(var, np.float64), WIDEST)
    return 1 / (np.expm1(var) + np.exp(var) * np.asarray(noise, np.float64))


@kernel(**PART)
def noise_of_counts(noise):
    return min(max(noise.rate[()] / noise.shape[()], LEAST_NOISE), LARGEST_NOISE)


@kernel(**PART)
def count_evidence(y, alpha, beta, noise, level):
    """`by_quadrature`, but for zeros whose f is far below the level already. Nothing in a zero keeps f from
    falling for ever, and exp(f) of a wide f from being huge: they are learned as if f had been seen there."""
    if abs(alpha) > LARGEST_LOG:  # no rate: only a file from strangers has such weights
        return -np.inf, 0.0, 0.0, 0.0, 0.0
    log_z, da, db, c, score = by_quadrature(CODE, y, alpha, beta, noise)
    if y == 0 and alpha < level - DEPTH:
        s, r = beta + DEPTH_VAR, level - DEPTH - alpha
        return log_z, r / s, 0.5 * (r * r / s - 1.0) / s, 1.0 / s, 0.0
    return log_z, da, db, c, score


@kernel(**PART)
def learn_level(stream, da, c):
    """One more element of the model, of gradient 1 and with a memory: it follows the level of the counts."""
    var = stream.var[()]
    stream.mean[()] += var * da
    stream.var[()] = min(LEVEL_VAR, (var - var * var * c) * (1 + 1 / LEVEL_MEMORY))


@kernel(**PART)
def largest_learned(alpha, beta, noise, clip):
    """Section 11 for counts: a larger one is learned as if it were this, a little beyond what a count of mean
    M can be. Rare counts are never clipped: of those with a small M the 1s are far from it."""
    log_rate = min(alpha + min(beta, WIDEST) / 2, LARGEST_LOG)
    more = math.exp(log_rate) + 1
    return math.exp(min(math.log(more) + clip * math.sqrt(beta + noise + 1 / more), LARGEST_LOG))


@kernel(**COMPILE)
def _largest(mean, var, noise, clip, out):
    """`largest_learned` of many predictions."""
    for i in range(len(out)):
        out[i] = largest_learned(mean[i], var[i], noise[i], clip)


@kernel(**PART)
def learn_noise(noise, score, forgetting):
    """log noise ~ N(log(rate / shape), 1 / shape): a step along d log Z / dlog noise, whose square is what
    the entry tells. What is known fades, but not below what was known before any entry."""
    at, score = math.log(noise_of_counts(noise)), min(max(score, -LARGEST_SCORE), LARGEST_SCORE)
    known = max(forgetting * noise.shape[()], min(noise.shape[()], 1.0)) + score * score
    at += min(max(score / known, -LARGEST_STEP), LARGEST_STEP)
    noise.shape[()] = known
    noise.rate[()] = known * math.exp(at)
