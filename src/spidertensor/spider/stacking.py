"""Mix members' predictions and update a committee's weights: mathematics.md section 14."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import HUGE, Prediction, Update
from spidertensor.spider.calibration import MEMORY_ENTRIES, ForecastScores, Histogram, RestScores, note
from spidertensor.spider.compiled import COMPILE, kernel
from spidertensor.spider.events import Draws
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.likelihoods.mixture import moments

RATE, FIRST_RATE = 0.02, 0.1  # eta, how fast the weights follow: falls from FIRST_RATE to RATE
SLOWING_ENTRIES = 1000  # time scale on which eta falls
FADING_ENTRIES = 100_000
LEAST_WEIGHT = 0.001  # before normalising, so that a member can come back


class Mixing(NamedTuple):
    """How a committee mixes its members.

    clip:  theirs; an entry counts as clipped if the mixture's own prediction would clip it
    least: (2, M) weights that they keep, whatever they predict; before normalising. What the second row adds
           fades: after n entries it is divided by 1 + n / FADING_ENTRIES
    """

    clip: float
    least: NDArray[np.float64]


def mixing_of(members: int, clip: float | None = None, least: NDArray[np.float64] | None = None) -> Mixing:
    """clip: None is no limit. least: None is LEAST_WEIGHT for each"""
    if least is None:
        least = np.array([[LEAST_WEIGHT], [0.0]]) * np.ones(members)
    return Mixing(math.inf if clip is None else float(clip), least)


class CommitteeCounts(NamedTuple):
    entries: NDArray[np.int64]
    refused: NDArray[np.int64]  # entries that no member could learn
    clipped: NDArray[np.int64]  # entries that the committee's own prediction would clip
    log_evidence: NDArray[np.float64]  # sum over all entries


class CommitteeState(NamedTuple):
    members: tuple[Any, ...]  # states of the members
    weights: NDArray[np.float64]  # (M,), summing to 1
    counts: CommitteeCounts
    residuals: Histogram | tuple[()]  # for intervals; () if the likelihood has none
    draws: Draws | tuple[()] = ()  # for the negatives of a model of events
    forecasts: ForecastScores | tuple[()] = ()  # of entries that came with a forecast (forecasts.py)
    rest: RestScores | tuple[()] = ()  # of entries predicted by the model at rest (judge.py)


_NO_HISTOGRAM = np.empty(0)


def mass_of(state: CommitteeState, likelihood: Likelihood) -> NDArray[np.float64]:
    """The histogram for `mix_and_weigh`, which handles normal residuals only; else an empty array."""
    return state.residuals[0] if state.residuals and likelihood.normal else _NO_HISTOGRAM


# Not fastmath: the order of summation over members would depend on the number of entries in a call.
@kernel(**COMPILE | {"fastmath": False})
def stack(weights, least, counts, log_p, forecast_weights, before, log_evidence, good):
    """For each entry in order: w <- (1 - eta) w + eta w p / sum(w p), then w >= least, normalised.

    Changes weights and counts in place. log_p (M, n): log evidence of each entry by each member.
    forecast_weights (M, n): the committee's weights when a forecast was made, NaN where there is none; or
    (M, 0) without forecasts.
    Fills before (M, n): the weights before each entry; log_evidence (n,): that of the mixture, of the
    forecast where there is one; good (n,): whether any member could learn the entry. A member that could
    not keeps its weight.
    """
    members, n = log_p.shape
    for i in range(n):
        rate = max(RATE, FIRST_RATE / math.sqrt(1 + counts.entries[()] / SLOWING_ENTRIES))
        counts.entries[()] += 1
        best = -np.inf
        for m in range(members):
            before[m, i] = weights[m]
            if abs(log_p[m, i]) < HUGE:
                best = max(best, log_p[m, i])
        good[i] = best > -np.inf
        if not good[i]:
            log_evidence[i] = log_p[0, i]
            counts.refused[()] += 1
            continue
        if members == 1:  # its weight is 1, and stays so
            log_evidence[i] = best
            counts.log_evidence[()] += best
            continue
        is_forecast = forecast_weights.shape[1] > 0 and not np.isnan(forecast_weights[0, i])
        able, total, able_then, total_then = 0.0, 0.0, 0.0, 0.0
        for m in range(members):
            if abs(log_p[m, i]) < HUGE:
                p, then = math.exp(log_p[m, i] - best), forecast_weights[m, i] if is_forecast else weights[m]
                able += weights[m]
                total += weights[m] * p
                able_then += then
                total_then += then * p
        log_evidence[i] = best + math.log(total_then / able_then)
        counts.log_evidence[()] += log_evidence[i]
        fade, new_sum = 1 / (1 + counts.entries[()] / FADING_ENTRIES), 0.0
        for m in range(members):
            if abs(log_p[m, i]) < HUGE:
                ratio = able * math.exp(log_p[m, i] - best) / total
                weights[m] = max(least[0, m] + fade * least[1, m], weights[m] * (1 - rate + rate * ratio))
            new_sum += weights[m]
        for m in range(members):
            weights[m] /= new_sum


@kernel(**COMPILE | {"fastmath": False})
def mix_and_weigh(weights, counts, mass, parts, value, clip, least, before, out):
    """Mix the members' predictions for entries they have learned, and update the weights.

    counts: CommitteeCounts as a plain tuple: unboxing a NamedTuple takes numba a microsecond
    parts (M, 4, n): mean, var, noise and log evidence reported by each member
    Fills before (M, n), see `stack`, and out (6, n): mean, var, noise and log evidence of the mixture, the
    share of its calibrated distribution below the value, and the residual; without a histogram (empty mass)
    only the log evidence. Returns the numbers of refused and of clipped entries.
    """
    n, counts = len(value), CommitteeCounts(*counts)
    good, clipped = np.empty(n, np.bool_), 0
    stack(weights, least, counts, parts[:, 3], before[:, :0], before, out[3], good)
    refused = n
    for i in range(n):
        refused -= good[i]
    if len(mass):
        moments(before, parts, out)
        for i in range(n):
            residual = (value[i] - out[0, i]) / math.sqrt(out[1, i] + out[2, i])
            clipped += good[i] and abs(residual) > clip
            out[5, i] = residual
        note(mass, MEMORY_ENTRIES, out[5], good, out[4])
        counts.clipped[()] += clipped
    return refused, clipped


def update_of_members(
    state: CommitteeState,
    likelihood: Likelihood,
    mixing: Mixing,
    value: NDArray[np.float64],
    parts: NDArray[np.float64],
    rejected: int,
) -> Update:
    """The committee's Update for entries that all members have learned; updates its own state in place.

    parts (M, 4, n): what the members reported. rejected: number of elements they rejected
    """
    n, first = len(value), int(state.counts.entries)
    out, before, mass = np.empty((6, n)), np.empty((len(parts), n)), mass_of(state, likelihood)
    refused, clipped = mix_and_weigh(
        state.weights, tuple(state.counts), mass, parts, value, *mixing, before, out
    )
    mean, var, noise, log_evidence, below, _ = out
    if not state.residuals:
        below, (mean, var, noise) = None, mixed(likelihood, before, parts)
    elif not likelihood.normal:
        predicted = mixed(likelihood, before, parts)
        mean, var, noise = predicted
        good = (np.abs(parts[:, 3]) < HUGE).any(axis=0)
        residual = likelihood.residual(value, predicted, first)
        note(state.residuals[0], MEMORY_ENTRIES, residual, good, below)
        clipped = int(np.count_nonzero(good & likelihood.clipped(value, predicted, residual, mixing.clip)))
        state.counts.clipped[()] += clipped
    return Update(mean, var, noise, log_evidence, rejected, refused, clipped, below)


def mixed(
    likelihood: Likelihood,
    weights: NDArray[np.float64],
    parts: Sequence[Prediction] | NDArray[np.float64],
) -> Prediction:
    """Mixture of the members' predictions. weights (M, n) or (M, 1)."""
    return Prediction(*parts[0][:3]) if len(parts) == 1 else likelihood.mixture(weights, parts)
