"""What an entry says about f, in JAX: log evidence and its derivatives. mathematics.md sections 3 and 17."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import softplus
from jax.scipy.special import erfc, gammaln

from spidertensor.spider.likelihoods import COUNT, GAUSSIAN, PROBIT, Likelihood, check
from spidertensor.spider.likelihoods.quadrature import LOG_WEIGHTS, NODES

_LOG_2PI = math.log(2 * math.pi)
_STEPS = 32  # towards the mode of a tilted density
_LARGE = 10.0  # from here on two terms of Stirling's series are exact in float32


def mills(t: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """log Phi(t), R = phi(t) / Phi(t) and R + t, exact in both tails and positive for any finite t."""
    # t < -2: R + t = 1/(x + 2/(x + 3/(x + ...))) with x = -t, no difference of nearly equal numbers
    x = jnp.maximum(-t, 2)
    rest = jnp.zeros_like(t)
    for term in range(40, 0, -1):
        rest = term / (x + rest)
    # elsewhere the plain forms
    near = jnp.maximum(t, -2)
    upper, lower = 0.5 * erfc(near * math.sqrt(0.5)), 0.5 * erfc(-near * math.sqrt(0.5))
    log_cdf = jnp.where(near > 0, jnp.log1p(-upper), jnp.log(lower))
    ratio = jnp.exp(-0.5 * near * near - 0.5 * _LOG_2PI) / lower
    tail = t < -2
    return (
        jnp.where(tail, -0.5 * t * t - 0.5 * _LOG_2PI - jnp.log(x + rest), log_cdf),
        jnp.where(tail, x + rest, ratio),
        jnp.where(tail, rest, ratio + near),
    )


class Evidence(NamedTuple):
    """Of one entry or, elementwise, of many. With c = da² - 2 db the entry is to f what an observation of
    variance noise_n = 1/c - beta at alpha + res is, res = da / c."""

    log_z: jax.Array
    da: jax.Array
    db: jax.Array
    c: jax.Array
    precision: jax.Array  # 1 / noise_n
    root: jax.Array  # res / sqrt(noise_n)
    score: Any = 0.0  # d log_z / dlog noise, of counts


def evidence(likelihood: Likelihood, y, alpha, beta, noise) -> Evidence:
    """`noise` is b/a, which the probit does not look at."""
    return EVIDENCE[check(likelihood, EVIDENCE, "the vectorized engine")](y, alpha, beta, noise)


def _gaussian(y, alpha, beta, noise) -> Evidence:
    s, r = beta + noise, y - alpha
    fit = r * r / s
    log_z = -0.5 * (_LOG_2PI + jnp.log(s) + fit)
    return Evidence(log_z, r / s, 0.5 * (fit - 1) / s, 1 / s, 1 / noise, r / jnp.sqrt(noise))


def _probit(y, alpha, beta, noise) -> Evidence:
    z, width = 2 * y - 1, 1 + beta
    t = z * alpha / jnp.sqrt(width)
    log_z, R, R_t = mills(t)
    # w = R(R+t) lies in (0, 1), so noise_n = (1 + beta (1-w)) / w > 1: proper for any t, any beta
    w = jnp.minimum(R * R_t, 1)
    precision = w / (1 + beta * (1 - w))
    root = z * jnp.sqrt(precision * width) / R_t
    return Evidence(log_z, z * R / jnp.sqrt(width), -0.5 * R * t / width, w / width, precision, root)


# --- by quadrature: section 17 --------------------------------------------------------------------


def by_quadrature(log_density: Callable[..., jax.Array], y, alpha, beta, noise) -> Evidence:
    """As likelihoods/quadrature.py, for any log_density(y, f, log noise), elementwise and concave in f."""
    y, alpha, beta, log_noise = jnp.broadcast_arrays(y, alpha, beta, jnp.log(noise))

    def derivatives(f):
        """l, l' and l''"""
        one = jnp.ones_like(f)
        value = lambda f: log_density(y, f, log_noise)  # noqa: E731
        slope = lambda f: jax.jvp(value, (f,), (one,))  # noqa: E731
        (density, first), (_, second) = jax.jvp(slope, (f,), (one,))
        return density, first, second

    def of_noise(f):
        return jax.jvp(lambda at: log_density(y, f, at), (log_noise,), (jnp.ones_like(f),))[1]

    centre, width = _mode(derivatives, alpha, beta)
    nodes = jnp.asarray(NODES, alpha.dtype)
    off = nodes.reshape(-1, *[1] * alpha.ndim) * width
    density, slope, bend = jax.vmap(derivatives)(centre + off)
    log_weights = jnp.asarray(LOG_WEIGHTS, alpha.dtype).reshape(-1, *[1] * alpha.ndim)
    level = log_weights + density - 0.5 * (centre + off - alpha) ** 2 / beta
    best = jnp.max(level, axis=0)
    p = jnp.exp(level - best)
    total = jnp.sum(p, axis=0)
    mean = lambda of: jnp.sum(p * of, axis=0) / total  # noqa: E731
    log_z = best + jnp.log(total * width / jnp.sqrt(beta))
    m_off, m_slope, m_bend = mean(off), mean(slope), mean(bend)
    var = mean((off - m_off) ** 2)  # of f, once the entry is known
    much = -m_bend * beta > 1
    da = jnp.where(much, (centre - alpha + m_off) / beta, m_slope)
    c = jnp.where(much, (beta - var) / beta**2, -m_bend - mean((slope - m_slope) ** 2))
    c = jnp.clip(c, 0, 1 / beta)
    precision = c * beta / var
    root = jnp.where(c > 0, da / jnp.where(c > 0, c, 1), 0) * jnp.sqrt(precision)
    return Evidence(
        log_z, da, 0.5 * (da * da - c), c, precision, root, mean(jax.vmap(of_noise)(centre + off))
    )


def _mode(derivatives, alpha, beta) -> tuple[jax.Array, jax.Array]:
    """Of the tilted density, and its width there: Newton's steps between bounds, else bisection."""

    def better(_, at):
        f, low, high = at
        _, slope, bend = derivatives(f)
        uphill = slope - (f - alpha) / beta
        low, high = jnp.where(uphill > 0, f, low), jnp.where(uphill > 0, high, f)
        new = f + uphill / (1 / beta - bend)
        return jnp.where((new >= low) & (new <= high), new, 0.5 * (low + high)), low, high

    end = alpha + beta * derivatives(alpha)[1]
    start = alpha, jnp.minimum(alpha, end), jnp.maximum(alpha, end)
    centre = lax.fori_loop(0, _STEPS, better, start)[0]
    return centre, 1 / jnp.sqrt(1 / beta - derivatives(centre)[2])


def _count_log_density(y, f, log_noise):
    """likelihoods/negative_binomial.py, as the log density of y under the mean y itself, by Stirling's
    series, and what f loses to that: float32 would lose all digits of differences of log Gammas."""
    r, some = jnp.exp(-log_noise), jnp.maximum(y, 1)
    best = jnp.log(some) + log_noise
    at_best = -0.5 * (_LOG_2PI + jnp.log(some) + softplus(best))
    at_best += _stirling_rest(some + r) - _stirling_rest(r) - _stirling_rest(some)
    t = f + log_noise
    loss = y * (softplus(-t) - softplus(-best)) + r * (softplus(t) - softplus(best))
    return jnp.where(y > 0, at_best - loss, -r * softplus(t))


def _stirling_rest(x):
    """log Gamma(x) - ((x - 1/2) log x - x + log(2 pi) / 2)"""
    small, large = jnp.minimum(x, _LARGE), jnp.maximum(x, _LARGE)
    exact = gammaln(small) - ((small - 0.5) * jnp.log(small) - small + 0.5 * _LOG_2PI)
    return jnp.where(x < _LARGE, exact, (1 - 1 / (30 * large**2)) / (12 * large))


def _count(y, alpha, beta, noise) -> Evidence:
    return by_quadrature(_count_log_density, y, alpha, beta, noise)


EVIDENCE: dict[Likelihood, Callable[..., Evidence]] = {GAUSSIAN: _gaussian, PROBIT: _probit, COUNT: _count}
