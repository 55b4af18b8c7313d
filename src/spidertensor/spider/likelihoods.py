"""What an entry says about f: log evidence, its derivatives, and the noise.

mathematics.md section 3. With f ~ N(alpha, beta) before the entry and y its value,

    log_z = log ∫ p(y | f) N(f | alpha, beta) df,   da = d log_z / d alpha,   db = d log_z / d beta,
    c = da² - 2 db                                  how much the entry narrows f; always positive
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.special import log_ndtr

LIKELIHOODS = ("gaussian", "probit")
GAUSSIAN, PROBIT = range(2)

_LOG_2PI = math.log(2 * math.pi)
_SQRT_HALF = math.sqrt(0.5)


@njit(cache=True)
def mills(t):
    """log Phi(t), R = phi(t) / Phi(t) and R + t, exact to about 1e-10 in both tails."""
    if t < -30.0:
        # Phi(t) = phi(t) D / |t| with the asymptotic series D; R + t without the cancellation
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


@njit(cache=True)
def evidence(likelihood, y, alpha, beta, noise):
    """log_z, da, db, c of one entry; `noise` is b/a and only the gaussian looks at it."""
    if likelihood == GAUSSIAN:
        s = beta + noise
        r = y - alpha
        log_z = -0.5 * (_LOG_2PI + math.log(s) + r * r / s)
        return log_z, r / s, 0.5 * (r * r / s - 1.0) / s, 1.0 / s
    z = 2.0 * y - 1.0
    width = 1.0 + beta
    t = z * alpha / math.sqrt(width)
    log_z, ratio, ratio_plus_t = mills(t)
    return log_z, z * ratio / math.sqrt(width), -0.5 * ratio * t / width, ratio * ratio_plus_t / width


@njit(cache=True)
def misfit(y, alpha, beta, noise, paper):
    """What an entry adds to 2b of the noise's Gamma(a, b): the expected (y - f)².

    The paper takes f ~ N(alpha, beta) from before the entry. But (y - alpha)² is
    noise + beta on average already, so beta is counted twice and intervals come out too wide. Otherwise f is
    taken after the entry was learned, which gives exactly `noise` on average where the model is right.
    """
    if paper:
        return (y - alpha) ** 2 + beta
    kept = noise / (beta + noise)  # of the residual and of beta
    return (kept * (y - alpha)) ** 2 + kept * beta


def forgetting(noise_memory: float | None) -> float:
    """lam of the noise update a = lam a + 1/2, b = lam b + misfit/2; None is the paper's noise (trap 9)."""
    if noise_memory is None:
        return 1.0
    if not 1 < noise_memory < 1e15:  # beyond, 1 - 1/noise_memory would round to 1
        raise ValueError(f"noise_memory counts entries, more than 1 and less than 1e15, got {noise_memory}")
    return 1.0 - 1.0 / noise_memory


def code(likelihood: str) -> int:
    if likelihood not in LIKELIHOODS:
        raise ValueError(f"unknown likelihood {likelihood!r}: choose one of {', '.join(LIKELIHOODS)}")
    return LIKELIHOODS.index(likelihood)


def log_evidence(likelihood: str, value, mean, var, noise) -> NDArray[np.float64]:
    """log_z of many entries at once. Of an absurd value it may be infinite or NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        if likelihood == "probit":
            return log_ndtr((2 * value - 1) * mean / np.sqrt(1 + var))
        total = var + noise
        return -0.5 * (_LOG_2PI + np.log(total) + (value - mean) ** 2 / total)


def noise_var(likelihood: str, shape: np.ndarray, rate: np.ndarray) -> float:
    """What an observation adds to the variance of f: E[1/tau] as b/a; probit has its noise inside Phi."""
    return float(rate) / float(shape) if likelihood == "gaussian" else 0.0
