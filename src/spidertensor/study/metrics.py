"""How good predictions are: scores over arrays, one number or one curve each. Nothing here knows a model.

`mean` and `var` describe a Gaussian prediction of the value itself: for a continuous value `var` includes the
noise of an observation. Binary values are 0 or 1 and are scored by the probability of a 1. No entries, no
score: every number is NaN then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr, ndtri

LEVELS = np.linspace(0.05, 0.95, 19)  # at which a calibration curve is drawn
BINS = 15  # equal-width bins of probability: the usual expected calibration error (Guo et al. 2017)

Floats = NDArray[np.float64]


def rmse(value: ArrayLike, mean: ArrayLike) -> float:
    return float(np.sqrt(_average(_error(value, mean) ** 2)))


def mae(value: ArrayLike, mean: ArrayLike) -> float:
    return _average(np.abs(_error(value, mean)))


def auc(value: ArrayLike, score: ArrayLike) -> float:
    """The chance that a random 1 scores higher than a random 0, ties counting half. NaN with one class."""
    ones = _binary(value) == 1
    n_ones = int(ones.sum())
    n_zeros = len(ones) - n_ones
    if not n_ones or not n_zeros:
        return float("nan")
    _, place, counts = np.unique(_floats(score), return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # ties share their average rank
    return float((ranks[place[ones]].sum() - n_ones * (n_ones + 1) / 2) / n_ones / n_zeros)  # Mann-Whitney


def log_loss(value: ArrayLike, probability: ArrayLike) -> float:
    """Minus the mean log probability of what happened; probabilities kept off 0 and 1 by one float64 step."""
    value = _binary(value)
    eps = np.finfo(np.float64).eps
    of_one = np.clip(_probability(probability), eps, 1 - eps)
    return -_average(np.log(np.where(value == 1, of_one, 1 - of_one)))


def gaussian_log_density(value: ArrayLike, mean: ArrayLike, var: ArrayLike) -> float:
    """Mean log density of the values under N(mean, var), var with the noise in it."""
    var = _floats(var)
    return _average(-0.5 * (np.log(2 * np.pi * var) + _error(value, mean) ** 2 / var))


def bernoulli_log_density(value: ArrayLike, mean: ArrayLike, var: ArrayLike) -> float:
    """Mean log probability of the values under a probit with latent f ~ N(mean, var), exact in both tails."""
    sign = 2 * _binary(value) - 1
    return _average(log_ndtr(sign * _floats(mean) / np.sqrt(1 + _floats(var))))


def probit_probability(mean: ArrayLike, var: ArrayLike) -> Floats:
    """The probability of a 1 under a probit with latent f ~ N(mean, var)."""
    return ndtr(_floats(mean) / np.sqrt(1 + _floats(var)))


def coverage(value: ArrayLike, mean: ArrayLike, var: ArrayLike, level: float) -> float:
    """The share of values inside the central interval that should hold a share of `level`."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    distance = np.abs(_error(value, mean)) / np.sqrt(_floats(var))
    return _average(distance <= ndtri((1 + level) / 2))


def calibration_curve(
    value: ArrayLike, mean: ArrayLike, var: ArrayLike, levels: ArrayLike = LEVELS
) -> tuple[Floats, Floats]:
    """Nominal levels of central intervals, and the share of values inside each: equal if well calibrated."""
    levels = _floats(levels)
    return levels, np.array([coverage(value, mean, var, level) for level in levels])


def reliability_curve(
    value: ArrayLike, probability: ArrayLike, bins: int = BINS
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Mean probability, share of ones and number of entries in each equal-width bin that has entries.

    A probability on an edge belongs to the bin above it, 1 to the last bin.
    """
    value, probability = _binary(value), _probability(probability)
    inner_edges = np.linspace(0, 1, bins + 1)[1:-1]
    bin_of = np.searchsorted(inner_edges, probability, side="right")
    counts = np.bincount(bin_of, minlength=bins)
    full = counts > 0
    predicted = np.bincount(bin_of, probability, bins)[full] / counts[full]
    observed = np.bincount(bin_of, value, bins)[full] / counts[full]
    return predicted, observed, counts[full]


def calibration_error(value: ArrayLike, probability: ArrayLike, bins: int = BINS) -> float:
    """Expected calibration error: |share of ones - mean probability| of a bin, averaged over the entries.

    The bins have equal width, not equal counts: equal counts would cut through ties, and the prediction of a
    method that always says the same would depend on the order of the entries.
    """
    predicted, observed, counts = reliability_curve(value, probability, bins)
    if not len(counts):
        return float("nan")
    return float(np.average(np.abs(observed - predicted), weights=counts))


def _floats(array: ArrayLike) -> Floats:
    return np.asarray(array, dtype=np.float64)


def _error(value: ArrayLike, mean: ArrayLike) -> Floats:
    value, mean = _floats(value), _floats(mean)
    if value.shape != mean.shape:  # broadcasting would score something, and it would be wrong
        raise ValueError(f"{value.shape} values but {mean.shape} predictions")
    return value - mean


def _binary(value: ArrayLike) -> Floats:
    value = _floats(value)
    if not np.isin(value, (0, 1)).all():
        raise ValueError("binary values must be 0 or 1")
    return value


def _probability(probability: ArrayLike) -> Floats:
    probability = _floats(probability)
    if not ((probability >= 0) & (probability <= 1)).all():  # a NaN fails too
        raise ValueError("a probability must lie between 0 and 1")
    return probability


def _average(array: NDArray) -> float:
    return float(np.mean(array)) if len(array) else float("nan")
