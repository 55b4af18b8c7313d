"""How good the model is while it runs: error and floors, coverage, clipping, surprising entries.

Every entry is scored by what was predicted before it was learned. Running numbers forget: an entry counts 1/e
after MEMORY further ones.
"""

from __future__ import annotations

import io
import time
from collections import deque
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spidertensor import checkpoint
from spidertensor.baselines import floors
from spidertensor.method import Batch, Prediction, Update
from spidertensor.service.errors import shown
from spidertensor.spider.likelihoods import Likelihood

MEMORY = 5000  # entries
COVERAGE = 0.9  # of the intervals that are counted
SURPRISING = 4.0  # predictive standard deviations
UNLIKELY = 0.01  # probability of a 0/1 value that is surprising
KEPT = 20  # surprising entries
FLOORS = ("mean", "biases")


class Sums(NamedTuple):
    """Running sums over entries, so their ratios to `weight` are running means."""

    weight: NDArray[np.float64]
    losses: NDArray[np.float64]  # of the model and of the floors
    intervals: NDArray[np.float64]  # entries with an interval, and those inside it
    clipped: NDArray[np.float64]
    entries: NDArray[np.int64]  # all that were scored
    n_clipped: NDArray[np.int64]


class Scores:
    def __init__(self, likelihood: Likelihood, n_modes: int) -> None:
        self.likelihood = likelihood
        self.by_squares = likelihood.metric == "rmse"
        self.surprises: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._floors = [floors.mean(likelihood), floors.biases(n_modes, likelihood)]
        self._states = [floor.init(0) for floor in self._floors]
        self.sums = Sums(
            np.zeros(()),
            np.zeros(3),
            np.zeros(2),
            np.zeros(()),
            np.zeros((), np.int64),
            np.zeros((), np.int64),
        )

    def add(self, ids: list[NDArray[Any]], index: NDArray[np.int64], value: NDArray, update: Update) -> None:
        """The entries of one call: their ids, the numbers of their nodes, and what was predicted."""
        n = len(value)
        keep = np.exp(-(np.arange(n)[::-1]) / MEMORY)  # the last entry counts 1
        sums, left = self.sums, np.exp(-n / MEMORY)
        losses = [self._loss(value, update)]
        for number, floor in enumerate(self._floors):
            self._states[number], predicted = floor.update(self._states[number], Batch(index, value))
            if not sums.entries and self.by_squares:
                predicted.mean[0] = update.mean[0]  # before the first entry nobody knows where values are
            losses.append(self._loss(value, predicted))
        good = np.isfinite(update.log_evidence)
        sums.weight[()] = sums.weight * left + keep[good].sum()
        sums.losses[:] = sums.losses * left + [float(keep[good] @ each[good]) for each in losses]
        inside = np.zeros((2, n))
        if update.below is not None:
            inside[0] = np.isfinite(update.below)
            inside[1] = np.abs(update.below - 0.5) <= COVERAGE / 2
        sums.intervals[:] = sums.intervals * left + inside @ keep
        sums.clipped[()] = sums.clipped * left + update.clipped
        sums.entries[()] += n
        sums.n_clipped[()] += update.clipped
        self._note_surprises(ids, value, update)

    def _loss(self, value: NDArray, update: Update) -> NDArray:
        if not self.by_squares:
            return -update.log_evidence
        return (value - self.likelihood.expected(update.mean, update.var)) ** 2

    def _note_surprises(self, ids: list[NDArray[Any]], value: NDArray, update: Update) -> None:
        predicted = Prediction(*update[:3])
        mean, std = self.likelihood.expected(*predicted[:2]), self.likelihood.std(*predicted)
        if self.by_squares:
            z = self.likelihood.residual(value, predicted, int(self.sums.entries))
            strange = np.abs(z) > SURPRISING
        else:
            z = np.full(len(value), np.nan)
            strange = update.log_evidence < np.log(UNLIKELY)
        for row in np.flatnonzero(strange)[-KEPT:].tolist():
            self.surprises.appendleft(
                {
                    "time": time.time(),
                    "ids": [shown(_plain(column[row])) for column in ids],
                    "value": float(value[row]),
                    "mean": float(mean[row]),
                    "std": float(std[row]) if self.by_squares else None,
                    "z": float(z[row]) if self.by_squares else None,
                }
            )

    def running(self) -> dict[str, Any]:
        """Errors, coverage and share of clipped entries; None as long as there is nothing to tell."""
        weight, intervals = float(self.sums.weight), self.sums.intervals
        losses = [float(each) / weight if weight else None for each in self.sums.losses]
        told = [None if each is None else each**0.5 if self.by_squares else each for each in losses]
        return {
            "error": told[0],
            **{f"floor_{name}": floor for name, floor in zip(FLOORS, told[1:], strict=True)},
            "coverage": float(intervals[1] / intervals[0]) if intervals[0] else None,
            "clipped": float(self.sums.clipped) / weight if weight and self.by_squares else None,
            "scored": int(self.sums.entries),
        }

    def state(self) -> bytes:
        file = io.BytesIO()
        arrays: Any = checkpoint.flatten((self.sums, *self._states))
        np.savez(file, **arrays)
        return file.getvalue()

    def restore(self, state: bytes) -> None:
        """As they were; ValueError if the bytes are no such state."""
        with np.load(io.BytesIO(state), allow_pickle=False) as arrays:
            self.sums, *self._states = checkpoint.restore((self.sums, *self._states), dict(arrays))


def _plain(raw: Any) -> Any:
    return raw.item() if isinstance(raw, np.generic) else raw
