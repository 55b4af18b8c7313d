"""Score what the members of a committee said some time before an entry is learned: mathematics.md section 21.

The members learn the entry as always. Weights, evidence and calibration score the forecast.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.method import HUGE, Update
from spidertensor.spider.calibration import (
    FORECAST_MEMORY,
    MEMORY_ENTRIES,
    Histogram,
    note,
    note_shares,
    start_of_forecasts,
)
from spidertensor.spider.likelihoods import Likelihood
from spidertensor.spider.stacking import CommitteeState, mixed, stack

CALIBRATIONS = ("auto", "next", "forecast", "rest")
HALF = 0.5  # share of recent entries with a forecast, from which on forecasts are how a model is used


class Said(NamedTuple):
    """Forecasts of n entries by M members; NaN where there is none."""

    parts: NDArray[np.float64]  # (M, 3, n) mean, var and noise
    weights: NDArray[np.float64]  # (M, n) of the committee when they were made

    def part(self, first: int, last: int) -> Said:
        """The forecasts of entries first to last."""
        return Said(self.parts[:, :, first:last], self.weights[:, first:last])


class Tickets:
    """What the members said about entries of a history that are not learned yet."""

    def __init__(self, n: int) -> None:
        self._n, self._said = n, None

    def keep(self, at: slice, said: Said) -> None:
        if self._said is None:
            members = len(said.weights)
            self._said = Said(np.full((members, 3, self._n), np.nan), np.full((members, self._n), np.nan))
        self._said.parts[:, :, at], self._said.weights[:, at] = said

    def of(self, rows: NDArray[np.int64]) -> Said | None:
        return None if self._said is None else Said(*(part[..., rows] for part in self._said))


def update_of_forecasts(
    state: CommitteeState,
    likelihood: Likelihood,
    clip: float,
    value: NDArray[np.float64],
    parts: NDArray[np.float64],
    rejected: int,
    said: Said,
) -> tuple[CommitteeState, Update]:
    """`update_of_members` where some entries come with a forecast: their Update is about the forecast.

    What was clipped is about the predictions just before, with which the entries were learned.
    """
    n, first, given = len(value), int(state.counts.entries), ~np.isnan(said.weights[0])
    before, log_evidence, good = np.empty((len(parts), n)), np.empty(n), np.empty(n, bool)
    log_p = _log_evidence(likelihood, value, parts, said, given)
    weights = np.ascontiguousarray(said.weights)
    stack(state.weights, state.counts, log_p, weights, before, log_evidence, good)
    now = mixed(likelihood, before, parts)
    scored = np.where(given, said.parts, parts[:, :3])
    mixture = mixed(likelihood, np.where(given, weights, before), scored)
    refused, clipped, below = int(n - good.sum()), 0, None
    if residuals := state.residuals:
        scores = state.forecasts or start_of_forecasts()
        state, below = state._replace(forecasts=scores), np.empty(n)
        residual = likelihood.residual(value, mixture, first)
        for mass, memory, own in (
            (residuals[0], MEMORY_ENTRIES, ~given),
            (scores.mass, FORECAST_MEMORY, given),
        ):
            noted = np.empty(np.count_nonzero(own))
            note(mass, memory, residual[own], good[own], noted)
            below[own] = noted
        scored_now = np.flatnonzero(given & good)
        scores.entries[()] += len(scored_now)
        note_shares(scores.share, scores.latest, first + scored_now)
        residual = likelihood.residual(value, now, first)
        clipped = int(np.count_nonzero(good & likelihood.clipped(value, now, residual, clip)))
        state.counts.clipped[()] += clipped
    return state, Update(*mixture, log_evidence, rejected, refused, clipped, below)


def _log_evidence(
    likelihood: Likelihood,
    value: NDArray[np.float64],
    parts: NDArray[np.float64],
    said: Said,
    given: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """(M, n) log evidence of what each member said; NaN or infinite if it could not learn the entry."""
    log_p = parts[:, 3].copy()
    for m, of_member in enumerate(said.parts):
        # what a member would say again has the evidence that it has just reported, to the last bit
        others = given & (np.abs(log_p[m]) < HUGE) & (of_member != parts[m, :3]).any(axis=0)
        if others.any():
            log_p[m, others] = likelihood.log_evidence(value[others], *of_member[:, others])
    return log_p


def histogram(state: CommitteeState, calibration: str) -> Histogram | None:
    """The residuals that intervals are calibrated on: see SpiderRegressor.predict_interval.

    None if the likelihood has no intervals.
    """
    if calibration not in CALIBRATIONS:
        raise ValueError(f"calibration must be one of {', '.join(CALIBRATIONS)}, got {calibration!r:.80}")
    if not state.residuals:
        return None
    kind = calibration_used(state) if calibration == "auto" else calibration
    found = {"next": state.residuals, "forecast": state.forecasts, "rest": state.rest}[kind]
    if not found:
        how = "has scored no forecast" if kind == "forecast" else "was not fitted with a slice held back"
        raise ValueError(f"calibration={kind!r}, but the model {how}: pass calibration='auto'")
    return Histogram(found[0])


def calibration_used(state: CommitteeState) -> str:
    """How the model is used, judged by the entries it learned: "forecast", "rest" or "next"."""
    entries, forecasts, rest = int(state.counts.entries), state.forecasts, state.rest
    if forecasts:
        gone = entries - 1 - int(forecasts.latest)  # entries without a forecast since the latest
        if float(forecasts.share) * (1 - 1 / MEMORY_ENTRIES) ** gone >= HALF:
            return "forecast"
    return "rest" if rest and entries - int(rest.at) < MEMORY_ENTRIES else "next"
