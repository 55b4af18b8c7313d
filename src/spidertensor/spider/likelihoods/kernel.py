"""The one place where a compiled kernel asks which likelihood it has."""

from __future__ import annotations

from spidertensor.spider.compiled import kernel
from spidertensor.spider.likelihoods import gaussian, negative_binomial, probit
from spidertensor.spider.likelihoods.quadrature import by_quadrature

GAUSSIAN, PROBIT, COUNT = gaussian.CODE, probit.CODE, negative_binomial.CODE
_gaussian, _probit = gaussian.evidence, probit.evidence


@kernel(cache=True)
def evidence(likelihood, y, alpha, beta, noise):
    """log_z, da, db, c of one entry (see the package); `noise` is b/a, which the probit does not look at."""
    if likelihood == GAUSSIAN:
        return _gaussian(y, alpha, beta, noise)
    if likelihood == PROBIT:
        return _probit(y, alpha, beta)
    if likelihood == COUNT:
        log_z, da, db, c, _ = by_quadrature(likelihood, y, alpha, beta, noise)
        return log_z, da, db, c
    raise ValueError("a likelihood without a branch in likelihoods/kernel.py")
