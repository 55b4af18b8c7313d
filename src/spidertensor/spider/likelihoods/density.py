"""log p(y | f) and its derivatives, by likelihood: all that quadrature needs to know of one."""

from __future__ import annotations

import math

from spidertensor.spider.compiled import kernel
from spidertensor.spider.likelihoods import gaussian, negative_binomial, probit
from spidertensor.spider.likelihoods.negative_binomial import constants as _count_constants
from spidertensor.spider.likelihoods.negative_binomial import log_density as _count

GAUSSIAN, PROBIT, COUNT = gaussian.CODE, probit.CODE, negative_binomial.CODE
_mills = probit.mills
_LOG_2PI = math.log(2 * math.pi)


@kernel(cache=True, error_model="numpy")
def log_density(likelihood, y, f, noise):
    """l = log p(y | f), l', l'' and dl / dlog noise, all without what `constants` has."""
    if likelihood == GAUSSIAN:
        r = y - f
        return -0.5 * r * r / noise, r / noise, -1.0 / noise, 0.5 * r * r / noise
    if likelihood == PROBIT:
        z = 2.0 * y - 1.0
        log_cdf, ratio, ratio_plus_t = _mills(z * f)
        return log_cdf, z * ratio, -ratio * ratio_plus_t, 0.0
    if likelihood == COUNT:
        return _count(y, f, noise)
    raise ValueError("a likelihood without a branch in likelihoods/density.py")


@kernel(cache=True, error_model="numpy")
def constants(likelihood, y, noise):
    """The parts of l and of dl / dlog noise that f is not in: once per entry, not at every node."""
    if likelihood == GAUSSIAN:
        return -0.5 * (_LOG_2PI + math.log(noise)), -0.5
    if likelihood == COUNT:
        return _count_constants(y, noise)
    return 0.0, 0.0
