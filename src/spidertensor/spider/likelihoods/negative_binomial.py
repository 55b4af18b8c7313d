"""The negative binomial of mean exp(f) and variance exp(f) + noise exp(2 f), compiled and for arrays.

mathematics.md section 17. With r = 1/noise and t = f - log r,

    log p(y | f) = log Gamma(y + r) - log Gamma(r) - log Gamma(y + 1) - y log(1 + exp(-t)) - r log(1 + exp(t))

which loses no digits: neither for counts of a million nor near the Poisson, where r is large. The first three
terms do not depend on f.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from spidertensor.spider.compiled import kernel

CODE = 2  # of the likelihood of counts, for kernels
LEAST_NOISE, LARGEST_NOISE = 1e-4, 1e2  # of 1/r: from all but a Poisson to all but nothing except zeros
_ASYMPTOTIC = 8.0  # from here on the series of digamma is exact to 1e-11
_FAR = 2.0**62  # a count that bisection does not look beyond


@kernel(cache=True, error_model="numpy")
def log_density(y, f, noise):
    """log p(y | f) without the terms that f is not in, its two derivatives by f, the one by log noise."""
    r = 1.0 / noise
    t = f + math.log(noise)
    e = math.exp(-abs(t))  # 1 + e is never large
    both, large = math.log1p(e), 1.0 / (1.0 + e)
    small = e * large
    plus, minus = both + max(t, 0.0), both + max(-t, 0.0)  # log(1 + exp(t)), log(1 + exp(-t))
    share, rest = (large, small) if t > 0 else (small, large)  # mean / (mean + r), r / (mean + r)
    slope = y * rest - r * share
    # d/dlog noise = -r d/dr; the log Gammas' part of it is in `constants`
    return -y * minus - r * plus, slope, -(y + r) * share * rest, r * plus + slope


@kernel(cache=True, error_model="numpy")
def constants(y, noise):
    """What `log_density` leaves out of log p(y | f) and of its derivative by log noise."""
    r = 1.0 / noise
    log_gammas = math.lgamma(y + r) - math.lgamma(r) - math.lgamma(y + 1.0)
    return log_gammas, -r * (_digamma(y + r) - _digamma(r))


@kernel(cache=True, error_model="numpy")
def _digamma(x):
    below = 0.0
    while x < _ASYMPTOTIC:
        below += 1.0 / x
        x += 1.0
    u = 1.0 / (x * x)
    return (
        math.log(x) - 0.5 / x - u * (1 / 12 - u * (1 / 120 - u * (1 / 252 - u * (1 / 240 - u / 132)))) - below
    )


def cdf(k: NDArray[np.float64], mean: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(Y <= k) of a negative binomial of this mean, and of variance mean + mean² / size."""
    return np.where(k < 0, 0.0, betainc(size, np.maximum(k, 0.0) + 1.0, size / (size + mean)))


def quantile(p: float, mean: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.float64]:
    """The smallest count k with P(Y <= k) >= p."""
    low, high = np.full(mean.shape, -1.0), np.minimum(np.ceil(8 * mean + 8), _FAR)
    while (short := (cdf(high, mean, size) < p) & (high < _FAR)).any():
        low, high = np.where(short, high, low), np.where(short, np.minimum(8 * high, _FAR), high)
    while (open_ := high - low > np.maximum(1.0, high * 2.0**-52)).any():
        middle = low + np.floor((high - low) / 2)
        enough = cdf(middle, mean, size) >= p
        high, low = np.where(open_ & enough, middle, high), np.where(open_ & ~enough, middle, low)
    return high
