"""Binary values: P(y = 1) = Phi(f); the noise is inside Phi. mathematics.md section 3."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from spidertensor.method import Prediction
from spidertensor.spider.compiled import COMPILE, PART, kernel
from spidertensor.spider.likelihoods.base import RATE_VAR, Evidence, Likelihood
from spidertensor.spider.likelihoods.mixture import moments

CODE = 1
_LOG_2PI = math.log(2 * math.pi)
_SMALLEST = 1e-300  # lower bound of a probability
_SQRT_HALF = math.sqrt(0.5)


@kernel(**COMPILE | {"fastmath": False})  # for the same reason as `moments`
def mix(weights, parts, out):
    """`moments`, with the mean chosen so that the probability of a 1 is the mixture's: section 14."""
    moments(weights, parts, out)
    members, n = parts.shape[0], parts.shape[2]
    if members == 1:
        return
    for i in range(n):
        w = min(i, weights.shape[1] - 1)
        one, zero = 0.0, 0.0
        for m in range(members):
            t = parts[m, 0, i] / math.sqrt(1 + parts[m, 1, i])
            less = 0.5 * math.erfc(abs(t) * _SQRT_HALF)
            one += weights[m, w] * (less if t < 0 else 1 - less)
            zero += weights[m, w] * (1 - less if t < 0 else less)
        # By the smaller of the two, which has all its digits; below _SMALLEST it has none.
        t = normal_quantile(max(min(one, zero), _SMALLEST))
        out[0, i] = (t if one < zero else -t) * math.sqrt(1 + out[1, i])


@kernel(**PART | {"fastmath": False})
def normal_quantile(p):
    """t with Phi(t) = p, for p <= 1/2."""
    x = math.sqrt(-2 * math.log(p))
    # Abramowitz and Stegun 26.2.23, error below 4.5e-4; each Halley step cubes the error
    t = (2.515517 + x * (0.802853 + x * 0.010328)) / (1 + x * (1.432788 + x * (0.189269 + x * 0.001308))) - x
    for _ in range(2):
        off = (0.5 * math.erfc(-t * _SQRT_HALF) - p) * math.exp(0.5 * t * t + 0.5 * _LOG_2PI)
        t -= off / (1 + 0.5 * t * off)
    return t


class Probit(Likelihood):
    name, code = "probit", CODE
    allowed, scaled, intervals = "0 or 1", False, False
    binary = True
    metric, metrics = "auc", ("log_density", "log_loss", "calibration_error")
    mean_name, std_name = "probability", "std_of_f"
    mix = staticmethod(mix)

    def allows(self, value):
        return (value == 0) | (value == 1)

    def allows_one(self, value):
        return value == 0 or value == 1

    def log_evidence(self, value, mean, var, noise):
        with np.errstate(over="ignore", invalid="ignore"):
            return log_ndtr((2 * np.asarray(value, np.float64) - 1) * _t(mean, var))

    def noise_var(self, shape, rate):
        return 0.0

    def expected(self, mean, var, noise=0.0):
        return ndtr(_t(mean, var))

    def from_moments(self, n, total, squares, origin):
        ones = total + n * origin
        f = ndtri((ones + 1) / (n + 2)) * np.sqrt(1 + RATE_VAR)
        return Prediction(f, np.full(len(f), RATE_VAR), np.zeros(len(f)))

    def jax_evidence(self, y, alpha, beta, noise, level, weight=None):
        import jax.numpy as jnp

        if weight is not None:
            from spidertensor.spider.likelihoods.jax_quadrature import by_quadrature

            density = lambda y, f, _: jax_mills((2 * y - 1) * f)[0]  # noqa: E731
            return by_quadrature(density, y, alpha, beta, jnp.ones_like(alpha), weight)
        z, width = 2 * y - 1, 1 + beta
        t = z * alpha / jnp.sqrt(width)
        log_z, R, R_t = jax_mills(t)
        # w = R(R+t) lies in (0, 1), so noise_n = (1 + beta (1-w)) / w > 1: proper for any t, any beta
        w = jnp.minimum(R * R_t, 1)
        precision = w / (1 + beta * (1 - w))
        root = z * jnp.sqrt(precision * width) / R_t
        return Evidence(log_z, z * R / jnp.sqrt(width), -0.5 * R * t / width, w / width, precision, root)

    def jax_noise_var(self, shape, rate):
        import jax.numpy as jnp

        return jnp.zeros_like(rate)


PROBIT = Probit()


def _t(mean, var):
    return np.asarray(mean, np.float64) / np.sqrt(1 + np.asarray(var, np.float64))


@kernel(**COMPILE)
def mills(t):
    """log Phi(t), R = phi(t) / Phi(t) and R + t, exact to about 1e-10 in both tails: sections 3 and 7."""
    if t < -30.0:
        # Phi(t) = phi(t) D / |t| with the asymptotic series D; R + t without cancellation
        u = 1.0 / (t * t)
        rest = u * (1 - 3 * u * (1 - 5 * u * (1 - 7 * u * (1 - 9 * u * (1 - 11 * u)))))  # 1 - D
        ratio = -t / (1.0 - rest)
        log_cdf = -0.5 * t * t - 0.5 * _LOG_2PI - math.log(ratio)
        return log_cdf, ratio, ratio * rest
    upper = 0.5 * math.erfc(t * _SQRT_HALF)  # 1 - Phi(t)
    lower = 0.5 * math.erfc(-t * _SQRT_HALF)  # Phi(t)
    log_cdf = math.log1p(-upper) if t > 0 else math.log(lower)
    ratio = math.exp(-0.5 * t * t - 0.5 * _LOG_2PI) / lower
    return log_cdf, ratio, ratio + t


@kernel(**COMPILE)
def evidence(y, alpha, beta):
    z = 2.0 * y - 1.0
    width = 1.0 + beta
    t = z * alpha / math.sqrt(width)
    log_z, ratio, ratio_plus_t = mills(t)
    return log_z, z * ratio / math.sqrt(width), -0.5 * ratio * t / width, ratio * ratio_plus_t / width


@kernel(**COMPILE)
def log_density(y, f):
    """l = log p(y | f), l', l'' and dl / dlog noise."""
    z = 2.0 * y - 1.0
    log_cdf, ratio, ratio_plus_t = mills(z * f)
    return log_cdf, z * ratio, -ratio * ratio_plus_t, 0.0


def jax_mills(t):
    """`mills` for JAX arrays: accurate in both tails in float32 too; R and R + t positive for finite t."""
    import jax.numpy as jnp
    from jax.scipy.special import erfc

    # t < -2: R + t = 1/(x + 2/(x + 3/(x + ...))) with x = -t: no cancellation
    x = jnp.maximum(-t, 2)
    rest = jnp.zeros_like(t)
    for term in range(40, 0, -1):
        rest = term / (x + rest)
    # elsewhere by the definitions
    near = jnp.maximum(t, -2)
    upper, lower = 0.5 * erfc(near * _SQRT_HALF), 0.5 * erfc(-near * _SQRT_HALF)
    log_cdf = jnp.where(near > 0, jnp.log1p(-upper), jnp.log(lower))
    ratio = jnp.exp(-0.5 * near * near - 0.5 * _LOG_2PI) / lower
    tail = t < -2
    return (
        jnp.where(tail, -0.5 * t * t - 0.5 * _LOG_2PI - jnp.log(x + rest), log_cdf),
        jnp.where(tail, x + rest, ratio),
        jnp.where(tail, rest, ratio + near),
    )
