"""What an entry says about f: log evidence, its derivatives, and the noise. One file for each likelihood.

mathematics.md section 3. With f ~ N(alpha, beta) before the entry and y its value,

    log_z = log ∫ p(y | f) N(f | alpha, beta) df,   da = d log_z / d alpha,   db = d log_z / d beta,
    c = da² - 2 db                                  how much the entry narrows f; always positive

A new likelihood: its file, its line in LIKELIHOODS, its branch in kernel.py.
"""

from __future__ import annotations

from spidertensor.spider.likelihoods.base import Likelihood
from spidertensor.spider.likelihoods.gaussian import GAUSSIAN
from spidertensor.spider.likelihoods.probit import PROBIT

__all__ = ["GAUSSIAN", "LIKELIHOODS", "PROBIT", "Likelihood", "named"]

LIKELIHOODS: dict[str, Likelihood] = {each.name: each for each in (GAUSSIAN, PROBIT)}


def named(name: str) -> Likelihood:
    try:
        return LIKELIHOODS[name]
    except (KeyError, TypeError):
        raise ValueError(f"unknown likelihood {name!r}: choose one of {', '.join(LIKELIHOODS)}") from None


# Functions of a name, until every caller has the object.


def code(name: str) -> int:
    return named(name).code


def log_evidence(name: str, value, mean, var, noise):
    return named(name).log_evidence(value, mean, var, noise)


def noise_var(name: str, shape, rate) -> float:
    return named(name).noise_var(shape, rate)
