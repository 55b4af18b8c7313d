"""Between what the scores of candidates lie: quickly, to find out which can be among the best.

Quick means and moments have other last digits than `predict` (quick_means.py): each score comes with bounds, and
those that may be among the best are then scored by what `predict` says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.fitted import Fitted
from spidertensor.estimator.parameters import Member
from spidertensor.spider.committee import cores, in_threads
from spidertensor.spider.custom_network import CustomSizes
from spidertensor.spider.posterior import State
from spidertensor.spider.quick_means import ERROR, quick_means
from spidertensor.spider.quick_moments import has_quick_moments, quick_moments

Floats = NDArray[np.float64]
Numbers = list[NDArray[np.int64]]  # per mode, the nodes of n candidates, or one node for all of them
Bounds = Callable[[Fitted, Numbers], tuple[Floats, Floats]]  # (n,) from below and from above

T = TypeVar("T")

ROUNDING = 1e-12  # of probabilities: candidates whose scores are equal must not be told apart


def quick_bounds(fitted: Fitted, explore: str) -> Bounds | None:
    """What bounds the scores of "mean" or "ucb"; None if nothing is faster than `predict`."""
    networks = [member.network for member in fitted.model.members]
    if explore == "mean" and fitted.model.likelihood.ranked_by_mean:
        return None if any(isinstance(network, CustomSizes) for network in networks) else mean_bounds
    if not all(map(has_quick_moments, networks)):
        return None
    return ucb_bounds if explore == "ucb" else expected_bounds


def mean_bounds(fitted: Fitted, numbers: Numbers) -> tuple[Floats, Floats]:
    """Of the mean of f, whatever its variance."""

    def mean(member: Member, state: State) -> tuple[Floats, Floats]:
        return _in_units(state, quick_means(state, member.network, numbers))

    found = _of_members(fitted, mean)
    total = sum(weight * mean for weight, (mean, _) in found)
    error = sum(weight * error for weight, (_, error) in found)
    return total - error, total + error


def ucb_bounds(fitted: Fitted, numbers: Numbers) -> tuple[Floats, Floats]:
    """Of the mean of f plus two standard deviations."""
    found = _of_members(fitted, _moments(numbers))
    mean = sum(weight * each for weight, (each, _, _) in found)
    error = sum(weight * each for weight, (_, _, each) in found)
    var, var_error = np.zeros(1), np.zeros(1)
    for weight, (own_mean, own_var, own_error) in found:
        off, off_error = np.abs(own_mean - mean), own_error + error
        var = var + weight * (own_var + off * off)
        var_error = var_error + weight * (ERROR * own_var + off_error * (2 * off + off_error))
    low, high = (np.sqrt(np.maximum(var + side * var_error, 0)) for side in (-1, 1))
    return mean - error + 2 * low, mean + error + 2 * high


def expected_bounds(fitted: Fitted, numbers: Numbers) -> tuple[Floats, Floats]:
    """Of the mean of an observation, which may depend on the variance of f as well: a probability."""
    moments, expected = _moments(numbers), fitted.model.likelihood.expected

    def bounds(member: Member, state: State) -> tuple[Floats, Floats]:
        mean, var, error = moments(member, state)
        error = error + ERROR * np.abs(mean)  # as much as an error of the variance could do
        return expected(mean - error, var), expected(mean + error, var)

    found = _of_members(fitted, bounds)
    low = sum(weight * each for weight, (each, _) in found)
    high = sum(weight * each for weight, (_, each) in found)
    return low - ROUNDING, high + ROUNDING


def _of_members(fitted: Fitted, work: Callable[[Member, State], T]) -> list[tuple[float, T]]:
    """The weight of each member, and what the work on it gave: by several threads."""
    members, states = fitted.model.members, fitted.state.members
    found = in_threads(lambda m: work(members[m], states[m]), len(members), min(cores(), len(members)))
    return list(zip(fitted.state.weights.tolist(), found, strict=True))


def _moments(numbers: Numbers) -> Callable[[Member, State], tuple[Floats, Floats, Floats]]:
    """What gives the mean and the variance of a member's f, and the error of the mean."""

    def moments(member: Member, state: State) -> tuple[Floats, Floats, Floats]:
        f, var = quick_moments(state, member.network, member.prior, numbers)
        mean, error = _in_units(state, f)
        return mean, float(state.stream.scale) ** 2 * var.astype(np.float64), error

    return moments


def _in_units(state: State, f: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """A member's means in the units of the committee, and how far those of `predict` may be from them."""
    f, scale = f.astype(np.float64), float(state.stream.scale)
    return float(state.stream.shift) + scale * f, scale * ERROR * (1 + np.abs(f))
