"""`bounds`: predictions of values that cannot leave a scale, such as 1 to 5 stars.

What is learned and its log scores are as without them. Means and the ends of intervals are cut off at the
bounds. That takes no value out of an interval, since none lies beyond, so intervals cover as they did.
The mean of the normal distribution cut off there was tried too: its error is larger on ratings, because the
model has learned the mean of values that already keep to the scale.
"""

from __future__ import annotations

from functools import cache
from math import isfinite
from typing import Any

import numpy as np

from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.likelihoods.gaussian import Gaussian

SEEN = "seen"


class Bounded(Gaussian):
    """Continuous values from `low` to `high`, in user units. For what is said of values, not for learning.

    strict: values beyond are not allowed
    """

    def __init__(self, low: float, high: float, *, strict: bool = True) -> None:
        self.low, self.high, self.strict = low, high, strict
        self.allowed = f"between the bounds {low:g} and {high:g}" if strict else "finite"

    def allows(self, value):
        return (value >= self.low) & (value <= self.high) if self.strict else super().allows(value)

    def allows_one(self, value):
        return self.low <= value <= self.high if self.strict else super().allows_one(value)

    def refusal(self, value):
        reason, _ = super().refusal(value)
        return reason, "correct it, or pass wider bounds" if self.strict and isfinite(value) else ""

    def expected(self, mean: Any, var: Any, noise: Any = 0.0):
        return np.clip(np.asarray(mean, np.float64), self.low, self.high)

    def at_residual(self, residual, prediction):
        return np.clip(super().at_residual(residual, prediction), self.low, self.high)

    def __reduce__(self) -> Any:
        return bounded, (self.low, self.high, self.strict)


@cache  # the same object for the same bounds
def bounded(low: float, high: float, strict: bool = True) -> Bounded:
    return Bounded(low, high, strict=strict)


def within(likelihood: Likelihood, bounds: Any) -> Likelihood:
    """The likelihood for values in user units. bounds: the parameter"""
    return likelihood if bounds in (None, SEEN) else bounded(*map(float, bounds))
