"""Shift and scale of the values: methods learn numbers around 0 of size 1, users see their own units.

value = shift + scale * (the value that a method sees)
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import Prediction

LARGEST = 1e100  # of a shift or a scale: its square, a variance, must still be a float64
FARTHEST = 1e6  # scales from the shift: larger values would wreck what was learned
FARTHEST_CLIPPED = 1e12  # the same for a method that clips them: squares must still be numbers
WILD = 20.0  # standard deviations from the median: such a value says nothing of the scale


class Scaling(NamedTuple):
    shift: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, first: NDArray[np.float64]) -> Scaling:
        """Mean and standard deviation of the first values, without wild ones; 1 if they do not vary."""
        first = first[~wild(first)]
        return cls(float(first.mean()), spread(first) or 1.0)

    def scaled(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values as a method sees them."""
        with np.errstate(over="ignore"):
            return (value - self.shift) / self.scale

    def scaled_one(self, value: float) -> float:
        """`scaled` of one value."""
        return (value - self.shift) / self.scale

    def user_units(self, mean: Any, var: Any, noise: Any) -> Prediction:
        """What a method predicts, (n,) arrays or numbers, in the units of the values."""
        square = self.scale**2
        return Prediction(self.shift + self.scale * mean, square * var, square * noise)

    def log_density(self, scaled: Any) -> Any:
        """The log density of values from that of the scaled values, (n,) or a number."""
        return scaled - math.log(self.scale)


def spread(value: NDArray[np.float64]) -> float:
    """Standard deviation; 0 if it is nothing but the rounding error of equal values, or too small to use."""
    std = float(value.std())
    return std if std > 1e-14 * np.abs(value).max() and std > 1 / LARGEST else 0.0


def wild(value: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(..., n) which values are so far from the others of their row that a scale must not come from them.

    The median distance from the median is a scale that they cannot move. Where most values are equal it is 0,
    and then nothing is wild.
    """
    distance = np.abs(value - np.median(value, axis=-1, keepdims=True))
    middle = np.median(distance, axis=-1, keepdims=True)
    return distance > WILD * 1.4826 * np.where(middle, middle, np.inf)


def too_large(value: NDArray[np.float64], n: int) -> NDArray[np.bool_]:
    """(n_values,) which values are too large to take a scale from the first n of the others."""
    large = np.abs(value) > LARGEST
    return large & (np.cumsum(~large) < n)
