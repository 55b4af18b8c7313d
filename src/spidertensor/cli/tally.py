"""The running scores of `spider fit`."""

from __future__ import annotations

from typing import Any

import numpy as np

from spidertensor.baselines import floors
from spidertensor.method import Batch, Update
from spidertensor.spider.likelihoods import Likelihood

COVERAGE = 0.9  # of the intervals that are counted


class Tally:
    """Scores of this run; each entry is scored by what was predicted before it was learned.

    The metric is the RMSE where that is the metric of the likelihood, else the mean of -log evidence, which
    for binary values is the log loss.
    """

    def __init__(self, likelihood: Likelihood) -> None:
        self.by_squares = likelihood.metric == "rmse"
        self.entries = 0
        self.calibrated = self.inside = 0  # entries with an interval, and those that were in it
        self.log_evidence = self.squares = self.floor_squares = self.floor_log_evidence = 0.0
        # seconds; the first chunk, for which kernels are compiled, counts as `starting`
        self.reading = self.starting = self.learning = 0.0
        self.timed = 0  # entries learned in `learning`
        self._floor = floors.mean(likelihood)
        self._floor_state = self._floor.init(0)

    def add(self, value: Any, update: Update, shift: float) -> None:
        """shift: the mean that the model assumes before the first entry, so the floor starts with it too"""
        batch = Batch(np.empty((len(value), 0), np.int64), value)
        self._floor_state, floor = self._floor.update(self._floor_state, batch)
        if not self.entries:
            floor.mean[0] = shift
        self.entries += len(value)
        self.log_evidence += float(update.log_evidence.sum())
        self.floor_log_evidence += float(floor.log_evidence.sum())
        if self.by_squares:
            self.squares += float(np.sum((value - update.mean) ** 2))
            self.floor_squares += float(np.sum((value - floor.mean) ** 2))

        if update.below is not None:
            self.calibrated += int(np.isfinite(update.below).sum())  # NaN: the entry was refused
            self.inside += int((np.abs(update.below - 0.5) <= COVERAGE / 2).sum())

    @property
    def coverage(self) -> float | None:
        """The share of the entries that were in their calibrated 90 % intervals."""
        return self.inside / self.calibrated if self.calibrated else None

    @property
    def metric(self) -> str:
        return "rmse" if self.by_squares else "log_loss"

    @property
    def score(self) -> float:
        return self._score(self.squares, self.log_evidence)

    @property
    def floor(self) -> float:
        """The score of predicting the mean of all earlier entries."""
        return self._score(self.floor_squares, self.floor_log_evidence)

    def _score(self, squares: float, log_evidence: float) -> float:
        n = max(self.entries, 1)
        return (squares / n) ** 0.5 if self.by_squares else -log_evidence / n
