"""log p(y | f) and its derivatives for each likelihood, for quadrature: mathematics.md section 17."""

from __future__ import annotations

from spidertensor.spider.compiled import COMPILE, kernel
from spidertensor.spider.likelihoods import gaussian, negative_binomial, probit

GAUSSIAN, PROBIT, COUNT = gaussian.CODE, probit.CODE, negative_binomial.CODE
_gaussian, _probit, _count = gaussian.log_density, probit.log_density, negative_binomial.log_density
_gaussian_constants, _count_constants = gaussian.constants, negative_binomial.constants


@kernel(**COMPILE)
def log_density(likelihood, y, f, noise):
    """l = log p(y | f), l', l'' and dl / dlog noise, without the terms in `constants`."""
    if likelihood == GAUSSIAN:
        return _gaussian(y, f, noise)
    if likelihood == PROBIT:
        return _probit(y, f)
    if likelihood == COUNT:
        return _count(y, f, noise)
    raise ValueError("a likelihood without a branch in likelihoods/density.py")


@kernel(**COMPILE)
def constants(likelihood, y, noise):
    """Terms of l and of dl / dlog noise without f: computed once per entry, not at every node."""
    if likelihood == GAUSSIAN:
        return _gaussian_constants(noise)
    if likelihood == COUNT:
        return _count_constants(y, noise)
    return 0.0, 0.0
