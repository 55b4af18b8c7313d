"""Counts: negative binomial around a mean of exp(f). mathematics.md section 17.

A `Prediction` has mean and variance of f, the log of the rate, and as its noise 1/r: an observation has mean
exp(f) and variance exp(f) + noise exp(2 f). With M = E[exp(f)] and F = E[exp(2 f)] its moments are

    mean = M = exp(mean of f + var / 2),   variance = M + F (1 + noise) - M²,   F = exp(2 mean of f + 2 var)

where var counts as no more than WIDEST: of an f that is hardly known the normal distribution is a rough
guess, and its upper tail alone would be M.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr, ndtri

from spidertensor.spider.compiled import COMPILE, PART, kernel
from spidertensor.spider.keyed import uniforms
from spidertensor.spider.likelihoods import negative_binomial
from spidertensor.spider.likelihoods.base import Likelihood
from spidertensor.spider.likelihoods.negative_binomial import CODE, LARGEST_NOISE, LEAST_NOISE
from spidertensor.spider.likelihoods.quadrature import by_quadrature, log_evidences

LARGEST = 1e15  # of a count: a larger float64 may be no whole number any more
LARGEST_LOG = math.log(1e100)  # of a rate: its square is still a number
WIDEST = 4.0  # variance of f in the moments of an observation
LEVEL_VAR = 4.0  # prior variance of the level of f
LEVEL_MEMORY = 10_000.0  # entries over which the level forgets
DEPTH, DEPTH_VAR = 8.0, 1.0  # below the level: a rate of exp(-8) of it is as good as none
LARGEST_STEP = 0.5  # of log noise, by an entry
_LEAST_CHANCE = 1e-300
_KEY = 0  # of the draws inside a count's step of the distribution function


# Not fastmath: the order in which members are added up would depend on how many entries a call has.
@kernel(**COMPILE | {"fastmath": False})
def mix(weights, parts, out):
    """f and noise such that mean and variance of an observation are exactly those of the mixture.

    Arguments as in mixture.moments. M = sum w M_m, F = sum w F_m, noise = sum w F_m noise_m / F; the log
    normal with these has var = log(F / M²), mean = log M - var / 2. By logarithms, which do not overflow.
    Where var is above WIDEST the noise takes the rest."""
    members, n = parts.shape[0], parts.shape[2]
    for i in range(n):
        w = min(i, weights.shape[1] - 1)
        top_m, top_f = -np.inf, -np.inf
        for m in range(members):
            top_m = max(top_m, parts[m, 0, i] + min(parts[m, 1, i], WIDEST) / 2)
            top_f = max(top_f, 2 * (parts[m, 0, i] + min(parts[m, 1, i], WIDEST)))
        rate, square, noise = 0.0, 0.0, 0.0
        for m in range(members):
            mean, var = parts[m, 0, i], min(parts[m, 1, i], WIDEST)
            rate += weights[m, w] * math.exp(mean + var / 2 - top_m)
            of_f = weights[m, w] * math.exp(2 * (mean + var) - top_f)
            square += of_f
            noise += of_f * parts[m, 2, i]
        log_rate = top_m + math.log(rate)
        var = max(top_f + math.log(square) - 2 * log_rate, 1e-12)
        noise /= square
        if var > WIDEST:
            noise, var = math.exp(min(var - WIDEST, LARGEST_LOG)) * (1 + noise) - 1, WIDEST
        out[0, i], out[1, i], out[2, i] = log_rate - var / 2, var, noise


class Count(Likelihood):
    name, code = "count", CODE
    allowed, scaled, intervals = "a whole number from 0 on", False, True
    remedy = "round it, or learn the values as continuous ones"
    level_var = LEVEL_VAR
    mix = staticmethod(mix)
    metric = "rmse"
    metrics = (
        "mae", "log_density", "coverage_50", "coverage_80", "coverage_90", "coverage_95", "coverage_99",
    )  # fmt: skip
    std_name = "std_of_f"

    def allows(self, value):
        with np.errstate(invalid="ignore"):
            return (value >= 0) & (value <= LARGEST) & (np.floor(value) == value)

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
        a negative binomial of the predicted mean and variance. The draw depends on the number of the entry
        alone, from `first` on."""
        value = np.asarray(value, np.float64)
        moments = self.expected(*prediction[:2]), _size(*prediction[1:])
        below, up_to = negative_binomial.cdf(value - 1, *moments), negative_binomial.cdf(value, *moments)
        draw = np.empty(len(value))
        uniforms(_KEY, first, draw)
        chance = below + draw * (up_to - below)
        return ndtri(np.clip(chance, _LEAST_CHANCE, 1 - 2.0**-53))

    def at_residual(self, residual, prediction):
        moments = self.expected(*prediction[:2]), _size(*prediction[1:])
        return negative_binomial.quantile(float(ndtr(residual)), *moments)

    def noise_in_words(self, noise):
        return "dispersion", f"{noise:.4g}: the variance of a count is mean + {noise:.4g} mean²"


COUNT = Count()


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


@kernel(**PART)
def learn_noise(noise, score, forgetting):
    """log noise ~ N(log(rate / shape), 1 / shape): a step along d log Z / dlog noise, whose square is what
    the entry tells. What is known fades, but not below what was known before any entry."""
    at = math.log(noise_of_counts(noise))
    known = max(forgetting * noise.shape[()], min(noise.shape[()], 1.0)) + score * score
    at += min(max(score / known, -LARGEST_STEP), LARGEST_STEP)
    noise.shape[()] = known
    noise.rate[()] = known * math.exp(at)
