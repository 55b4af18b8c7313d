"""The only place where compiled kernels branch on the likelihood. Letters: mathematics.md section 3."""

from __future__ import annotations

from spidertensor.spider.compiled import COMPILE, PART, kernel
from spidertensor.spider.likelihoods import count, gaussian, negative_binomial, ordinal, probit
from spidertensor.spider.likelihoods.quadrature import by_quadrature

GAUSSIAN, PROBIT, COUNT, ORDINAL = gaussian.CODE, probit.CODE, negative_binomial.CODE, ordinal.CODE
_gaussian, _probit, _count = gaussian.evidence, probit.evidence, count.count_evidence
_clipped, _largest_learned = gaussian.clipped, count.largest_learned
_noise_of_counts, _learn_count_noise = count.noise_of_counts, count.learn_noise


@kernel(**COMPILE)
def evidence(likelihood, y, alpha, beta, noise):
    """log_z, da, db, c of one entry (see the package docstring); `noise` is b/a, unused by the probit."""
    if likelihood == GAUSSIAN:
        return _gaussian(y, alpha, beta, noise)
    if likelihood == PROBIT:
        return _probit(y, alpha, beta)
    if likelihood == COUNT:
        log_z, da, db, c, _ = by_quadrature(likelihood, y, alpha, beta, noise, None)
        return log_z, da, db, c
    raise ValueError("a likelihood without a branch in likelihoods/kernel.py")


@kernel(**PART)
def is_normal(likelihood):
    """`Likelihood.normal`."""
    return likelihood == GAUSSIAN


@kernel(**PART)
def learns_from_scores(likelihood):
    """Whether its noise is learned by `learn_noise`."""
    return likelihood == COUNT


@kernel(**PART)
def evidence_to_learn(likelihood, y, alpha, beta, noise, level, weight):
    """`evidence` as it is learned, and d log_z / dlog noise if the noise learns from it, else 0.

    level:  mean of the level of f that all entries share, if any
    weight: None, or the power of p(y | f): section 27. log_z is then of no use
    """
    if likelihood == COUNT:
        return _count(y, alpha, beta, noise, level, weight)
    if weight is not None:
        if likelihood == GAUSSIAN:
            log_z, da, db, c = _gaussian(y, alpha, beta, noise / weight)
            return log_z, da, db, c, 0.0
        return by_quadrature(likelihood, y, alpha, beta, noise, weight)
    log_z, da, db, c = evidence(likelihood, y, alpha, beta, noise)
    return log_z, da, db, c, 0.0


@kernel(**PART)
def clipped(likelihood, y, alpha, beta, noise, clip):
    """Value to learn in place of y (section 11)."""
    if likelihood == GAUSSIAN:
        return _clipped(y, alpha, beta, noise, clip)
    if likelihood == COUNT:
        return min(y, _largest_learned(alpha, beta, noise, clip))
    return y


@kernel(**PART)
def shared_noise(likelihood, noise):
    """`Likelihood.noise_var`: the part of the noise that all entries share."""
    if likelihood == GAUSSIAN:
        return noise.rate[()] / noise.shape[()]
    if likelihood == COUNT:
        return _noise_of_counts(noise)
    return 0.0


@kernel(**PART)
def learn_noise(likelihood, noise, score, forgetting, weight):
    """Update the noise from score = d log_z / dlog noise, for values that are not f plus noise."""
    if likelihood == COUNT:
        _learn_count_noise(noise, score, forgetting, weight)
