"""Continuous values: y = f + noise, noise precision ~ Gamma(a, b). mathematics.md section 3."""

from __future__ import annotations

import math

import numpy as np

from spidertensor.method import Prediction
from spidertensor.spider.compiled import COMPILE, PART, kernel
from spidertensor.spider.likelihoods.base import Evidence, Likelihood

CODE = 0
_LOG_2PI = math.log(2 * math.pi)


class Gaussian(Likelihood):
    name, code = "gaussian", CODE
    allowed, scaled, intervals = "finite", True, True
    normal_noise, normal, clips, ranked_by_mean = True, True, True, True
    metric = "rmse"
    metrics = (
        "mae", "log_density", "coverage_50", "coverage_80", "coverage_90", "coverage_95", "coverage_99",
    )  # fmt: skip

    def allows(self, value):
        return np.isfinite(value)

    def allows_one(self, value):
        return math.isfinite(value)  # several times as fast as NumPy for a float

    def log_evidence(self, value, mean, var, noise):
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.asarray(var, np.float64) + np.asarray(noise, np.float64)
            return -0.5 * (
                _LOG_2PI
                + np.log(total)
                + (np.asarray(value, np.float64) - np.asarray(mean, np.float64)) ** 2 / total
            )

    def noise_var(self, shape, rate):
        return float(np.asarray(rate)) / float(np.asarray(shape))  # E[1/tau], taken as b/a

    def expected(self, mean, var, noise=0.0):
        return np.asarray(mean, np.float64)

    def from_moments(self, n, total, squares, origin):
        average = total / np.maximum(n, 1)
        spread = np.maximum(squares - total * average, 0.0)  # rounding may make it slightly negative
        noise = (spread + 1) / (n + 1)
        # the origin is the first value, which must not be used before it was learned
        return Prediction(np.where(n > 0, origin + average, 0.0), noise / (n + 1), noise)

    def jax_evidence(self, y, alpha, beta, noise, level, weight=None):
        import jax.numpy as jnp

        s, r = beta + noise, y - alpha
        fit = r * r / s
        log_z = -0.5 * (_LOG_2PI + jnp.log(s) + fit)
        return Evidence(log_z, r / s, 0.5 * (fit - 1) / s, 1 / s, 1 / noise, r / jnp.sqrt(noise))

    def jax_noise_var(self, shape, rate):
        return rate / shape

    def jax_clipped(self, value, alpha, beta, noise, clip):
        import jax.numpy as jnp

        bound = clip * jnp.sqrt(beta + noise)
        return jnp.clip(value, alpha - bound, alpha + bound)  # NaN stays NaN


GAUSSIAN = Gaussian()


@kernel(**COMPILE)
def evidence(y, alpha, beta, noise):
    s = beta + noise
    r = y - alpha
    log_z = -0.5 * (_LOG_2PI + math.log(s) + r * r / s)
    return log_z, r / s, 0.5 * (r * r / s - 1.0) / s, 1.0 / s


@kernel(**COMPILE)
def log_density(y, f, noise):
    """l = log p(y | f), l', l'' and dl / dlog noise, without the terms in `constants`."""
    r = y - f
    return -0.5 * r * r / noise, r / noise, -1.0 / noise, 0.5 * r * r / noise


@kernel(**COMPILE)
def constants(noise):
    return -0.5 * (_LOG_2PI + math.log(noise)), -0.5


@kernel(**PART)
def clipped(y, alpha, beta, noise, clip):
    bound = clip * math.sqrt(beta + noise)
    return min(max(y, alpha - bound), alpha + bound)


@kernel(**COMPILE)
def misfit(y, alpha, beta, noise, paper):
    """The expected (y - f)², which an entry adds to 2b of the noise's Gamma(a, b): trap 10.

    The paper takes f ~ N(alpha, beta) from before the entry. But (y - alpha)² is already noise + beta on
    average, so beta counts twice and intervals come out too wide. Otherwise f is taken after the entry was
    learned, which gives exactly `noise` on average if the model is right.
    """
    if paper:
        return (y - alpha) ** 2 + beta
    kept = noise / (beta + noise)  # share of the residual and of beta that remains
    return (kept * (y - alpha)) ** 2 + kept * beta


def forgetting(noise_memory: float | None) -> float:
    """lam of the noise update a = lam a + 1/2, b = lam b + misfit/2; None: the paper's lam = 1 (trap 9)."""
    if noise_memory is None:
        return 1.0
    if not 1 < noise_memory < 1e15:  # beyond, 1 - 1/noise_memory would round to 1
        raise ValueError(f"noise_memory must be more than 1 and less than 1e15 entries, got {noise_memory}")
    return 1.0 - 1.0 / noise_memory
