"""Fast bounds of the scores of candidates, to find those that may be among the best.

Quick means and moments differ from `predict` in the last digits (quick_means.py), hence bounds. Candidates
that may be among the best are then scored exactly, with `predict`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from spidertensor.estimator.fitted import Fitted
from spidertensor.estimator.parameters import Member
from spidertensor.spider.committee import cores
from spidertensor.spider.crew import in_threads
from spidertensor.spider.custom_network import CustomSizes
from spidertensor.spider.posterior import State
from spidertensor.spider.quick_means import ERROR, quick_means
from spidertensor.spider.quick_moments import has_quick_moments, quick_moments

Floats = NDArray[np.float64]
Numbers = list[NDArray[np.int64]]  # per mode, the nodes of n candidates, or one node for all of them
Bounds = Callable[[Fitted, Numbers], tuple[Floats, Floats]]  # (n,) lower and upper

T = TypeVar("T")

ROUNDING = 1e-12  # of probabilities: keeps candidates with equal scores together


def quick_bounds(fitted: Fitted, explore: str, best: str = "high") -> Bounds | None:
    """The function that bounds the scores of "mean" or "ucb"; None if nothing is faster than `predict`."""
    if best == "low":
        found = None if explore == "ucb" else quick_bounds(fitted, explore)
        return None if found is None else _negated(found)
    likelihood, networks = fitted.model.likelihood, [each.network for each in fitted.model.members]
    if explore == "mean" and likelihood.ranked_by_mean:
        return None if any(isinstance(network, CustomSizes) for network in networks) else mean_bounds
    if not all(map(has_quick_moments, networks)):
        return None
    if explore == "mean":
        return expected_bounds if likelihood.binary else None
    # for probabilities, the committee's f is not the weighted mean of its members' f
    return ucb_bounds if likelihood.ranked_by_mean else None


def _negated(bounds: Bounds) -> Bounds:
    """Bounds of the scores with which the lowest are best."""

    def negated(fitted: Fitted, numbers: Numbers) -> tuple[Floats, Floats]:
        low, high = bounds(fitted, numbers)
        return -high, -low

    return negated


def mean_bounds(fitted: Fitted, numbers: Numbers) -> tuple[Floats, Floats]:
    """Bounds of the mean of f."""

    def mean(member: Member, state: State) -> tuple[Floats, Floats]:
        return _in_units(state, quick_means(state, member.network, numbers))

    total, error = _weighted(_of_members(fitted, mean))
    return total - error, total + error


def ucb_bounds(fitted: Fitted, numbers: Numbers) -> tuple[Floats, Floats]:
    """Bounds of the mean of f plus two standard deviations."""
    found = _of_members(fitted, _moments(numbers))
    mean, error, *_ = _weighted(found)
    least, most = np.zeros(1), np.zeros(1)  # bounds of the variance of the mixture
    for weight, (own_mean, own_error, low, high) in found:
        off, off_error = np.abs(own_mean - mean), own_error + error
        least = least + weight * (low + np.square(np.maximum(off - off_error, 0)))
        most = most + weight * (high + np.square(off + off_error))
    return mean - error + 2 * np.sqrt(least), mean + error + 2 * np.sqrt(most)


def expected_bounds(fitted: Fitted, numbers: Numbers) -> tuple[Floats, Floats]:
    """Bounds of a probability, which depends on the variance of f too: a larger one moves it toward 1/2."""
    moments, expected = _moments(numbers), fitted.model.likelihood.expected

    def bounds(member: Member, state: State) -> tuple[Floats, Floats]:
        mean, error, low, high = moments(member, state)
        least, most = mean - error, mean + error
        return (
            expected(least, np.where(least > 0, high, low)),
            expected(most, np.where(most > 0, low, high)),
        )

    low, high = _weighted(_of_members(fitted, bounds))
    return low - ROUNDING, high + ROUNDING


def _of_members(fitted: Fitted, work: Callable[[Member, State], T]) -> list[tuple[float, T]]:
    """The weight of each member and the result of `work` on it, run in threads."""
    members, states = fitted.model.members, fitted.state.members
    found = in_threads(lambda m: work(members[m], states[m]), len(members), min(cores(), len(members)))
    return list(zip(fitted.state.weights.tolist(), found, strict=True))


def _weighted(found: Sequence[tuple[float, Sequence[Floats]]]) -> list[Floats]:
    """The weighted sum over the members of each of their arrays."""
    return [
        np.sum([weight * each[part] for weight, each in found], axis=0) for part in range(len(found[0][1]))
    ]


def _moments(numbers: Numbers) -> Callable[[Member, State], tuple[Floats, Floats, Floats, Floats]]:
    """A function for the mean of a member's f, its error, and bounds of the variance of f."""

    def moments(member: Member, state: State) -> tuple[Floats, Floats, Floats, Floats]:
        f, var = quick_moments(state, member.network, member.prior, numbers)
        square, (low, high) = float(state.stream.scale) ** 2, var.astype(np.float64)
        return *_in_units(state, f), square * (1 - ERROR) * low, square * (1 + ERROR) * high

    return moments


def _in_units(state: State, f: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """A member's means in the units of the committee, and how far `predict` may be from them."""
    f, scale = f.astype(np.float64), float(state.stream.scale)
    return float(state.stream.shift) + scale * f, scale * ERROR * (1 + np.abs(f))
