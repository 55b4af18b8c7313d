"""Counts: negative binomial with mean exp(f). mathematics.md section 17.

A `Prediction` holds mean and variance of f, the log of the rate, and 1/r as its noise: an observation has
mean exp(f) and variance exp(f) + noise exp(2 f). With M = E[exp(f)] and F = E[exp(2 f)] its moments are

    mean = M = exp(mean of f + var / 2),   variance = M + F (1 + noise) - M²,   F = exp(2 mean of f + 2 var)

where var is bounded by WIDEST: the normal distribution of a barely known f is a rough guess, and its upper
tail alone would make up M.

Intervals come from a negative binomial that matches the logarithm of the rate instead (`_matched`). Matching
the moments of the rate itself would give a wide f a size near 0, and so nearly all probability to 0. For the
same reason a committee mixes f, as it does for all likelihoods: otherwise one wildly wrong member with a
small weight would dominate the mixture's mean and variance.
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

LARGEST = 1e15  # largest count: not far above, float64 no longer holds every integer
LARGEST_LOG = math.log(1e100)  # bound of a log rate: the rate's square must stay finite
WIDEST = 4.0  # bound of f's variance in the moments of an observation
LEVEL_VAR = 4.0  # prior variance of the level of f
LEVEL_MEMORY = 10_000.0  # entries over which the level forgets
DEPTH, DEPTH_VAR = 8.0, 1.0  # below the level: a rate of exp(-8) times the usual is practically 0
LARGEST_STEP = 0.5  # of log noise per entry
LARGEST_SCORE = 3.0  # bound of d log Z / dlog noise: one wild count must not make the noise certain
_LEAST_CHANCE = 1e-300
_NEWTON_STEPS = 3  # after which the inverse of trigamma is exact to 3e-6
_KEY = 0  # of the random draws in `residual`


class Count(Likelihood):
    name, code = "count", CODE
    allowed, scaled, intervals = "a whole number from 0 on", False, True
    remedy = "round it, or learn the values as continuous"
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
            remedy = "count in a larger unit, or learn the values as continuous"
            return f"is more than {LARGEST:g}, the largest count that is exact", remedy
        return super().refusal(value)

    def log_evidence(self, value, mean, var, noise):
        parts = np.broadcast_arrays(*(np.asarray(part, np.float64) for part in (value, mean, var, noise)))
        out = np.empty(parts[0].shape)
        log_evidences(CODE, *(np.ascontiguousarray(part).ravel() for part in parts), out.reshape(-1))
        return out

    def noise_var(self, shape, rate):
        return float(np.clip(np.asarray(rate) / np.asarray(shape), LEAST_NOISE, LARGEST_NOISE))

    def expected(self, mean, var, noise=0.0):
        log_rate = np.asarray(mean, np.float64) + np.minimum(np.asarray(var, np.float64), WIDEST) / 2
        return np.exp(np.clip(log_rate, -LARGEST_LOG, LARGEST_LOG))

    def std(self, mean, var, noise):
        rate = self.expected(mean, var)
        return np.sqrt(rate * (1 + rate / _size(var, noise)))

    def residual(self, value, prediction, first=0):
        """Phi^-1 of a point drawn uniformly within the step that the distribution function of `_matched`'s
        negative binomial makes at the value. The draw depends only on the entry's number, from `first` on.
        Above the mean the upper tail is used: the lower one is close to 1 and has no digits left."""
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
        """Uses the members' bound: residuals would also flag small and rare values, which are not clipped."""
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

    def jax_evidence(self, y, alpha, beta, noise, level, weight=None):
        """`count_evidence` in JAX."""
        import jax.numpy as jnp

        from spidertensor.spider.likelihoods.jax_quadrature import by_quadrature

        found = by_quadrature(negative_binomial.jax_log_density, y, alpha, beta, noise, weight)
        var = DEPTH_VAR if weight is None else DEPTH_VAR / weight
        s, r = beta + var, level - DEPTH - alpha
        seen = [found.log_z, r / s, 0.5 * (r * r / s - 1) / s, 1 / s, 1 / var, r / var**0.5, 0.0]
        low = (y == 0) & (r > 0)
        return Evidence(*(jnp.where(low, new, old) for new, old in zip(seen, found, strict=True)))

    def jax_noise_var(self, shape, rate):
        import jax.numpy as jnp

        return jnp.clip(rate / shape, LEAST_NOISE, LARGEST_NOISE)

    def jax_clipped(self, value, alpha, beta, noise, clip):
        """The value, at most `largest_learned`, in JAX."""
        import jax.numpy as jnp

        log_more = jnp.logaddexp(jnp.minimum(alpha + jnp.minimum(beta, WIDEST) / 2, LARGEST_LOG), 0)
        return jnp.minimum(value, jnp.exp(log_more + clip * jnp.sqrt(beta + noise + jnp.exp(-log_more))))

    def jax_change(self, noise, level, log_forgetting, good, score, sums, weight=None):
        """`learn_noise` and `learn_level` for many entries at once."""
        import jax.numpy as jnp

        (shape, rate), (_, var), (S_res, S_inv) = noise, level, sums
        n = jnp.sum(good, dtype=jnp.int32)
        score = jnp.where(good, jnp.clip(score, -LARGEST_SCORE, LARGEST_SCORE), 0)
        fading = jnp.maximum(shape * jnp.exp(log_forgetting * n), jnp.minimum(shape, 1))
        counted = score if weight is None else weight * score
        known = fading + jnp.sum(counted * score)
        step = jnp.clip(jnp.sum(counted) / known, -LARGEST_STEP, LARGEST_STEP)
        new = self.jax_noise_var(shape, rate) * jnp.exp(step)
        wide = jnp.minimum(LEVEL_VAR, (var - var * var * S_inv) * jnp.exp(n * math.log1p(1 / LEVEL_MEMORY)))
        change = jnp.stack([known - shape, known * new - rate, var * S_res, wide - var])
        return jnp.where(n > 0, change, 0)


COUNT = Count()


def _matched(mean, var, noise):
    """Mean and size of the negative binomial (a Poisson with Gamma rate) whose log rate has the mean and
    variance that f and the noise imply together: mean + digamma(r) - log r and var + trigamma(r)."""
    r = 1 / np.asarray(noise, np.float64)
    size = _inverse_trigamma(np.asarray(var, np.float64) + zeta(2, r))
    log_mean = mean + digamma(r) - np.log(r) - digamma(size) + np.log(size)
    return np.exp(np.clip(log_mean, -LARGEST_LOG, LARGEST_LOG)), size


def _inverse_trigamma(var):
    """Newton's steps on 1 / trigamma, which is nearly linear, starting from trigamma(x) = 1/x + 1/(2 x²).
    trigamma(x) = zeta(2, x) (Hurwitz), and its derivative is -2 zeta(3, x)."""
    x = (1 + np.sqrt(1 + 2 * var)) / (2 * var)
    for _ in range(_NEWTON_STEPS):
        trigamma = zeta(2, x)
        x = x - trigamma * (1 - trigamma / var) / (2 * zeta(3, x))
    return x


def _size(var, noise):
    """M² / (F (1 + noise) - M²): size of the negative binomial with the moments of an observation."""
    var = np.minimum(np.asarray(var, np.float64), WIDEST)
    return 1 / (np.expm1(var) + np.exp(var) * np.asarray(noise, np.float64))


@kernel(**PART)
def noise_of_counts(noise):
    return min(max(noise.rate[()] / noise.shape[()], LEAST_NOISE), LARGEST_NOISE)


@kernel(**PART)
def count_evidence(y, alpha, beta, noise, level, weight):
    """`by_quadrature`, except for zeros whose f is already far below the level. Nothing in a zero stops f
    from falling, or exp(f) of a wide f from growing: they are learned as if f = level - DEPTH were seen."""
    if abs(alpha) > LARGEST_LOG:  # the rate overflows: only corrupt or hostile files have such weights
        return -np.inf, 0.0, 0.0, 0.0, 0.0
    log_z, da, db, c, score = by_quadrature(CODE, y, alpha, beta, noise, weight)
    if y == 0 and alpha < level - DEPTH:
        var = DEPTH_VAR if weight is None else DEPTH_VAR / weight
        s, r = beta + var, level - DEPTH - alpha
        return log_z, r / s, 0.5 * (r * r / s - 1.0) / s, 1.0 / s, 0.0
    return log_z, da, db, c, score


@kernel(**PART)
def learn_level(stream, da, c):
    """Update the level of the counts: one more element of the model, with gradient 1 and a memory."""
    var = stream.var[()]
    stream.mean[()] += var * da
    stream.var[()] = min(LEVEL_VAR, (var - var * var * c) * (1 + 1 / LEVEL_MEMORY))


@kernel(**PART)
def largest_learned(alpha, beta, noise, clip):
    """Clip for counts (section 17): larger ones are learned as this, just beyond what mean M makes plausible.
    The + 1 keeps rare counts from being clipped: with a small M even a 1 is far from it."""
    log_rate = min(alpha + min(beta, WIDEST) / 2, LARGEST_LOG)
    more = math.exp(log_rate) + 1
    return math.exp(min(math.log(more) + clip * math.sqrt(beta + noise + 1 / more), LARGEST_LOG))


@kernel(**COMPILE)
def _largest(mean, var, noise, clip, out):
    """Fill out (n,) with `largest_learned` of many predictions."""
    for i in range(len(out)):
        out[i] = largest_learned(mean[i], var[i], noise[i], clip)


@kernel(**PART)
def learn_noise(noise, score, forgetting, weight):
    """Update log noise ~ N(log(rate / shape), 1 / shape) by a step along score = d log Z / dlog noise.

    score² is the information of the entry. The precision fades, but not below that of the prior.
    weight: None, or how often the entry counts
    """
    at, score = math.log(noise_of_counts(noise)), min(max(score, -LARGEST_SCORE), LARGEST_SCORE)
    known = max(forgetting * noise.shape[()], min(noise.shape[()], 1.0))
    if weight is None:
        known += score * score
    else:
        known += weight * score * score
        score *= weight
    at += min(max(score / known, -LARGEST_STEP), LARGEST_STEP)
    noise.shape[()] = known
    noise.rate[()] = known * math.exp(at)
