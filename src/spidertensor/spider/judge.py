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

ROUNDS, STILL = 1_000, 1e-5  # of expectation maximisation at most; until no weight moves by more
LARGEST_SQUARE = 16.0  # of a residual in standard deviations, so that outliers do not set the noise


class Verdict(NamedTuple):
    weights: NDArray[np.float64]  # (M,) that the mixture should have
    noise: NDArray[np.float64]  # (M,) factors on the noise of the members
    mixture: Prediction  # of the slice, with these
    log_score: float  # mean log evidence of the mixture; for events, of each among its negatives


def judged(likelihood: Likelihood, predictions: Sequence[Prediction], value: NDArray[np.float64]) -> Verdict:
    """predictions: by each member, of the slice with these values"""
    factors = np.ones(len(predictions))
    if likelihood.normal:
        for m, (mean, var, noise) in enumerate(predictions):
            factors[m] = np.minimum((value - mean) ** 2 / (var + noise), LARGEST_SQUARE).mean()
    parts = [each._replace(noise=each.noise * f) for each, f in zip(predictions, factors, strict=True)]
    weights, log_score = stacked(np.array([likelihood.log_evidence(value, *part) for part in parts]))
    return Verdict(weights, factors, mixed(likelihood, weights[:, None], parts), log_score)


def judged_events(
    likelihood: Likelihood, predictions: Sequence[Prediction], value: NDArray[np.float64]
) -> Verdict:
    """The same for events, each followed by its negatives: by how probable each event is among these.

    That is what ranks. By the log score of single entries a member that ranks badly has nearly the weight of
    one that ranks well.
    """
    first, log_p, one = np.flatnonzero(value == 1), [], np.ones(len(value))
    for each in predictions:
        log_odds = likelihood.log_evidence(one, *each) - likelihood.log_evidence(0 * one, *each)
        log_p.append(log_odds[first] - np.logaddexp.reduceat(log_odds, first))
    weights, log_score = stacked(np.array(log_p))
    mixture = mixed(likelihood, weights[:, None], predictions)
    return Verdict(weights, np.ones(len(weights)), mixture, log_score)


def stacked(log_p: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """(M,) weights with the best mean log score of a mixture, and that score. log_p (M, n): by each member"""
    good = np.isfinite(log_p).all(axis=0)
    weights = np.full(len(log_p), 1 / len(log_p))
    if not good.any():  # values that are absurd to all members
        return weights, -math.inf
    best = log_p[:, good].max(axis=0)
    p = np.exp(log_p[:, good] - best)
    for _ in range(ROUNDS):
        shares, before = weights[:, None] * p, weights
        weights = (shares / shares.sum(axis=0)).mean(axis=1)
        weights = np.maximum(weights, LEAST_WEIGHT)
        weights /= weights.sum()
        if np.abs(weights - before).max() <= STILL:
            break
    return weights, float((np.log(weights @ p) + best).mean())


def calibrated(likelihood: Likelihood, mixture: Prediction, value: NDArray[np.float64]) -> Histogram:
    """The histogram of residuals for intervals, as if that many had been noted one by one."""
    residual = np.clip(likelihood.residual(value, mixture), -OUTER, OUTER)
    mass = calibration.start().mass + np.histogram(residual, EDGES)[0]
    return Histogram(mass * min(1.0, MEMORY_ENTRIES / mass.sum()))
