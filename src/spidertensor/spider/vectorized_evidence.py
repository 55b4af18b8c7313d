"""What an entry says about f, in JAX: log evidence and its derivatives. mathematics.md section 3."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import erfc

from spidertensor.spider.likelihoods import GAUSSIAN, PROBIT, Likelihood, check

_LOG_2PI = math.log(2 * math.pi)


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


def evidence(likelihood: Likelihood, y, alpha, beta, noise) -> Evidence:
    """`noise` is b/a, and only the gaussian looks at it."""
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


EVIDENCE: dict[Likelihood, Callable[..., Evidence]] = {GAUSSIAN: _gaussian, PROBIT: _probit}
