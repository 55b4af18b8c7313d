"""What an entry says about f: log evidence, its derivatives, and the noise. One file per likelihood.

mathematics.md section 3. With f ~ N(alpha, beta) before the entry and y its value,

    log_z = log ∫ p(y | f) N(f | alpha, beta) df,   da = d log_z / d alpha,   db = d log_z / d beta,
    c = da² - 2 db                                  how much the entry narrows f; always positive

To add a likelihood: write its file, its line in LIKELIHOODS and its branches in kernel.py; without closed
forms, put its log density into density.py, and quadrature.py does the rest. All other code asks a likelihood
what it can do (base.py), not which one it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from spidertensor.spider.likelihoods.base import Likelihood
from spidertensor.spider.likelihoods.count import COUNT
from spidertensor.spider.likelihoods.gaussian import GAUSSIAN
from spidertensor.spider.likelihoods.ordinal import ORDINAL
from spidertensor.spider.likelihoods.probit import PROBIT

__all__ = [
    "COUNT", "GAUSSIAN", "LIKELIHOODS", "OF_ENGINES", "ORDINAL", "PROBIT", "Likelihood", "check",
    "likelihood_by_name",
]  # fmt: skip

LIKELIHOODS: dict[str, Likelihood] = {each.name: each for each in (GAUSSIAN, PROBIT, COUNT)}
OF_ENGINES = (*LIKELIHOODS.values(), ORDINAL)  # stands for `ordinal` with any levels


def likelihood_by_name(name: str) -> Likelihood:
    """Look up a likelihood by its name."""
    try:
        return LIKELIHOODS[name]
    except (KeyError, TypeError):
        raise ValueError(f"unknown likelihood {name!r}: choose one of {', '.join(LIKELIHOODS)}") from None


def check(likelihood: Likelihood, handled: Iterable[Likelihood], who: str) -> Likelihood:
    """Return the likelihood if it is among those that `who` supports; else raise ValueError."""
    if not isinstance(likelihood, Likelihood):
        raise ValueError(
            f"{who} needs a likelihood object such as likelihoods.GAUSSIAN, got {likelihood!r}; "
            "likelihoods.likelihood_by_name finds it by name"
        )
    handled = list(handled)
    if not any(likelihood.code == each.code for each in handled):
        names = " and ".join(each.name for each in handled)
        raise ValueError(f"{who} does not support the {likelihood.name} likelihood, only {names}")
    return likelihood
