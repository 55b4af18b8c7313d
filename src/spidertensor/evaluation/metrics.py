"""How good predictions are: scores over arrays, one number or one curve each. Nothing here knows a model.

METRICS and CURVES hold all of them by name, as functions of values, predictions and their likelihood. A
likelihood says by name which of them it is scored by. The functions before them take plain arrays: `mean` and
`var` describe a Gaussian prediction of the value itself, so for a continuous value `var` includes the noise
of an observation. Binary values are 0 or 1 and are scored by the probability of a 1. Without entries every
score is NaN.

Not scikit-learn's, though tests compare with them: these raise without entries, take 2 to 60 times as long
and a second to import, and scikit-learn's reliability curve does not count the entries of its bins.

An interval is plain if its ends are quantiles of the normal distribution. Those of a method that calibrates
are quantiles of its own (`Method.quantile`), or are known by what it said lay below a value (`Update.below`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from spidertensor.method import Prediction
from spidertensor.spider.likelihoods import Likelihood

LEVELS = np.linspace(0.05, 0.95, 19)  # at which a calibration curve is drawn
PERCENTS = (50, 80, 90, 95, 99)  # of the intervals whose coverage is a score
WINDOW = 5_000  # entries of a stretch that is looked at by itself
BINS = 15  # equal-width bins of probability: the usual expected calibration error (Guo et al. 2017)

Floats = NDArray[np.float64]
Quantile = Callable[[float], float]  # of the residual in standard deviations, by its probability
Inside = Callable[[float], NDArray[np.bool_]]  # level -> (n,) which values are in their central intervals


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


def log_density(value: ArrayLike, prediction: Prediction, likelihood: Likelihood) -> float:
    """Mean log predictive density of the values, or log probability where they are binary."""
    value, mean = _same_shape(value, prediction.mean)
    return _average(likelihood.log_evidence(value, mean, prediction.var, prediction.noise))


def inside(
    value: ArrayLike, mean: ArrayLike, var: ArrayLike, level: float, quantile: Quantile = ndtri
) -> NDArray[np.bool_]:
    """(n,) which values are in the central interval that should hold a share of `level` of them."""
    _check_level(level)
    residual = _error(value, mean) / np.sqrt(_floats(var))
    return (residual >= quantile((1 - level) / 2)) & (residual <= quantile((1 + level) / 2))


def inside_by_below(below: ArrayLike, level: float) -> NDArray[np.bool_]:
    """The same, from how much of its predictive distribution lay below each value.

    That is NaN where a method refused the value as absurd: outside, as such a value is of any interval.
    """
    _check_level(level)
    return np.abs(_floats(below) - 0.5) <= level / 2


def coverage(
    value: ArrayLike, mean: ArrayLike, var: ArrayLike, level: float, quantile: Quantile = ndtri
) -> float:
    """The share of values inside the central interval that should hold a share of `level`."""
    return _average(inside(value, mean, var, level, quantile))


def lowest_and_highest(covered: NDArray[np.bool_], window: int = WINDOW) -> tuple[float, float] | None:
    """The worst stretches: least and greatest share covered among all windows of so many entries in a row.

    All of them, wherever they begin: a bad stretch cannot hide by lying across the border of two. None if
    there are fewer entries.
    """
    if len(covered) < window:
        return None
    so_far = np.concatenate([[0], np.cumsum(covered)])
    shares = (so_far[window:] - so_far[:-window]) / window
    return float(shares.min()), float(shares.max())


def calibration_curve(intervals: Inside, levels: ArrayLike = LEVELS) -> tuple[Floats, Floats]:
    """Nominal levels of central intervals, and the share of values inside each: equal if well calibrated."""
    levels = _floats(levels)
    return levels, np.array([_average(intervals(level)) for level in levels])


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


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")


def _floats(array: ArrayLike) -> Floats:
    return np.asarray(array, dtype=np.float64)


def _error(value: ArrayLike, mean: ArrayLike) -> Floats:
    value, mean = _same_shape(value, mean)
    return value - mean


def _same_shape(value: ArrayLike, mean: ArrayLike) -> tuple[Floats, Floats]:
    value, mean = _floats(value), _floats(mean)
    if value.shape != mean.shape:  # NumPy would broadcast them, and the score would be wrong
        raise ValueError(f"{value.shape} values but {mean.shape} predictions")
    return value, mean


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


# --- by name --------------------------------------------------------------------------------------


class Metric(NamedTuple):
    """A score of predictions.

    label:            in figures and headings
    of:               value, prediction, likelihood -> the score
    higher_is_better: if not, lower is, unless there is a target
    target:           the best score there can be, on either side of which it is worse
    caption:          of its table in a report; none without it
    """

    label: str
    of: Callable[[Floats, Prediction, Likelihood], float]
    higher_is_better: bool = False
    target: float | None = None
    caption: str = ""

    def loss(self, score: float) -> float:
        """Lower is better."""
        if self.target is not None:
            return abs(score - self.target)
        return -score if self.higher_is_better else score


def _rmse(value: Floats, prediction: Prediction, likelihood: Likelihood) -> float:
    return rmse(value, likelihood.expected(prediction.mean, prediction.var))


def _mae(value: Floats, prediction: Prediction, likelihood: Likelihood) -> float:
    return mae(value, likelihood.expected(prediction.mean, prediction.var))


def _auc(value: Floats, prediction: Prediction, likelihood: Likelihood) -> float:
    # the rank of a probability, but Phi itself would make ties of everything beyond 8
    return auc(value, prediction.mean / np.sqrt(1 + prediction.var))


def _log_loss(value: Floats, prediction: Prediction, likelihood: Likelihood) -> float:
    return log_loss(value, likelihood.expected(prediction.mean, prediction.var))


def _calibration_error(value: Floats, prediction: Prediction, likelihood: Likelihood) -> float:
    return calibration_error(value, likelihood.expected(prediction.mean, prediction.var))


def _coverage(level: float, value: Floats, prediction: Prediction, likelihood: Likelihood) -> float:
    return _average(plain_intervals(value, prediction, likelihood)(level))


def plain_intervals(
    value: Floats, prediction: Prediction, likelihood: Likelihood, quantile: Quantile = ndtri
) -> Inside:
    """Whether values are in the intervals whose ends are at quantiles of their residuals. Of counts, drawn
    inside their steps: an interval of whole numbers holds a little more."""
    residual = likelihood.residual(value, prediction)
    return partial(inside, residual, np.zeros(len(residual)), np.ones(len(residual)), quantile=quantile)


METRICS: dict[str, Metric] = {
    "rmse": Metric("RMSE", _rmse),
    "auc": Metric("AUC", _auc, higher_is_better=True),
    "mae": Metric("MAE", _mae),
    "log_density": Metric(
        "log density",
        log_density,
        higher_is_better=True,
        caption="Mean log predictive density, higher is better",
    ),
    **{
        f"coverage_{percent}": Metric(
            f"coverage of {percent} % intervals", partial(_coverage, percent / 100), target=percent / 100
        )
        for percent in PERCENTS
    },
    "log_loss": Metric("log loss", _log_loss),
    "calibration_error": Metric(
        "calibration error",
        _calibration_error,
        caption="Calibration error of the probabilities, lower is better",
    ),
}


class Curve(NamedTuple):
    """A calibration curve: pairs of a predicted and an observed share, equal if well calibrated."""

    what: str  # is calibrated
    of: Callable[[Floats, Prediction, Likelihood], tuple[Floats, Floats]]
    predicted: str  # what its horizontal axis is called
    observed: str  # and the vertical one


def _intervals(value: Floats, prediction: Prediction, likelihood: Likelihood) -> tuple[Floats, Floats]:
    return calibration_curve(plain_intervals(value, prediction, likelihood))


def _probabilities(value: Floats, prediction: Prediction, likelihood: Likelihood) -> tuple[Floats, Floats]:
    return reliability_curve(value, likelihood.expected(prediction.mean, prediction.var))[:2]


# by the metric of a likelihood, which is what rows know about it
CURVES: dict[str, Curve] = {
    "rmse": Curve("intervals", _intervals, "nominal share of an interval", "share of values inside it"),
    "auc": Curve("probabilities", _probabilities, "predicted probability", "share of ones"),
}
