"""Negative binomial with mean exp(f) and variance exp(f) + noise exp(2 f), compiled and for arrays.

mathematics.md section 17. With r = 1/noise and t = f - log r,

    log p(y | f) = log Gamma(y + r) - log Gamma(r) - log Gamma(y + 1) - y log(1 + exp(-t)) - r log(1 + exp(t))

which loses no digits near the Poisson, where r is large. The first three terms do not depend on f; for large
counts the difference of the two terms with y is computed by Stirling's series (`_log_gamma_ratio`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from spidertensor.spider.compiled import COMPILE, kernel

Floats = NDArray[np.float64]

CODE = 2  # of the count likelihood, for kernels
LEAST_NOISE, LARGEST_NOISE = 1e-4, 1e2  # bounds of 1/r: nearly a Poisson; nearly always 0
_ASYMPTOTIC = 8.0  # from here on the series of digamma is exact to 1e-11
_LARGE = 1e3  # from here on Stirling's series is exact, and log Gammas begin to lose digits
_LARGE_SINGLE = 10.0  # from here on two terms of the series are exact in float32
_LOG_2PI = math.log(2 * math.pi)
_FAR = 2.0**62  # largest count that bisection considers


@kernel(**COMPILE)
def log_density(y, f, noise):
    """log p(y | f) without the terms free of f, its first two derivatives by f, and the one by log noise."""
    r = 1.0 / noise
    t = f + math.log(noise)
    e = math.exp(-abs(t))  # 1 + e is never large
    both, large = math.log1p(e), 1.0 / (1.0 + e)
    small = e * large
    plus, minus = both + max(t, 0.0), both + max(-t, 0.0)  # log(1 + exp(t)), log(1 + exp(-t))
    share, rest = (large, small) if t > 0 else (small, large)  # mean / (mean + r), r / (mean + r)
    slope = y * rest - r * share
    # d/dlog noise = -r d/dr; the log Gammas' part is in `constants`
    return -y * minus - r * plus, slope, -(y + r) * share * rest, r * plus + slope


@kernel(**COMPILE)
def constants(y, noise):
    """What `log_density` leaves out of log p(y | f) and of its derivative by log noise."""
    r = 1.0 / noise
    return _log_gamma_ratio(y + 1.0, r - 1.0) - math.lgamma(r), -r * (_digamma(y + r) - _digamma(r))


@kernel(**COMPILE)
def _log_gamma_ratio(a, d):
    """log(Gamma(a + d) / Gamma(a)). At a = 1e12 each log is 2.7e13, with only two decimal places."""
    b = a + d
    if min(a, b) < _LARGE:
        return math.lgamma(b) - math.lgamma(a)
    # difference of (x - 1/2) log x - x at b and a, without cancellation
    return (a - 0.5) * math.log1p(d / a) + d * (math.log(b) - 1.0) + _stirling_rest(b) - _stirling_rest(a)


@kernel(**COMPILE)
def _stirling_rest(x):
    u = 1.0 / (x * x)
    return (1 / 12 - u * (1 / 360 - u / 1260)) / x


@kernel(**COMPILE)
def _digamma(x):
    below = 0.0
    while x < _ASYMPTOTIC:
        below += 1.0 / x
        x += 1.0
    u = 1.0 / (x * x)
    return (
        math.log(x) - 0.5 / x - u * (1 / 12 - u * (1 / 120 - u * (1 / 252 - u * (1 / 240 - u / 132)))) - below
    )


def jax_log_density(y: Any, f: Any, log_noise: Any) -> Any:
    """log p(y | f) for JAX arrays: the log density of y at mean y, by Stirling's series, minus what f loses
    against that. In float32 differences of log Gammas would lose all digits."""
    import jax.numpy as jnp
    from jax.nn import softplus

    r, some = jnp.exp(-log_noise), jnp.maximum(y, 1)
    best = jnp.log(some) + log_noise
    at_best = -0.5 * (_LOG_2PI + jnp.log(some) + softplus(best))
    at_best += _jax_stirling_rest(some + r) - _jax_stirling_rest(r) - _jax_stirling_rest(some)
    t = f + log_noise
    loss = y * (softplus(-t) - softplus(-best)) + r * (softplus(t) - softplus(best))
    return jnp.where(y > 0, at_best - loss, -r * softplus(t))


def _jax_stirling_rest(x: Any) -> Any:
    """log Gamma(x) - ((x - 1/2) log x - x + log(2 pi) / 2)"""
    import jax.numpy as jnp
    from jax.scipy.special import gammaln

    small, large = jnp.minimum(x, _LARGE_SINGLE), jnp.maximum(x, _LARGE_SINGLE)
    exact = gammaln(small) - ((small - 0.5) * jnp.log(small) - small + 0.5 * _LOG_2PI)
    return jnp.where(x < _LARGE_SINGLE, exact, (1 - 1 / (30 * large**2)) / (12 * large))


def tail(k: Floats, mean: Floats, size: Floats, upper: Any) -> Floats:
    """P(Y <= k) or, where `upper`, P(Y > k), for a negative binomial with this mean and variance
    mean + mean² / size. Tiny probabilities keep all their digits."""
    more, total = np.maximum(k, 0.0) + 1.0, size + mean
    of, to, share = np.where(upper, (more, size, mean / total), (size, more, size / total))
    return np.where(k < 0, np.where(upper, 1.0, 0.0), betainc(of, to, share))


def quantile(chance: float, mean: Floats, size: Floats, upper: bool) -> Floats:
    """Smallest count k with P(Y <= k) >= chance or, if `upper`, with P(Y > k) <= chance."""

    def enough(k: Floats) -> NDArray[np.bool_]:
        found = tail(k, mean, size, upper)
        return found <= chance if upper else found >= chance

    low, high = np.full(mean.shape, -1.0), np.minimum(np.ceil(8 * mean + 8), _FAR)
    while (short := ~enough(high) & (high < _FAR)).any():
        low, high = np.where(short, high, low), np.where(short, np.minimum(8 * high, _FAR), high)
    while (open_ := high - low > np.maximum(1.0, high * 2.0**-52)).any():
        middle = low + np.floor((high - low) / 2)
        reached = enough(middle)
        high, low = np.where(open_ & reached, middle, high), np.where(open_ & ~reached, middle, low)
    return high
