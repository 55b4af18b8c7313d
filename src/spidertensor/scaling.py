"""Shift and scale of the values: methods learn values around 0 of size 1, users see their own units.

value = shift + scale * (scaled value)
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Prediction

LARGEST = 1e100  # of a shift or a scale: its square, a variance, must fit in a float64
FARTHEST = 1e6  # scales from the shift: larger values would ruin what was learned
FARTHEST_CLIPPED = 1e12  # the same for methods that clip: squares must stay finite
LEAST_SHARE = 2e3 / FARTHEST_CLIPPED  # of a scale in the first values: thousandfold values are not too far
WILD = 20.0  # standard deviations from the median: such values are ignored for the scale


class Scaling(NamedTuple):
    shift: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, first: NDArray[np.float64]) -> Scaling:
        """Mean and standard deviation of the first values without outliers; scale 1 if they are all equal.

        A scale that is tiny beside the values is taken larger, because later values may differ by far more.
        """
        first = first[~wild(first)]
        scale = spread(first)
        return cls(
            float(first.mean()), max(scale, LEAST_SHARE * float(np.abs(first).max())) if scale else 1.0
        )

    def scaled(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scale values for a method."""
        with np.errstate(over="ignore"):
            return (value - self.shift) / self.scale

    def scaled_one(self, value: float) -> float:
        """Scale one value."""
        return (value - self.shift) / self.scale

    def user_units(self, mean: Any, var: Any, noise: Any) -> Prediction:
        """Convert a method's prediction, (n,) arrays or numbers, to the user's units."""
        square = self.scale**2
        return Prediction(self.shift + self.scale * mean, square * var, square * noise)

    def log_density(self, scaled: Any) -> Any:
        """Convert the log density of scaled values, (n,) or a number, to that of the values."""
        return scaled - math.log(self.scale)


def spread(value: NDArray[np.float64]) -> float:
    """Standard deviation; 0 if it is only rounding error of equal values, or too small to use."""
    std = float(value.std())
    return std if std > 1e-14 * np.abs(value).max() and std > 1 / LARGEST else 0.0


def wild(value: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(..., n) whether a value is an outlier of its row, to be ignored for the scale.

    Measured by the median distance from the median, which outliers hardly affect. If that is 0, because most
    values are equal, there are no outliers.
    """
    distance = np.abs(value - np.median(value, axis=-1, keepdims=True))
    middle = np.median(distance, axis=-1, keepdims=True)
    return distance > WILD * 1.4826 * np.where(middle, middle, np.inf)


def too_large(value: NDArray[np.float64], n: int) -> NDArray[np.bool_]:
    """(n_values,) whether a value is too large to be among the first n values, which set the scale."""
    large = np.abs(value) > LARGEST
    return large & (np.cumsum(~large) < n)
