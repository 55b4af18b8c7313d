"""The one place where a compiled kernel asks which likelihood it has."""

from __future__ import annotations

from spidertensor.spider.compiled import kernel
from spidertensor.spider.likelihoods import gaussian, probit

GAUSSIAN, PROBIT = gaussian.CODE, probit.CODE
_gaussian, _probit = gaussian.evidence, probit.evidence


@kernel(cache=True)
def evidence(likelihood, y, alpha, beta, noise):
    """log_z, da, db, c of one entry (see the package); `noise` is b/a and only the gaussian looks at it."""
    if likelihood == GAUSSIAN:
        return _gaussian(y, alpha, beta, noise)
    if likelihood == PROBIT:
        return _probit(y, alpha, beta)
    raise ValueError("a likelihood without a branch in likelihoods/kernel.py")
