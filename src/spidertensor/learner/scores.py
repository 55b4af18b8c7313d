"""Running scores of a model while it learns: error and floors, coverage, clipping.

Every entry is scored by its prediction before it was learned; those with a forecast apart, by the forecast.
A run weighs all its entries alike. A server forgets: an entry counts 1/e after `memory` more. A kind of
entries of which less than one is left has no scores.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor import checkpoint
from spidertensor.estimator.eviction import Numbered
from spidertensor.estimator.loading import Estimator
from spidertensor.learner.floors import FLOORS, RunningFloors, in_intervals
from spidertensor.learner.forecasts import ForecastSums, Remembered
from spidertensor.spider.events import Rule
from spidertensor.spider.likelihoods import Likelihood


class Sums(NamedTuple):
    """Running sums over entries; divided by `weight` they are running means."""

    weight: NDArray[np.float64]
    losses: NDArray[np.float64]  # of the model and of the floors
    intervals: NDArray[np.float64]  # entries with an interval, and those inside it
    clipped: NDArray[np.float64]
    entries: NDArray[np.int64]  # scored so far
    n_clipped: NDArray[np.int64]


class Scores:
    """The scores of a model and of its floors, by the losses of floors.py.

    The floors always start empty, even if the model does not; such a comparison favours the model.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        n_modes: int,
        rule: Rule | None = None,
        memory: float = math.inf,
        with_ids: Sequence[int] | None = None,
    ) -> None:
        """memory: in entries; rule, with_ids: see RunningFloors"""
        self.memory = memory
        self._floors = RunningFloors(likelihood, n_modes, rule, with_ids)
        self.by_squares = self._floors.by_squares
        self.log_evidence = 0.0  # of all entries scored since the start
        self.sums = Sums(
            np.zeros(()),
            np.zeros(1 + len(FLOORS)),
            np.zeros(2),
            np.zeros(()),
            np.zeros((), np.int64),
            np.zeros((), np.int64),
        )
        self.forecasts = ForecastSums.start()

    def add(
        self,
        value: NDArray[np.float64],
        learned: Numbered,
        first: float,
        remembered: Remembered | None = None,
        likelihood: Likelihood | None = None,
    ) -> NDArray[np.float64]:
        """Score the entries of one call; returns the (1 + floors, n) losses of the model and of the floors.

        first:      what the floors predict before their very first entry
        remembered: if some have a forecast; the losses are then those of the forecast
        likelihood: see RunningFloors.learn
        """
        n, update, sums = len(value), learned.update, self.sums
        losses = self._floors.learn(value, learned, first, likelihood)
        left = np.exp(-n / self.memory)
        keep = np.exp(-(np.arange(n)[::-1]) / self.memory)  # the last entry counts 1
        late = np.full(n, np.nan)
        if remembered is not None:
            late, given = remembered.late, remembered.given
            of_floors = self._floors.forecast_losses(value, remembered.floors)
            losses[1:] = np.where(given, of_floors, losses[1:])
        self.forecasts.add(update, losses, late, keep, left)
        keep = np.where(np.isnan(late), keep, 0.0)
        good = np.isfinite(update.log_evidence)
        sums.weight[()] = sums.weight * left + keep[good].sum()
        sums.losses[:] = sums.losses * left + np.where(good, keep * losses, 0.0).sum(axis=1)
        sums.intervals[:] = sums.intervals * left + in_intervals(update) @ keep
        sums.clipped[()] = sums.clipped * left + update.clipped
        sums.entries[()] += n
        sums.n_clipped[()] += update.clipped
        self.log_evidence += float(update.log_evidence.sum())
        return losses

    @property
    def entries(self) -> int:
        return int(self.sums.entries)

    @property
    def metric(self) -> str:
        return "rmse" if self.by_squares else "log_loss"

    @property
    def score(self) -> float | None:
        """The error of the model."""
        return self._mean_losses(self.sums)[0]

    @property
    def floors(self) -> dict[str, float | None]:
        """The errors of the floors, by name."""
        return dict(zip(FLOORS, self._mean_losses(self.sums)[1:], strict=True))

    def _mean_losses(self, sums: Sums | ForecastSums) -> list[float] | list[None]:
        weight = float(sums.weight)
        return self.in_units(sums.losses / weight) if weight >= 1 else [None] * (1 + len(FLOORS))

    def in_units(self, losses: NDArray[np.float64]) -> list[float]:
        """Convert mean losses to the unit shown: RMSE or log loss."""
        return (np.sqrt(losses) if self.by_squares else losses).tolist()

    @property
    def coverage(self) -> float | None:
        """The share of entries inside their calibrated 90 % intervals."""
        calibrated, inside = self.sums.intervals.tolist()
        return inside / calibrated if calibrated >= 1 else None

    @property
    def clipped(self) -> float | None:
        """The share of entries that were clipped."""
        weight = float(self.sums.weight + self.forecasts.weight)
        return float(self.sums.clipped) / weight if weight and self.by_squares else None

    @property
    def forecast_error(self) -> float | None:
        """The error of forecasts."""
        return self._mean_losses(self.forecasts)[0]

    @property
    def forecast_floors(self) -> dict[str, float | None]:
        """The errors of what the floors predicted when the forecasts were made, by name."""
        return dict(zip(FLOORS, self._mean_losses(self.forecasts)[1:], strict=True))

    def floors_forecast(self, nodes: NDArray[np.int64], first: float) -> NDArray[np.float64]:
        """What the floors predict now: see RunningFloors.forecast."""
        return self._floors.forecast(nodes, first)

    def state(self, model: Estimator) -> bytes:
        """The state for `restore`, as bytes. model: the estimator that is scored"""
        file = io.BytesIO()
        arrays: Any = checkpoint.flatten((self.sums, self._floors.state(model), self.forecasts))
        np.savez(file, **arrays)
        return file.getvalue()

    def restore(self, state: bytes, model: Estimator) -> None:
        """Restore a state; ValueError if the bytes are not one."""
        with np.load(io.BytesIO(state), allow_pickle=False) as arrays:
            template = self.sums, self._floors.state(model), self.forecasts
            self.sums, of_floors, self.forecasts = checkpoint.restore(template, dict(arrays))
        self._floors.restore(of_floors, model)
