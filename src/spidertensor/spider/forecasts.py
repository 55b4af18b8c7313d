"""Score forecasts: predictions that members made some time before an entry is learned.

The members learn the entry as always. Weights, evidence and calibration score the forecast: mathematics.md
section 21.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor.faults import EntryError
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
from spidertensor.spider.likelihoods.ordinal import Ordinal
from spidertensor.spider.stacking import CommitteeState, Mixing, mixed, stack

CALIBRATIONS = ("auto", "next", "forecast", "rest")
# share of recent entries with a forecast from which intervals are calibrated on forecasts
FORECAST_SHARE = 0.5


class MemberForecasts(NamedTuple):
    """Forecasts of n entries by M members; NaN where there is none."""

    # (M, 3, n) mean, var and noise; of levels (M, 3 + levels, n), with how often each was seen, plus 1
    parts: NDArray[np.float64]
    weights: NDArray[np.float64]  # (M, n) of the committee when they were made

    def at(self, rows: NDArray[np.int64]) -> MemberForecasts:
        return MemberForecasts(*(part[..., rows] for part in self))

    def part(self, first: int, last: int) -> MemberForecasts:
        """The forecasts of entries first to last."""
        return MemberForecasts(self.parts[:, :, first:last], self.weights[:, first:last])


class PendingForecasts:
    """Members' predictions for entries of a history that are not learned yet."""

    def __init__(self, n: int) -> None:
        self._n, self._kept = n, None

    def keep(self, at: slice, forecasts: MemberForecasts) -> None:
        if self._kept is None:
            members, numbers, _ = forecasts.parts.shape
            self._kept = MemberForecasts(
                np.full((members, numbers, self._n), np.nan), np.full((members, self._n), np.nan)
            )
        self._kept.parts[:, :, at], self._kept.weights[:, at] = forecasts

    def of_rows(self, rows: NDArray[np.int64]) -> MemberForecasts | None:
        return None if self._kept is None else self._kept.at(rows)


def update_of_forecasts(
    state: CommitteeState,
    likelihood: Likelihood,
    mixing: Mixing,
    forecasts: MemberForecasts,
    value: NDArray[np.float64],
    parts: NDArray[np.float64],
    rejected: int,
) -> tuple[CommitteeState, Update]:
    """`update_of_members` where some entries come with a forecast: their Update is about the forecast.

    What was clipped is about the predictions just before, with which the entries were learned.
    """
    n, first, given = len(value), int(state.counts.entries), ~np.isnan(forecasts.weights[0])
    before, log_evidence, good = np.empty((len(parts), n)), np.empty(n), np.empty(n, bool)
    log_p = _log_evidence(likelihood, value, parts, forecasts, given)
    weights = np.ascontiguousarray(forecasts.weights)
    stack(state.weights, mixing.least, state.counts, log_p, weights, before, log_evidence, good)
    now = mixed(likelihood, before, parts)
    scored = np.where(given, forecasts.parts[:, :3], parts[:, :3])
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
        clipped = int(np.count_nonzero(good & likelihood.clipped(value, now, residual, mixing.clip)))
        state.counts.clipped[()] += clipped
    return state, Update(*mixture, log_evidence, rejected, refused, clipped, below)


def _log_evidence(
    likelihood: Likelihood,
    value: NDArray[np.float64],
    parts: NDArray[np.float64],
    forecasts: MemberForecasts,
    given: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """(M, n) log evidence of each member's forecast; NaN or infinite if it could not learn the entry."""
    log_p = parts[:, 3].copy()
    # a member that would predict the same again keeps the evidence that it has just reported, bit for bit
    others = given & (np.abs(log_p) < HUGE)
    if not isinstance(likelihood, Ordinal):  # whose cut points differ even then
        others &= (forecasts.parts != parts[:, :3]).any(axis=1)
    member, entry = others.nonzero()
    if len(entry):
        made = forecasts.parts[member, :, entry]
        by = likelihood.with_counts(made[:, 3:]) if isinstance(likelihood, Ordinal) else likelihood
        log_p[others] = by.log_evidence(value[entry], *made[:, :3].T)
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
        reason = f"there is no calibration {kind!r}: the model {how}"
        raise EntryError(reason, kind="calibration", remedy="pass calibration='auto'")
    return Histogram(found[0])


def calibration_used(state: CommitteeState) -> str:
    """How the model is used, judged by the entries it learned: "forecast", "rest" or "next"."""
    entries, forecasts, rest = int(state.counts.entries), state.forecasts, state.rest
    if forecasts:
        gone = entries - 1 - int(forecasts.latest)  # entries without a forecast since the latest
        if float(forecasts.share) * (1 - 1 / MEMORY_ENTRIES) ** gone >= FORECAST_SHARE:
            return "forecast"
    return "rest" if rest and entries - int(rest.at) < MEMORY_ENTRIES else "next"
