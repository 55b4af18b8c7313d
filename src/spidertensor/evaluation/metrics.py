"""Metrics of predictions: functions of arrays that return one number or one curve, independent of any model.

METRICS and CURVES list them by name, as functions of values, predictions and their likelihood; a
likelihood names the ones that apply to it. The functions before them take plain arrays: `mean` and
`var` describe a Gaussian prediction of the value itself, so for continuous values `var` includes the
observation noise. Binary values are 0 or 1 and are scored by the probability of a 1. Without entries every
score is NaN.

scikit-learn's metrics are not used (tests compare with them), because they raise without entries, are slower,
slow to import, and its reliability curve does not count the entries of its bins.

The ends of a plain interval are quantiles of the normal distribution; those of a calibrated interval are
the method's own quantiles (`Method.quantile`), or implied by `Update.below`.
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
from spidertensor.spider.likelihoods.ordinal import Ordinal

LEVELS = np.linspace(0.05, 0.95, 19)  # of a calibration curve
PERCENTS = (50, 80, 90, 95, 99)  # intervals whose coverage is a score
WINDOW_ENTRIES = 5_000  # over which the worst coverage is taken
BINS = 15  # of equal width, as usual for the expected calibration error (Guo et al. 2017)

Floats = NDArray[np.float64]
Quantile = Callable[[float], float]  # probability -> residual in standard deviations
Inside = Callable[[float], NDArray[np.bool_]]  # level -> (n,) whether a value is in its central interval


def rmse(value: ArrayLike, mean: ArrayLike) -> float:
    return float(np.sqrt(_average(_error(value, mean) ** 2)))


def mae(value: ArrayLike, mean: ArrayLike) -> float:
    return _average(np.abs(_error(value, mean)))


def auc(value: ArrayLike, score: ArrayLike) -> float:
    """Probability that a random 1 scores higher than a random 0; ties count half. NaN with one class."""
    ones = _binary(value) == 1
    n_ones = int(ones.sum())
    n_zeros = len(ones) - n_ones
    if not n_ones or not n_zeros:
        return float("nan")
    _, place, counts = np.unique(_floats(score), return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # ties share their average rank
    return float((ranks[place[ones]].sum() - n_ones * (n_ones + 1) / 2) / n_ones / n_zeros)  # Mann-Whitney


def log_loss(value: ArrayLike, probability: ArrayLike) -> float:
    """Negative mean log probability of the outcomes; probabilities are clipped by one float64 epsilon."""
    value = _binary(value)
    eps = np.finfo(np.float64).eps
    of_one = np.clip(_probability(probability), eps, 1 - eps)
    return -_average(np.log(np.where(value == 1, of_one, 1 - of_one)))


def log_density(value: ArrayLike, prediction: Prediction, likelihood: Likelihood) -> float:
    """Mean log predictive density of the values, or log probability if binary."""
    value, mean = _same_shape(value, prediction.mean)
    return _average(likelihood.log_evidence(value, mean, prediction.var, prediction.noise))


def inside(
    value: ArrayLike, mean: ArrayLike, var: ArrayLike, level: float, quantile: Quantile = ndtri
) -> NDArray[np.bool_]:
    """(n,) whether a value is in its central interval of probability `level`."""
    _check_level(level)
    residual = _error(value, mean) / np.sqrt(_floats(var))
    return (residual >= quantile((1 - level) / 2)) & (residual <= quantile((1 + level) / 2))


def inside_by_below(below: ArrayLike, level: float) -> NDArray[np.bool_]:
    """The same, given the share of the predictive distribution below each value.

    NaN, for values that the method refused, counts as outside.
    """
    _check_level(level)
    return np.abs(_floats(below) - 0.5) <= level / 2


def coverage(
    value: ArrayLike, mean: ArrayLike, var: ArrayLike, level: float, quantile: Quantile = ndtri
) -> float:
    """Share of values inside their central interval of probability `level`."""
    return _average(inside(value, mean, var, level, quantile))


def lowest_and_highest(
    covered: NDArray[np.bool_], window: int = WINDOW_ENTRIES
) -> tuple[float, float] | None:
    """Lowest and highest coverage over all windows of consecutive entries.

    Windows overlap, so that a bad stretch cannot hide at a boundary. None if
    there are fewer entries than a window.
    """
    if len(covered) < window:
        return None
    so_far = np.concatenate([[0], np.cumsum(covered)])
    shares = (so_far[window:] - so_far[:-window]) / window
    return float(shares.min()), float(shares.max())


def calibration_curve(intervals: Inside, levels: ArrayLike = LEVELS) -> tuple[Floats, Floats]:
    """Levels of central intervals, and the share of values inside each; equal if well calibrated."""
    levels = _floats(levels)
    return levels, np.array([_average(intervals(level)) for level in levels])


def reliability_curve(
    value: ArrayLike, probability: ArrayLike, bins: int = BINS
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Mean probability, share of ones and number of entries of each non-empty equal-width bin.

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
    """Expected calibration error: |share of ones - mean probability| per bin, averaged over entries.

    Bins have equal width, because bins of equal counts would split ties, so that the score of a
    constant prediction would depend on the order of entries.
    """
    predicted, observed, counts = reliability_curve(value, probability, bins)
    if not len(counts):
        return float("nan")
    return float(np.average(np.abs(observed - predicted), weights=counts))


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")


def _floats(array: ArrayLike) -> Floats:
    return np.asarray(array, dtype=np.float64)


def _error(value: ArrayLike, mean: ArrayLike) -> Floats:
    value, mean = _same_shape(value, mean)
    return value - mean


def _same_shape(value: ArrayLike, mean: ArrayLike) -> tuple[Floats, Floats]:
    value, mean = _floats(value), _floats(mean)
    if value.shape != mean.shape:  # NumPy would broadcast them silently
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
        raise ValueError("a probability must be between 0 and 1")
    return probability


def _average(array: NDArray) -> float:
    return float(np.mean(array)) if len(array) else float("nan")


# --- by name --------------------------------------------------------------------------------------


class Metric(NamedTuple):
    """A score of predictions.

    label:            in figures and headings
    of:               value, prediction, likelihood -> score
    higher_is_better: otherwise lower is better, unless there is a target
    target:           the ideal score, if both higher and lower scores are worse
    caption:          of its table in a report; "" if it has no table
    """

    label: str
    of: Callable[[Floats, Prediction, Likelihood], float]
    higher_is_better: bool = False
    target: float | None = None
    caption: str = ""

    def loss(self, score: float) -> float:
        """The score as a loss: lower is better."""
        if self.target is not None:
            return abs(score - self.target)
        return -score if self.higher_is_better else score


def _rmse(value: Floats, prediction: Prediction, likelihood: Likelihood) -> float:
    return rmse(value, likelihood.expected(*prediction))


def _mae(value: Floats, prediction: Prediction, likelihood: Likelihood) -> float:
    return mae(value, likelihood.expected(*prediction))


def _accuracy(value: Floats, prediction: Prediction, likelihood: Likelihood) -> float:
    assert isinstance(likelihood, Ordinal)
    return _average(likelihood.most_likely(prediction) == value)


def _auc(value: Floats, prediction: Prediction, likelihood: Likelihood) -> float:
    # increases with the probability; Phi itself would round to ties beyond 8
    return auc(value, prediction.mean / np.sqrt(1 + prediction.var))


def _log_loss(value: Floats, prediction: Prediction, likelihood: Likelihood) -> float:
    return log_loss(value, likelihood.expected(*prediction))


def _calibration_error(value: Floats, prediction: Prediction, likelihood: Likelihood) -> float:
    return calibration_error(value, likelihood.expected(*prediction))


def _coverage(level: float, value: Floats, prediction: Prediction, likelihood: Likelihood) -> float:
    return _average(plain_intervals(value, prediction, likelihood)(level))


def plain_intervals(
    value: Floats, prediction: Prediction, likelihood: Likelihood, quantile: Quantile = ndtri
) -> Inside:
    """Test for values inside intervals between quantiles of the residuals, or inside intervals of levels.

    Residuals of counts are randomized within their steps, so intervals of whole numbers cover slightly more.
    """
    if isinstance(likelihood, Ordinal):
        return partial(_inside_levels, value, prediction, likelihood)
    residual = likelihood.residual(value, prediction)
    return partial(inside, residual, np.zeros(len(residual)), np.ones(len(residual)), quantile=quantile)


def _inside_levels(
    value: Floats, prediction: Prediction, likelihood: Ordinal, level: float
) -> NDArray[np.bool_]:
    low, high = likelihood.interval(prediction, level)
    return (low <= value) & (value <= high)


METRICS: dict[str, Metric] = {
    "rmse": Metric("RMSE", _rmse),
    "auc": Metric("AUC", _auc, higher_is_better=True),
    "accuracy": Metric("accuracy", _accuracy, higher_is_better=True),
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
    """A calibration curve: pairs of predicted and observed shares, equal if well calibrated."""

    what: str  # noun for what is calibrated
    of: Callable[[Floats, Prediction, Likelihood], tuple[Floats, Floats]]
    predicted: str  # label of the horizontal axis
    observed: str  # label of the vertical axis


def _intervals(value: Floats, prediction: Prediction, likelihood: Likelihood) -> tuple[Floats, Floats]:
    return calibration_curve(plain_intervals(value, prediction, likelihood))


def _probabilities(value: Floats, prediction: Prediction, likelihood: Likelihood) -> tuple[Floats, Floats]:
    return reliability_curve(value, likelihood.expected(*prediction))[:2]


# by the metric of the likelihood, as in rows
CURVES: dict[str, Curve] = {
    "rmse": Curve("intervals", _intervals, "nominal share of an interval", "share of values inside it"),
    "auc": Curve("probabilities", _probabilities, "predicted probability", "share of ones"),
}
