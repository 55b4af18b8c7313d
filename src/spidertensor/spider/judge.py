"""What a slice of the history that was held back says about a committee: mathematics.md section 20.

The members predict the slice without having learned it, as models that rest do. Their weights, one factor on
the noise of each, and the calibration of intervals come from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Prediction
from spidertensor.spider import calibration
from spidertensor.spider.calibration import EDGES, MEMORY_ENTRIES, OUTER, Histogram
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.stacking import LEAST_WEIGHT, mixed

ROUNDS = 100  # of expectation maximisation; the weights stand still long before
LARGEST_SQUARE = 16.0  # of a residual in standard deviations, so that outliers do not set the noise


class Verdict(NamedTuple):
    weights: NDArray[np.float64]  # (M,) that the mixture should have
    noise: NDArray[np.float64]  # (M,) factors on the noise of the members
    mixture: Prediction  # of the slice, with these
    log_score: float  # mean log evidence of the mixture


def judged(likelihood: Likelihood, predictions: Sequence[Prediction], value: NDArray[np.float64]) -> Verdict:
    """predictions: by each member, of the slice with these values"""
    factors = np.ones(len(predictions))
    if likelihood.normal:
        for m, (mean, var, noise) in enumerate(predictions):
            factors[m] = np.minimum((value - mean) ** 2 / (var + noise), LARGEST_SQUARE).mean()
    parts = [each._replace(noise=each.noise * f) for each, f in zip(predictions, factors, strict=True)]
    log_p = np.array([likelihood.log_evidence(value, *part) for part in parts])
    good = np.isfinite(log_p).all(axis=0)
    weights = np.full(len(parts), 1 / len(parts))
    if not good.any():  # values that are absurd to all members
        return Verdict(weights, factors, mixed(likelihood, weights[:, None], parts), -math.inf)
    best = log_p[:, good].max(axis=0)
    p = np.exp(log_p[:, good] - best)
    for _ in range(ROUNDS):
        shares = weights[:, None] * p
        weights = (shares / shares.sum(axis=0)).mean(axis=1)
        weights = np.maximum(weights, LEAST_WEIGHT)
        weights /= weights.sum()
    log_score = float((np.log(weights @ p) + best).mean())
    return Verdict(weights, factors, mixed(likelihood, weights[:, None], parts), log_score)


def calibrated(likelihood: Likelihood, mixture: Prediction, value: NDArray[np.float64]) -> Histogram:
    """The histogram of residuals for intervals, as if that many had been noted one by one."""
    residual = np.clip(likelihood.residual(value, mixture), -OUTER, OUTER)
    mass = calibration.start().mass + np.histogram(residual, EDGES)[0]
    return Histogram(mass * min(1.0, MEMORY_ENTRIES / mass.sum()))
