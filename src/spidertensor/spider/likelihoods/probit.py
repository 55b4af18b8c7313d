"""Binary values: P(y = 1) = Phi(f); the noise is inside Phi. mathematics.md section 3."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from spidertensor.spider.compiled import kernel
from spidertensor.spider.likelihoods.base import Likelihood, weighted

CODE = 1
_LOG_2PI = math.log(2 * math.pi)
_SMALLEST = 1e-300  # of a probability
_SQRT_HALF = math.sqrt(0.5)
_SIDES = np.array([[1.0], [-1.0]])  # of a 1, of a 0


class Probit(Likelihood):
    name, code = "probit", CODE
    allowed, scaled, intervals = "0 or 1", False, False
    metric, metrics = "auc", ("log_density", "log_loss", "calibration_error")
    mean_name, std_name = "probability", "std_of_f"

    def allows(self, value):
        return (value == 0) | (value == 1)

    def log_evidence(self, value, mean, var, noise):
        with np.errstate(over="ignore", invalid="ignore"):
            return log_ndtr((2 * np.asarray(value, np.float64) - 1) * _t(mean, var))

    def noise_var(self, shape, rate):
        return 0.0

    def expected(self, mean, var):
        return ndtr(_t(mean, var))

    def mixture(self, weights, parts):
        """The mean is such that the probability of a 1 is exactly that of the mixture (section 14)."""
        moments = super().mixture(weights, parts)
        parts = np.asarray(parts)
        t = _t(parts[:, :1], parts[:, 1:2])
        one, zero = weighted(weights[:, None], ndtr(_SIDES * t))
        # By the smaller of the two, which has all its digits. Below _SMALLEST neither has any.
        t = np.where(one < zero, 1.0, -1.0) * ndtri(np.maximum(np.minimum(one, zero), _SMALLEST))
        return moments._replace(mean=t * np.sqrt(1 + moments.var))


PROBIT = Probit()


def _t(mean, var):
    return np.asarray(mean, np.float64) / np.sqrt(1 + np.asarray(var, np.float64))


@kernel(cache=True)
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


@kernel(cache=True)
def evidence(y, alpha, beta):
    z = 2.0 * y - 1.0
    width = 1.0 + beta
    t = z * alpha / math.sqrt(width)
    log_z, ratio, ratio_plus_t = mills(t)
    return log_z, z * ratio / math.sqrt(width), -0.5 * ratio * t / width, ratio * ratio_plus_t / width
